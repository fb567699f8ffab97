"""An API and a worker with an honest tenant and an attackers' one, and what the honest clients see."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from handbill.banners.model import NewBanner, NewPlacement
from handbill.events.model import key
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database, derive
from handbill.infra.sqlfiles import Sql
from handbill.people.model import person_id
from handbill.settings import load as settings_of
from handbill.tenants.model import JwtRules, NewKey, NewTenant, SettingsPatch, TenantPatch
from handbill.wiring.house import build
from tests.kit.attacks import HARD_PATTERNS, Target, heavy_file
from tests.kit.honest_traffic import Site
from tests.kit.ledger import KEYS, ROWS
from tests.kit.processes import Process, process, program
from tests.kit.stack import Stack
from tests.kit.waiting import eventually

STORED = 30_000
LARGE = 100
COLUMNS = ("tenant_id", "at", "received", "event", "event_id", "event_key", "distinct_id", "person_id", "properties")
JWT_SECRET = "the attackers' own secret, thirty-two bytes"
SEEN = Sql(
    "select coalesce(sum(impressions), 0)::int, coalesce(sum(clicks), 0)::int from banners.banner_stats"
    " where tenant_id = any ($1::int[])",
    "beside_seen",
)


async def prepare(built: Stack, base: str) -> tuple[int, Site, Target]:
    """The honest tenant and the attackers' one, each with keys, a placement and a banner."""
    app = build(settings_of(built.env()))
    await app.start()
    try:
        made: list[tuple[int, str, str, str, str]] = []
        for slug in ("shop", "attacker"):
            tenant = (await app.tenants.create_tenant(NewTenant(name=slug, slug=slug), actor="t")).tenant_id
            write = await app.tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="t")
            secret = await app.tenants.create_key(tenant, NewKey(kind="secret", name="s", scopes=["*"]), actor="t")
            place = await app.banners.editor.create_placement(tenant, NewPlacement(name="Home", slug="home"), actor="t")
            new = NewBanner(x_times=2, y_hours=24, z_duration_sec=3, title="Sale", cta_link="https://shop.example/x")
            banner = await app.banners.editor.create_banner(tenant, new, actor="t")
            made.append((tenant, write.key, secret.key, str(banner.banner_id), str(place.placement_id)))
        (shop, write_key, _, banner_id, placement_id), (tenant, key, secret_key, own_banner, own_placement) = made
        for pattern in HARD_PATTERNS:
            hard = msgspec.structs.replace(new, targeting={"url": {"regex": pattern}})
            await app.banners.editor.create_banner(tenant, hard, actor="t")
        patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=JWT_SECRET))
        await app.tenants.change_tenant(tenant, patch, actor="t")
    finally:
        await app.stop()
    await store_history(built, tenant)
    target = Target(base, built.redis_url, tenant, 2, key, secret_key, own_banner, own_placement, JWT_SECRET)
    return shop, Site(base, write_key, banner_id, placement_id), target


async def store_history(built: Stack, tenant: int) -> None:
    """What the attackers' questions read."""
    clickhouse = ClickHouse(built.clickhouse_url)
    await clickhouse.start()
    try:
        await migrate_clickhouse(clickhouse)
        first = datetime(2026, 6, 1, tzinfo=UTC)
        rows = [
            (
                tenant, at := first + timedelta(minutes=2 * n), at, ("view", "buy")[n % 2], f"h{n}",
                key("capture", f"h{n}"), who := f"p{n % 5_000}", person_id(tenant, who),
                f'{{"plan":"pro{n % 40}","amount":{n}}}',
            )
            for n in range(STORED)
        ]  # fmt: skip
        await clickhouse.insert("events", COLUMNS, rows, token="history")
        large = json.dumps({"text": "x" * 200_000})
        rows = [(tenant, row[1] - timedelta(days=20), *row[2:8], large) for row in rows[:LARGE]]
        await clickhouse.insert("events", COLUMNS, rows, token="large")
    finally:
        await clickhouse.stop()


async def upload(target: Target) -> Target:
    headers = {"Authorization": f"Bearer {target.secret_key}", "Content-Type": "text/csv"}
    async with (
        aiohttp.ClientSession(target.base, headers=headers) as session,
        session.post("/admin/imports?name=heavy.csv&region=BR", data=io.BytesIO(heavy_file())) as reply,
    ):
        made = await reply.json()
        assert reply.status == 201, made
    return msgspec.structs.replace(target, import_id=made["import_id"])


@asynccontextmanager
async def own_program(name: str, plan: msgspec.Struct, folder: Path, *args: str) -> AsyncIterator[Process]:
    file = folder / f"{name}.json"
    file.write_bytes(msgspec.json.encode(plan))
    async with program(sys.executable, "-m", f"tests.kit.{name}", str(file), *args) as running:
        yield running


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Traffic:
    """The honest clients, and what they saw in a span of time."""

    def __init__(self, running: Process) -> None:
        self._running = running

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self._running.seen(event="request")

    async def span(self, seconds: float) -> list[dict[str, Any]]:
        """The requests that are sent in the next seconds, once they are answered."""
        since = time.monotonic()
        until = since + seconds

        def is_over() -> bool:
            return any(one.get("sent", 0.0) >= until for one in self._running.logs[-20:])

        await eventually(is_over, what="traffic goes on", timeout=120)
        return [one for one in self.requests if since <= one["sent"] < until]

    async def finish(self) -> dict[str, int]:
        self._running.signal(signal.SIGTERM)
        accepted: dict[str, int] = (await self._running.log(event="finished"))["accepted"]
        return accepted


def p99(requests: list[dict[str, Any]]) -> float:
    took = sorted(one["took"] for one in requests)
    return float(took[int(len(took) * 0.99)])


@asynccontextmanager
async def running(built: Stack, port: int) -> AsyncIterator[list[Process]]:
    async with (
        process("api", env=built.env(HANDBILL_API__PORT=str(port))) as api,
        process("worker", env=built.env()) as worker,
    ):
        await api.log(event="api-ready")
        await worker.log(event="worker-ready")
        yield [api, worker]


@asynccontextmanager
async def connected(built: Stack) -> AsyncIterator[Database]:
    database = Database(derive(built.postgres_url), app_size=1, worker_size=1, direct_size=1)
    await database.start()
    try:
        yield database
    finally:
        await database.stop()


async def is_counted(database: Database, tenant: int, accepted: dict[str, int]) -> bool:
    """Whether each accepted event of the tenant is in PostgreSQL, once. Raises AssertionError while it is not."""
    async with database.worker() as tx:
        rows = {row["kind"]: row["n"] for row in await tx.fetch(ROWS, [tenant])}
        ((impressions, clicks),) = await tx.fetch(SEEN, [tenant])
        keys = await tx.fetchval(KEYS, [tenant])
    assert rows == {kind: accepted[kind] for kind in ("impression", "click", "view")}
    assert (impressions, clicks) == (accepted["impression"], accepted["click"])
    assert keys == sum(accepted.values())
    return True
