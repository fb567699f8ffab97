"""Tracking, views and serving over real HTTP: bodies, codes, limits, tokens, walls; and the loop, with a worker."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import jwt
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import JwtRules, NewKey, SettingsPatch, TenantPatch
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import free_port, process
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"
SECRET = "the shop's own secret, thirty-two bytes long"
EVENTS = "/api/banners/events"


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[Api]:
    env = {
        **handbill_env,
        "HANDBILL_TENANTS__SEAL_KEY": SEAL,
        "HANDBILL_API__KILL_TIMEOUT_S": "2",
        "HANDBILL_API__TRUSTED_PROXIES": "127.0.0.0/8",
        "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "250",
    }
    here = {"X-Forwarded-For": f"192.0.2.{uuid.uuid4().int % 250}"}  # the throttle outlives a test
    async with process("api", env=env) as running, aiohttp.ClientSession(headers=here) as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


class Shop:
    """A tenant with keys, a placement and a banner, made over the admin routes."""

    def __init__(self, api: Api, write_key: str, secret_key: str) -> None:
        self.api, self.write_key, self.secret_key = api, write_key, secret_key
        self.banner = self.placement = ""

    async def open(self, **banner: Any) -> Shop:
        place = await self.api("POST", "/admin/placements", key=self.secret_key, json={"name": "Home", "slug": "home"})
        assert place.status == 201, place.body
        self.placement = place.json()["placement_id"]
        told = {"x_times": 2, "y_hours": 24, "z_duration_sec": 3, "cta_link": "https://shop.example.com", **banner}
        made = await self.api("POST", "/admin/banners", key=self.secret_key, json=told)
        assert made.status == 201, made.body
        self.banner = made.json()["banner_id"]
        return self

    def impression(self, **more: Any) -> dict[str, Any]:
        named = {"bannerPublicId": self.banner, "placementPublicId": self.placement}
        return {**named, "correlationId": uuid.uuid4().hex, **more}

    def view(self, user: str = "ada", **more: Any) -> dict[str, Any]:
        return {
            "banner_id": self.banner, "user_id": user, "event_id": uuid.uuid4().hex, "view_duration_ms": 3000, **more,
        }  # fmt: skip

    async def shown(self, user: str = "ada", **headers: str) -> list[str]:
        reply = await self.api("GET", f"/banners?user_id={user}", headers={"X-Write-Key": self.write_key, **headers})
        assert reply.status == 200, reply.body
        assert reply.headers["cache-control"] == "no-store"
        found: list[str] = reply.json()["banners"]
        return found


async def open_shop(api: Api, database: Database, redis: Redis, tenant: int, **banner: Any) -> Shop:
    from hashlib import sha256

    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    write = await tenants.create_key(tenant, NewKey(kind="write", name="shop"), actor="test")
    secret = await tenants.create_key(tenant, NewKey(kind="secret", name="desk", scopes=["*"]), actor="test")
    patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=SECRET))
    await tenants.change_tenant(tenant, patch, actor="test")
    await tenants.stop()
    return await Shop(api, write.key, secret.key).open(**banner)


def token(subject: str, **more: Any) -> str:
    claims = {"sub": subject, "exp": datetime.now(UTC) + timedelta(hours=1), **more}
    return jwt.encode(claims, SECRET, algorithm="HS256")


async def test_replies_and_refusals_are_those_of_the_contract(
    api: Api, database: Database, redis: Redis, tenant: int, make_tenant: Any
) -> None:
    shop = await open_shop(api, database, redis, tenant)
    other = await open_shop(api, database, redis, await make_tenant())
    reply = await api("POST", f"{EVENTS}/impression", json=shop.impression(occurredAt="2030-01-01T00:00:00Z"))
    assert (reply.status, reply.json()) == (202, {"message": "Impression recorded.", "data": None})
    click = shop.impression(destinationUrl="https://shop.example.com")
    reply = await api("POST", f"{EVENTS}/click", data=json.dumps(click), headers={"Content-Type": "text/plain"})
    assert (reply.status, reply.json()) == (202, {"message": "Click recorded.", "data": None})

    faults = (await api("POST", f"{EVENTS}/click", json={"correlationId": "", "countryCode": "Nepal"})).problem(
        400, "INVALID"
    )["faults"]
    assert {fault["field"] for fault in faults} == {
        "bannerPublicId", "placementPublicId", "correlationId", "destinationUrl", "countryCode",
    }  # fmt: skip
    stranger = str(uuid.uuid4())
    for told, code in (
        (shop.impression(bannerPublicId=stranger), "BANNER_NOT_FOUND"),
        (shop.impression(placementPublicId=stranger), "PLACEMENT_NOT_FOUND"),
        (shop.impression(placementPublicId=other.placement), "PLACEMENT_NOT_FOUND"),
    ):
        (await api("POST", f"{EVENTS}/impression", json=told)).problem(404, code)
    unknown = shop.impression(campaignPublicId=stranger)
    assert (await api("POST", f"{EVENTS}/impression", json=unknown)).status == 202
    old = shop.impression(occurredAt="2020-01-01T00:00:00Z")
    (await api("POST", f"{EVENTS}/impression", json=old)).problem(400, "TOO_OLD")
    (await api("POST", f"{EVENTS}/impression", data=b"{", headers={"Content-Type": "text/plain"})).problem(
        400, "BAD_JSON"
    )
    (await api("POST", f"{EVENTS}/impression", data=b"x", headers={"Content-Type": "text/html"})).problem(
        415, "UNSUPPORTED_MEDIA_TYPE"
    )
    (await api("POST", f"{EVENTS}/impression", json=shop.impression(pageUrl="a\0b"))).problem(400, "BAD_TEXT")
    (await api("GET", f"{EVENTS}/impression")).problem(405, "METHOD_NOT_ALLOWED")
    large = io.BytesIO(b" " * (1 << 20) + b"{}")
    (await api("POST", f"{EVENTS}/impression", data=large, headers={"Content-Type": "text/plain"})).problem(
        413, "TOO_LARGE"
    )


async def test_a_batch_keeps_the_good_and_names_the_bad(
    api: Api, database: Database, redis: Redis, tenant: int
) -> None:
    shop = await open_shop(api, database, redis, tenant)
    batch = {"events": [shop.impression(), {"bannerPublicId": 1}, shop.impression(bannerPublicId=str(uuid.uuid4()))]}
    reply = await api("POST", f"{EVENTS}/impression/batch", json=batch)
    assert reply.status == 202
    data = reply.json()["data"]
    assert data["accepted"] == 1
    assert [(item["index"], item["code"]) for item in data["rejected"]] == [(1, "INVALID"), (2, "BANNER_NOT_FOUND")]
    (await api("POST", f"{EVENTS}/impression/batch", json={"events": []})).problem(400, "BATCH_SIZE")
    (await api("POST", f"{EVENTS}/impression/batch", json={"events": [{}]})).problem(400, "INVALID")
    (await api("POST", f"{EVENTS}/impression/batch", json=[1])).problem(400, "INVALID")
    views = {"events": [shop.view(), shop.view(event_id="")]}
    reply = await api("POST", "/views/batch", json=views, headers={"X-Write-Key": shop.write_key})
    assert (reply.status, reply.json()["data"]["accepted"]) == (202, 1)


async def test_an_address_is_throttled_and_told_when_to_come_back(
    api: Api, database: Database, redis: Redis, tenant: int
) -> None:
    shop = await open_shop(api, database, redis, tenant)
    here = {"X-Forwarded-For": f"198.51.100.{uuid.uuid4().int % 250}"}
    batch = {"events": [shop.impression() for _ in range(45)]}
    assert (await api("POST", f"{EVENTS}/impression/batch", json=batch, headers=here)).status == 202
    refused = await api("POST", f"{EVENTS}/impression/batch", json=batch, headers=here)
    refused.problem(429, "IP_THROTTLED")
    assert int(refused.headers["retry-after"]) >= 1
    elsewhere = {"X-Forwarded-For": "198.51.100.254"}
    assert (await api("POST", f"{EVENTS}/impression", json=shop.impression(), headers=elsewhere)).status == 202


async def test_a_view_is_its_users_own(
    api: Api, database: Database, redis: Redis, tenant: int, make_tenant: Any
) -> None:
    shop = await open_shop(api, database, redis, tenant)
    other = await open_shop(api, database, redis, await make_tenant())
    ada = {"Authorization": f"Bearer {token('ada')}"}
    assert (await api("POST", "/views", json=shop.view("ada"), headers=ada)).status == 202
    (await api("POST", "/views", json=shop.view("bob"), headers=ada)).problem(403, "NOT_YOUR_USER")
    forged = jwt.encode({"sub": "ada"}, "another secret that is long enough too", algorithm="HS256")
    (await api("POST", "/views", json=shop.view(), headers={"Authorization": f"Bearer {forged}"})).problem(
        401, "BAD_TOKEN"
    )
    (await api("POST", "/views", json=shop.view())).problem(401, "UNAUTHORIZED")
    theirs = {"X-Write-Key": other.write_key}
    (await api("POST", "/views", json=shop.view(), headers=theirs)).problem(404, "BANNER_NOT_FOUND")
    assert shop.banner not in await other.shown()
    (await api("GET", "/banners?user_id=ada")).problem(401, "UNAUTHORIZED")
    (await api("GET", "/banners", headers={"X-Write-Key": shop.write_key})).problem(400, "INVALID")
    (await api("GET", "/banners?user_id=bob", headers={"X-Write-Key": shop.write_key, **ada})).problem(
        403, "NOT_YOUR_USER"
    )


async def test_the_loop_closes(
    api: Api, handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    """Fetched, viewed twice, gone; repeated and it still counts once; on the chart a moment later; and explained."""
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_WORKER__PORT": str(free_port())}
    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        shop = await open_shop(api, database, redis, tenant)
        key = {"X-Write-Key": shop.write_key}
        await eventually(lambda: shop.shown())
        first, second = shop.view(), shop.view(view_duration_ms=10, dismissed=True)
        short = shop.view(view_duration_ms=100)
        for told in (first, short, short, first):
            assert (await api("POST", "/views", json=told, headers=key)).status == 202
        assert await shop.shown() == [shop.banner], "one view counts, twice told; a short one does not"
        assert (await api("POST", "/views", json=second, headers=key)).status == 202
        assert await shop.shown() == []
        assert await shop.shown("somebody else") == [shop.banner]
        today = datetime.now(UTC).date()
        path = f"/admin/stats/banners?from={today - timedelta(1)}&to={today + timedelta(2)}&by=banner"

        async def seen() -> bool:
            totals = (await api("GET", path, key=shop.secret_key)).json()["totals"]
            return (totals["views"], totals["dismissals"]) == (2, 1)

        await eventually(seen, what="the chart shows two views")
        told = (await api("GET", f"/admin/events/explain?event_id={first['event_id']}", key=shop.secret_key)).json()
        assert (told["outcome"], told["kind"]) == ("stored", "view"), "only the event store knows if it counted"
        drops = await api("GET", f"/admin/events/drops?from={today}&to={today + timedelta(2)}", key=shop.secret_key)
        assert {row["reason"] for row in drops.json()} <= {"DUPLICATE", "DUPLICATE_DIFFERENT"}
        assert not any(row["kept"] for row in drops.json())
