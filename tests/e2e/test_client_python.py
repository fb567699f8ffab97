"""The Python client against the real server: asked, shown, reported, counted as the vectors say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import pytest

from handbill.client import AsyncClient, Client
from handbill.client.model import Showing
from handbill.client.outbox import now_ms
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.http import Api
from tests.kit.processes import process
from tests.kit.vectors import vectors
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[Api]:
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_API__KILL_TIMEOUT_S": "2"}
    async with (
        process("api", env=env) as running,
        process("worker", "--only", "consume", env=env) as worker,
        aiohttp.ClientSession() as http,
    ):
        await running.log(event="api-ready")
        await worker.log(event="worker-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", http)


@pytest.fixture
async def keys(database: Database, redis: Redis, tenant: int) -> tuple[str, str]:
    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    write = await tenants.create_key(tenant, NewKey(kind="write", name="shop"), actor="test")
    secret = await tenants.create_key(tenant, NewKey(kind="secret", name="desk", scopes=["*"]), actor="test")
    await tenants.stop()
    return write.key, secret.key


async def test_the_loop_by_the_python_client(api: Api, keys: tuple[str, str]) -> None:
    write, secret = keys
    place = await api("POST", "/admin/placements", key=secret, json={"name": "Home", "slug": "home"})
    assert place.status == 201, place.body
    told = {"x_times": 1, "y_hours": 24, "title": "Tea", "cta_link": "https://shop.example.com/tea"}
    made = await api("POST", "/admin/banners", key=secret, json={**told, "z_duration_sec": 3})
    assert made.status == 201, made.body
    banner = made.json()["banner_id"]

    async with AsyncClient(api.base, write_key=write, timeout_s=30) as client:
        await eventually(lambda: client.banners(user_id="ada"), what="the banner is shown")
        assert await client.banners(user_id="ada", placement="home") == [UUID(banner)]
        (decision,) = await client.decide(user_id="ada", placements=["home"])
        assert decision.placement_id == place.json()["placement_id"]
        (found,) = decision.banners
        assert (found.banner_id, found.title, found.z_duration_sec) == (banner, "Tea", 3)
        showing = decision.showing(found, user="ada", session="s-1", device="d-1")
        assert (await client.impression(showing)).kept
        assert (await client.click(showing, "https://shop.example.com/tea")).kept
        # No server believes that it was seen for longer than since it was decided.
        assert (await client.view(showing, visible_ms=3_600_000)).code == "DURATION_TOO_LONG"
        assert (await client.view(showing, visible_ms=0, how="leave")).kept
        assert await client.decide(user_id="ada", placements=["home"]) != [], "what does not count moves no cap"
        others = decision.showing(found, user="bob")
        assert (await client.view(others, visible_ms=1)).state == "refused", "the token was given to somebody else"

    def without_await() -> list[Any]:
        with Client(api.base, write_key=write, timeout_s=30) as client:
            (decision,) = client.decide(user_id="cyd", placements=["home"])
            showing = decision.showing(decision.banners[0], user="cyd")
            assert client.view(showing, visible_ms=0, how="leave").kept
            return client.banners(user_id="somebody-else")

    assert await asyncio.to_thread(without_await) == [UUID(banner)]
    follow = await api("GET", f"{found.click_url}?c=1", allow_redirects=False)
    assert (follow.status, follow.headers["location"]) == (302, "https://shop.example.com/tea")


async def test_views_count_as_the_vectors_say(api: Api, keys: tuple[str, str], engines: Engines, tenant: int) -> None:
    """Each vector is one view by one user; told twice, it is one row, and the row says what the page says."""
    write, secret = keys
    page = vectors()["reports"]
    banners: dict[int, str] = {}
    for seconds in sorted({vector["z_duration_sec"] for vector in page}):
        told = {"x_times": 1, "y_hours": 24, "z_duration_sec": seconds}
        banners[seconds] = (await api("POST", "/admin/banners", key=secret, json=told)).json()["banner_id"]
    sent: dict[str, Any] = {}
    for number, vector in enumerate(page):
        body = {"banner_id": banners[vector["z_duration_sec"]], "user_id": f"u{number}", "event_id": f"view_{number}"}
        sent[f"view_{number}"] = vector
        for _ in range(2):
            reply = await api("POST", "/views", json={**body, **vector["report"]}, headers={"X-Write-Key": write})
            assert reply.status == 202, reply.body
    connection = await asyncpg.connect(engines.postgres_url)
    try:

        async def rows() -> list[Any]:
            found = await connection.fetch("select * from caps.user_views where tenant_id = $1", tenant)
            return found if len(found) >= len(page) else []

        found = await eventually(rows, what="every view is counted")
    finally:
        await connection.close()
    assert len(found) == len(page)
    for row in found:
        vector = sent[row["event_id"]]
        assert row["counted"] is vector["counted"], vector["why"]
        assert ("accidental" in row["marks"]) is vector["accidental"], vector["why"]


async def test_the_report_of_a_campaign_is_what_the_client_sent(
    api: Api, keys: tuple[str, str], engines: Engines, tenant: int
) -> None:
    write, secret = keys

    async def made(path: str, **body: Any) -> Any:
        reply = await api("POST", f"/admin/{path}", key=secret, json=body)
        assert reply.status == 201, reply.body
        return reply.json()

    campaign = (await made("campaigns", name="Tea week"))["campaign_id"]
    await made("placements", name="Home", slug="home")
    variants = [{"key": "a", "title": "A"}, {"key": "b", "title": "B"}]
    fields = {"x_times": 9, "y_hours": 24, "z_duration_sec": 1, "campaign_id": campaign, "variants": variants}
    banner = (await made("banners", title="Tea", cta_link="https://shop.example.com/tea", **fields))["banner_id"]
    users = [f"user-{number}" for number in range(20)]
    async with AsyncClient(api.base, write_key=write, timeout_s=30) as client:
        await eventually(lambda: client.banners(user_id="nobody"), what="the banner is shown")
        showings: list[Showing] = []
        for user in users:
            (decision,) = await client.decide(user_id=user, placements=["home"])
            (found,) = decision.banners
            assert (found.banner_id, found.campaign_id) == (banner, campaign)
            showings.append(decision.showing(found, user=user))
        await eventually(lambda: now_ms() >= showings[-1].at + 1_000, what="the last was shown for its second")
        for number, showing in enumerate(showings):
            await client.impression(showing, send=False)
            await client.view(showing, visible_ms=1_000, send=False)
            if number % 2:
                await client.click(showing, "https://shop.example.com/tea", send=False)
        sent = await client.flush()
    assert [outcome for outcome in sent.values() if not outcome.kept] == []
    assert {showing.banner.variant for showing in showings} == {"a", "b"}

    expected = {"campaign_id": campaign, "impressions": 20, "clicks": 10, "views": 20}
    today = datetime.now(UTC).date()
    days = f"from={today - timedelta(2)}&to={today + timedelta(2)}&interval=total&by=campaign"

    async def reported(more: str) -> bool:
        reply = await api("GET", f"/admin/stats/banners?{days}{more}", key=secret)
        assert reply.status == 200, reply.body
        rows = [{name: row[name] for name in expected} for row in reply.json()["rows"]]
        assert rows == [expected], "everything is the campaign's"
        return True

    await eventually(lambda: reported(""), what="the report is complete")
    await reported(f"&campaign_id={campaign}")
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        for table, count in (("banners.banner_clicks", 10), ("caps.user_views", 20)):
            rows = await connection.fetch(f"select variant from {table} where tenant_id = $1", tenant)
            assert len(rows) == count
            assert {row["variant"] for row in rows} == {"a", "b"}
    finally:
        await connection.close()
