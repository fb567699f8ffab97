"""`jwt.required` over real HTTP: nothing counts for a user without proof of who it is; and a server speaks for any."""

from __future__ import annotations

import uuid
from typing import Any

import aiohttp

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.conftest import MakeTenant
from tests.e2e.test_tracking import EVENTS, Shop, open_shop, token
from tests.kit.http import Api, Reply
from tests.kit.processes import process

SEAL = "a seal key for tests"


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


async def require(shop: Shop, *, required: bool = True) -> None:
    jwt = {"kind": "hs256", "required": required}
    reply = await shop.api("PATCH", "/admin/tenant", key=shop.secret_key, json={"settings": {"jwt": jwt}})
    assert reply.status == 200, reply.body
    assert reply.json()["settings"]["jwt"]["required"] is required


async def test_without_a_users_token_nothing_counts_where_it_is_required(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int, make_tenant: MakeTenant
) -> None:
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0"}
    async with process("api", env=env) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        api = Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)
        shop = await open_shop(api, database, redis, tenant, x_times=1)
        write = {"X-Write-Key": shop.write_key}

        # off, the default: the write key alone is taken, and marked as unverified
        assert (await api("POST", "/views", json=shop.view("victim1"), headers=write)).status == 202
        assert await shop.shown("victim1") == []
        early = (await api("POST", "/v1/decide", json={"user_id": "victim4"}, headers=write)).json()

        await require(shop)
        await _check_unproved_decision(api, shop, early)
        await _check_views(api, shop, write)
        await _check_decisions(api, shop, write)
        await _check_reports(api, shop)
        await _check_servers(api, shop, write)
        other = await open_shop(api, database, redis, await make_tenant())
        both = write | bearer(other.secret_key)
        (await api("GET", "/banners?user_id=ada", headers=both)).problem(401, "UNAUTHORIZED")
        bad = await api("PATCH", "/admin/tenant", key=shop.secret_key, json=_settings(kind="none", required=True))
        assert bad.problem(400, "INVALID")["faults"][0]["field"] == "settings.jwt.required"

        await require(shop, required=False)
        assert (await api("POST", "/views", json=shop.view("victim3"), headers=write)).status == 202


def _settings(**jwt: Any) -> dict[str, Any]:
    return {"settings": {"jwt": jwt}}


async def _shown(api: Api, headers: dict[str, str], query: str = "") -> list[str]:
    reply = await api("GET", f"/banners{query}", headers=headers)
    assert reply.status == 200, reply.body
    found: list[str] = reply.json()["banners"]
    return found


async def _check_views(api: Api, shop: Shop, write: dict[str, str]) -> None:
    """The victim: a view by the write key alone does not move the cap; the user's own does."""
    victim = write | bearer(token("victim2"))
    refused = await api("POST", "/views", json=shop.view("victim2"), headers=write)
    refused.problem(401, "USER_TOKEN_REQUIRED")
    batch = {"events": [shop.view("victim2"), shop.view("victim2")]}
    (await api("POST", "/views/batch", json=batch, headers=write)).problem(401, "USER_TOKEN_REQUIRED")
    assert await _shown(api, victim) == [shop.banner]
    decided = (await api("POST", "/v1/decide", json={}, headers={**write, **victim})).json()
    proof = decided["decisions"][0]["banners"][0]["token"]
    batch = {"events": [shop.view("victim2"), shop.view("victim2", token=proof, view_duration_ms=0, dismissed=True)]}
    mixed = await api("POST", "/views/batch", json=batch, headers=write)
    assert mixed.status == 202, mixed.body
    (rejected,) = mixed.json()["data"]["rejected"]
    assert (rejected["index"], rejected["code"]) == (0, "USER_TOKEN_REQUIRED")
    assert await _shown(api, victim) == []


async def _check_unproved_decision(api: Api, shop: Shop, early: dict[str, Any]) -> None:
    """The token of a decision for a user whom nobody proved, and that of an explanation, prove nobody either."""
    headers = bearer(shop.secret_key)
    explained = await api("POST", "/v1/decide?explain=1", json={"user_id": "victim4"}, headers=headers)
    for found in (early, explained.json()):
        unproved = found["decisions"][0]["banners"][0]["token"]
        view = shop.view("victim4", token=unproved, view_duration_ms=0, dismissed=True)
        refused = await api("POST", "/views", json=view, headers={"X-Write-Key": shop.write_key})
        refused.problem(401, "USER_TOKEN_REQUIRED")


async def _check_decisions(api: Api, shop: Shop, write: dict[str, str]) -> None:
    (await api("GET", "/banners?user_id=ada", headers=write)).problem(401, "USER_TOKEN_REQUIRED")
    (await api("POST", "/v1/decide", json={"user_id": "ada"}, headers=write)).problem(401, "USER_TOKEN_REQUIRED")
    assert await _shown(api, bearer(token("ada")) | write) == [shop.banner]


async def _check_reports(api: Api, shop: Shop) -> None:
    """Impressions and clicks: anonymous ones as ever; those of a user with proof."""
    decided = await api("POST", "/v1/decide", json={}, headers={"X-Write-Key": shop.write_key} | bearer(token("ada")))
    proof = decided.json()["decisions"][0]["banners"][0]["token"]

    async def report(path: str = "impression", *, headers: dict[str, str] | None = None, **more: Any) -> Reply:
        more = {"destinationUrl": "https://shop.example", **more} if path == "click" else more
        return await api("POST", f"{EVENTS}/{path}", json=shop.impression(**more), headers=headers or {})

    for path in ("impression", "click"):
        assert (await report(path)).status == 202
        (await report(path, userId="ada")).problem(401, "USER_TOKEN_REQUIRED")
        assert (await report(path, userId="ada", headers=bearer(token("ada")))).status == 202
        (await report(path, userId="ada", headers=bearer(token("bob")))).problem(403, "NOT_YOUR_USER")
        (await report(path, userId="ada", headers=bearer("nonsense"))).problem(401, "BAD_TOKEN")
        assert (await report(path, userId="ada", token=proof)).status == 202
        (await report(path, userId="bob", token=proof)).problem(403, "BAD_DECISION_TOKEN")
    batch = {"events": [shop.impression(), shop.impression(userId="ada"), shop.impression(userId="ada", token=proof)]}
    data = (await api("POST", f"{EVENTS}/impression/batch", json=batch)).json()["data"]
    assert (data["accepted"], [each["index"] for each in data["rejected"]]) == (2, [1])


async def _check_servers(api: Api, shop: Shop, write: dict[str, str]) -> None:
    """A secret key speaks for any user, if it has the scope for that; beside the write key or alone."""
    server = bearer(shop.secret_key)
    assert await _shown(api, server, "?user_id=cleo") == [shop.banner]
    assert await _shown(api, server | write, "?user_id=cleo") == [shop.banner]
    assert (await api("POST", "/views", json=shop.view("cleo"), headers=server)).status == 202
    assert await _shown(api, server, "?user_id=cleo") == []
    click = shop.impression(userId="cleo", destinationUrl="https://shop.example")
    assert (await api("POST", f"{EVENTS}/click", json=click, headers=server)).status == 202
    made = await api("POST", "/admin/keys", key=shop.secret_key, json={
        "kind": "secret", "name": "reader", "scopes": ["audit:read"],
    })  # fmt: skip
    small = bearer(made.json()["key"])
    (await api("GET", "/banners?user_id=cleo", headers=small)).problem(401, "USER_TOKEN_REQUIRED")
    wrong = await api("GET", "/banners?user_id=cleo", headers={"X-Write-Key": shop.secret_key})
    assert "secret key" in wrong.problem(401, "UNAUTHORIZED")["detail"]
    unknown = await api("GET", "/banners?user_id=cleo", headers=bearer("hbs_" + uuid.uuid4().hex))
    assert "secret key" in unknown.problem(401, "UNAUTHORIZED")["detail"]
