"""A frozen PostgreSQL and a running installation: hot routes answer, nothing they accept is lost or counted twice."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from handbill.banners.model import NewBanner, NewPlacement
from handbill.infra.migrations import migrate
from handbill.infra.postgres import Database, derive
from handbill.infra.sqlfiles import Sql
from handbill.settings import load as settings_of
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import build
from tests.conftest import OwnEngine
from tests.kit.freezing import frozen
from tests.kit.ledger import KEYS, ROWS
from tests.kit.processes import free_port
from tests.kit.stack import Stack, stack
from tests.kit.waiting import eventually

EVENTS = "/api/banners/events"
HANG_S = 12.0
"""Only a guard: a request that waits for PostgreSQL takes at least fifteen seconds."""
SEEN = Sql(
    "select coalesce(sum(impressions), 0)::int, coalesce(sum(clicks), 0)::int from banners.banner_stats"
    " where tenant_id = any ($1::int[])",
    "test_seen",
)


@dataclass
class Site:
    """A shop's pages: its key, its banner, and everything that was accepted from them."""

    web: aiohttp.ClientSession
    metrics_port: int
    tenant: int
    key: str
    new_key: str
    banner: str
    placement: str
    accepted: Counter[str] = field(default_factory=Counter)
    token: str = ""

    async def send(self, method: str, path: str, **how: Any) -> tuple[int, Any, str]:
        how.setdefault("headers", {"X-Write-Key": self.key})
        async with self.web.request(method, path, allow_redirects=False, **how) as reply:
            body = await reply.json() if "json" in reply.headers.get("content-type", "") else None
            return reply.status, body, reply.headers.get("retry-after", "")

    def tracked(self, **more: Any) -> dict[str, Any]:
        named = {"bannerPublicId": self.banner, "placementPublicId": self.placement}
        return {**named, "correlationId": uuid.uuid4().hex, **more}

    async def decide(self) -> None:
        """Both routes that decide, for somebody who has seen nothing."""
        user = uuid.uuid4().hex
        status, body, _ = await self.send("GET", f"/banners?user_id={user}")
        assert (status, body["banners"]) == (200, [self.banner]), body
        status, body, _ = await self.send("POST", "/v1/decide", json={"user_id": user, "placements": ["home"]})
        assert status == 200, body
        (decided,) = body["decisions"][0]["banners"]
        self.token = decided["token"]

    async def track(self) -> None:
        """One event of each kind and a batch, each sent twice with the same id, as a careful client does."""
        view = {"banner_id": self.banner, "user_id": uuid.uuid4().hex, "event_id": uuid.uuid4().hex}
        captured = {"event": "seen", "distinct_id": "ada", "event_id": str(uuid.uuid4())}
        sent: list[tuple[str, Any]] = [
            (f"{EVENTS}/impression", self.tracked()),
            (f"{EVENTS}/click", self.tracked(destinationUrl="https://shop.example/x")),
            (f"{EVENTS}/impression/batch", {"events": [self.tracked(), self.tracked()]}),
            ("/views", {**view, "view_duration_ms": 3000}),
            ("/v1/events", {"events": [captured]}),
        ]
        for path, body in sent * 2:
            status, answer, _ = await self.send("POST", path, json=body)
            assert status == 202, (path, answer)
        for _ in range(2):
            status, _, _ = await self.send("GET", f"/r/{self.token}")
            assert status == 302
        self.accepted.update({"impression": 3, "click": 2, "view": 1, "captured": 1})

    async def lookups(self) -> dict[str, float]:
        """How many look-ups of hot routes were answered, timed out (somebody waited) and were refused at once."""
        async with self.web.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as reply:
            text = await reply.text()
        found = re.findall(r'^handbill_postgres_hot_lookups_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE)
        return {outcome: float(number) for outcome, number in found}


async def prepare(built: Stack) -> tuple[int, str, str, str, str]:
    """A tenant with two keys, a placement and a banner."""
    app = build(settings_of(built.env()))
    await app.start()
    try:
        tenant = (await app.tenants.create_tenant(NewTenant(name="Shop", slug="shop"), actor="t")).tenant_id
        first, second = [
            (await app.tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="t")).key for _ in range(2)
        ]
        place = await app.banners.editor.create_placement(tenant, NewPlacement(name="Home", slug="home"), actor="t")
        new = NewBanner(x_times=2, y_hours=24, z_duration_sec=3, title="Sale", cta_link="https://shop.example/x")
        banner = await app.banners.editor.create_banner(tenant, new, actor="t")
    finally:
        await app.stop()
    return tenant, first, second, str(banner.banner_id), str(place.placement_id)


@asynccontextmanager
async def running(built: Stack) -> AsyncIterator[Site]:
    prepared = await prepare(built)
    metrics = free_port()
    timeout = aiohttp.ClientTimeout(total=HANG_S)
    short = {
        "HANDBILL_TENANTS__KEY_CACHE_SECONDS": "0.1",  # every answer about a key is old soon
        "HANDBILL_POSTGRES__FALLBACK_TIMEOUT_MS": "250",
        "HANDBILL_POSTGRES__LOOKUP_TIMEOUT_MS": "2000",
        "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0",
        "HANDBILL_API__METRICS_PORT": str(metrics),
    }
    async with (
        built.worker("--only", "consume"),
        built.api(**short) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as web,
    ):
        yield Site(web, metrics, *prepared)


async def test_hot_routes_answer_while_postgresql_is_frozen(own_postgres: OwnEngine) -> None:
    engine = await own_postgres(durable=False)
    await migrate(engine.url)
    async with stack(postgres=False) as built:
        built.postgres_url = engine.url
        async with running(built) as site:
            unseen = {"X-Write-Key": site.new_key}

            async def is_warm() -> bool:
                await site.decide()
                return True

            await eventually(is_warm, what="a first decision")
            await site.track()
            with frozen(engine.pid):
                await site.decide()
                await site.track()
                status, body, retry_after = await site.send(
                    "GET", "/banners?user_id=a", headers={"X-Write-Key": site.new_key}
                )
                assert (status, body["code"], retry_after) == (503, "POSTGRES_AWAY", "1")
                unknown = site.tracked(bannerPublicId=str(uuid.uuid4()))
                status, body, retry_after = await site.send("POST", f"{EVENTS}/impression", json=unknown)
                assert (status, body["code"], retry_after) == (503, "POSTGRES_AWAY", "1")
                waited = (await site.lookups())["timed_out"]
                for _ in range(5):
                    await site.decide()
                    await site.track()
                    assert (await site.send("POST", f"{EVENTS}/impression", json=unknown))[0] == 503
                assert (await site.lookups())["timed_out"] == waited, "nobody waits for what is known to be silent"

            async def is_back() -> bool:
                return (await site.send("GET", "/banners?user_id=a", headers=unseen))[0] == 200

            await eventually(is_back, what="a key that only PostgreSQL knew")
            await site.decide()
            await site.track()
            database = Database(derive(engine.url), app_size=1, worker_size=1, direct_size=1)
            await database.start()
            try:
                await eventually(lambda: is_counted(database, site), what="everything is counted once")
            finally:
                await database.stop()


async def is_counted(database: Database, site: Site) -> bool:
    tenants, accepted = [site.tenant], site.accepted
    async with database.worker() as tx:
        rows = {row["kind"]: row["n"] for row in await tx.fetch(ROWS, tenants)}
        ((impressions, clicks),) = await tx.fetch(SEEN, tenants)
        keys = await tx.fetchval(KEYS, tenants)
    assert rows == {kind: accepted[kind] for kind in ("impression", "click", "view")}
    assert (impressions, clicks) == (accepted["impression"], accepted["click"])
    assert keys == accepted.total()
    return True
