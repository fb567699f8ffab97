"""Clicks through `/r/` over HTTP: whose they are, what is not counted, and how long a link may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from handbill.banners.tokens import Tokens
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import to_ms
from handbill.settings import load as settings_of
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from handbill.wiring import secrets
from tests.kit.engines import Engines
from tests.kit.http import Api, Reply
from tests.kit.processes import process
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"
TARGET = "https://shop.example.com/sale?a=1"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148"
DESKTOP = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"
ROWS = Sql(
    "select c.user_id, c.session_id, c.device_type, c.country_code, g.public_id as campaign"
    " from banners.banner_clicks c left join banners.campaigns g on g.id = c.campaign_id where c.tenant_id = $1",
    "link_clicks",
    "tests",
)
NUMBER = Sql("select id from banners.banners where tenant_id = $1 and public_id = $2", "banner_number", "tests")


@pytest.fixture
async def api(handbill_env: dict[str, str], engines: Engines, clickhouse: ClickHouse) -> AsyncIterator[Api]:
    await migrate_clickhouse(clickhouse)
    handbill_env |= {"HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url}
    async with (
        process("api", env=handbill_env) as running,
        process("worker", env=handbill_env) as worker,
        aiohttp.ClientSession() as client,
    ):
        await running.log(event="api-ready")
        await worker.log(event="worker-ready")
        yield Api(running, f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}", client)


async def test_people_who_click_through_links_are_people(
    api: Api, handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    write = (await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")).key
    secret = (await tenants.create_key(tenant, NewKey(kind="secret", name="s", scopes=["*"]), actor="test")).key
    await tenants.stop()

    async def admin(path: str, body: Any = None) -> Any:
        reply = await api("POST" if body else "GET", f"/admin/{path}", key=secret, json=body)
        assert reply.status in (200, 201), reply.body
        return reply.json()

    campaign = (await admin("campaigns", {"name": "Summer"}))["campaign_id"]
    new = {
        "name": "Sale",
        "x_times": 9,
        "y_hours": 24,
        "z_duration_sec": 3,
        "cta_link": TARGET,
        "campaign_id": campaign,
    }
    banner = (await admin("banners", new))["banner_id"]

    async def decided(user: str, session: str) -> list[dict[str, Any]]:
        body = {"user_id": user, "session_id": session, "context": {"country": "nl"}}
        headers = {"X-Write-Key": write, "User-Agent": PHONE}
        reply = await api("POST", "/v1/decide", json=body, headers=headers)
        assert reply.status == 200, reply.body
        found: list[dict[str, Any]] = reply.json()["decisions"][0]["banners"]
        return found

    async def follow(link: str, method: str = "GET", **headers: str) -> Reply:
        return await api(method, link, allow_redirects=False, headers={"User-Agent": DESKTOP, **headers})

    place = (await admin("placements", {"name": "Home", "slug": "home"}))["placement_id"]
    seen = {"bannerPublicId": banner, "placementPublicId": place, "correlationId": "seen"}
    assert (await api("POST", "/api/banners/events/impression", json=seen)).status == 202
    await eventually(lambda: decided("somebody", "s"), what="the banner is shown")
    longest = "😀" * 200
    people = {"ann": "s-ann", "bob": "s-bob", longest: longest}
    for user, session in people.items():
        (shown,) = await decided(user, session)
        assert (shown["campaign_id"], shown["click_url"]) == (campaign, f"/r/{shown['token']}")
        assert (await follow(shown["click_url"], "HEAD")).status == 302
        nobodys = shown["click_url"] + "?c=nobodys&anonymous=1"
        again = shown["click_url"] + "?c=again"
        for link in (shown["click_url"], shown["click_url"], shown["click_url"] + "?c=", again, nobodys):
            reply = await follow(link)
            assert (reply.status, reply.headers["location"]) == (302, TARGET)
            assert (reply.headers["referrer-policy"], reply.headers["cache-control"]) == ("no-referrer", "no-store")
        assert (await follow(shown["click_url"][:-8])).status == 404

    async with database.worker() as tx:
        number = await tx.fetchval(NUMBER, tenant, UUID(banner))
    tokens = Tokens(secrets.derived(settings_of(handbill_env), "decision tokens"))
    person = tokens.person("carl", "s-carl", "mobile", "NL", proved=False)
    long_ago = to_ms(datetime.now(UTC) - timedelta(days=2))
    reply = await follow(f"/r/{tokens.mint(tenant, number, 0, 0, b'', long_ago, person).decode()}")
    assert (reply.status, reply.headers["location"]) == (302, TARGET)

    today = datetime.now(UTC).date()
    days = f"from={today - timedelta(1)}&to={today + timedelta(2)}"

    async def counted() -> bool:
        answer = await admin(f"stats/banners?{days}&interval=total&by=campaign&uniques=true")
        (row,) = answer["rows"] or ({"clicks": 0, "campaign_id": None},)
        uniques = answer["uniques"]
        unidentified = (uniques["unidentified"] or {"clicks": 0})["clicks"]
        found = (row["clicks"], row["campaign_id"], uniques["clicks"], unidentified)
        return found == (3 * len(people), campaign, len(people), len(people))

    await eventually(counted, timeout=60, what="six clicks of three people, and three of nobody")
    async with database.tenant(tenant) as tx:
        rows = [dict(row) for row in await tx.fetch(ROWS, tenant)]
    assert len(rows) == 3 * len(people)
    sessions = {None: None} | people
    for row in rows:
        known = {"session_id": sessions[row["user_id"]], "device_type": "mobile", "country_code": "NL"}
        assert row == {"user_id": row["user_id"], "campaign": UUID(campaign), **known}
    assert sum(row["user_id"] is None for row in rows) == len(people)

    async def dropped() -> bool:
        drops = {row["reason"]: row["events"] for row in await admin(f"events/drops?{days}")}
        return drops.get("LINK_TOO_OLD") == 1

    async def named() -> bool:
        reply = await api("GET", "/v1/insights/explain?event_id=seen", key=secret)
        return bool(reply.json()["names"] == {"banner": "Sale", "placement": "Home", "campaign": "Summer"})

    await eventually(dropped, timeout=60, what="the click by an old link is a drop")
    await eventually(named, timeout=60, what="an event's banner, placement and campaign by their names")
