"""One tenant and somebody without a key do their worst; the traffic of another tenant hardly notices it."""

from __future__ import annotations

import io
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
from tests.kit.processes import Process, free_port, process, program
from tests.kit.stack import Stack, stack
from tests.kit.waiting import eventually

QUIET_S = 5.0
ATTACK_S = 15.0
PAIRS = 3
FACTOR, OVER_S = 3.0, 0.1
MEMORY_FACTOR, MEMORY_OVER = 1.2, 64 << 20
STORED = 30_000
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
        (shop, write_key, _, banner_id, placement_id), (tenant, *rest) = made
        for pattern in HARD_PATTERNS * int(os.environ.get("HBTEST_BANNERS", "1")):
            hard = msgspec.structs.replace(new, targeting={"url": {"regex": pattern}})
            await app.banners.editor.create_banner(tenant, hard, actor="t")
        patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=JWT_SECRET))
        await app.tenants.change_tenant(tenant, patch, actor="t")
    finally:
        await app.stop()
    await store_history(built, tenant)
    target = Target(base, built.redis_url, tenant, 2, *rest[:2], rest[2], rest[3], JWT_SECRET)
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
                tenant, at := first + timedelta(minutes=2 * n), at, ("view", "buy")[n % 2], f"h{n}", key("capture", f"h{n}"),
                who := f"p{n % 5_000}", person_id(tenant, who), f'{{"plan":"pro{n % 40}","amount":{n}}}',
            )
            for n in range(STORED)
        ]  # fmt: skip
        await clickhouse.insert("events", COLUMNS, rows, token="history")
        large = f'{{"text":"{"x" * 200_000}"}}'
        rows = [(tenant, at - timedelta(days=20), *row[2:8], large) for row in rows[:300] for at in (row[1],)]
        await clickhouse.insert("events", COLUMNS, rows, token="large")
    finally:
        await clickhouse.stop()


async def upload(target: Target) -> Target:
    headers = {"Authorization": f"Bearer {target.secret_key}", "Content-Type": "text/csv"}
    async with aiohttp.ClientSession(target.base, headers=headers) as session:
        async with session.post("/admin/imports?name=heavy.csv&region=BR", data=io.BytesIO(heavy_file())) as reply:
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
        await eventually(
            lambda: any(one["sent"] >= until for one in self._running.logs[-20:]), what="traffic goes on", timeout=120
        )
        return [one for one in self.requests if since <= one["sent"] < until]

    async def finish(self) -> dict[str, int]:
        self._running.signal(signal.SIGTERM)
        accepted: dict[str, int] = (await self._running.log(event="finished"))["accepted"]
        return accepted


def p99(requests: list[dict[str, Any]]) -> float:
    took = sorted(one["took"] for one in requests)
    return float(took[int(len(took) * 0.99)])


async def test_honest_traffic_beside_all_attacks(tmp_path: Path) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    chosen = os.environ.get("HBTEST_ATTACKS", "").split()
    async with stack(clickhouse=True) as built:
        shop, site, target = await prepare(built, base)
        async with (
            process("api", env=built.env(HANDBILL_API__PORT=str(port))) as api,
            process("worker", env=built.env()) as worker,
        ):
            await api.log(event="api-ready")
            await worker.log(event="worker-ready")
            target = await upload(target)
            async with own_program("honest_traffic", site, tmp_path) as honest:
                await honest.log(event="request", kind="health", ok=True)
                traffic = Traffic(honest)
                async with own_program("attacker", target, tmp_path, *chosen) as attacker:
                    print(await attacker.log(event="prepared", timeout=300))
                    await traffic.span(1.0)
                    before = {one.name: resident(one.pid) for one in (api, worker)}
                    cpu0 = cpu(api.pid), cpu(worker.pid), cpu(attacker.pid), cpu(honest.pid)
                    quiet = await traffic.span(QUIET_S)
                    cpu1 = cpu(api.pid), cpu(worker.pid), cpu(attacker.pid), cpu(honest.pid)
                    attacker.signal(signal.SIGUSR1)
                    await attacker.log(event="begun")
                    beside = await traffic.span(ATTACK_S)
                    cpu2 = cpu(api.pid), cpu(worker.pid), cpu(attacker.pid), cpu(honest.pid)
                    attacker.signal(signal.SIGTERM)
                    done = await attacker.log(event="finished", timeout=120)
                after = {one.name: resident(one.pid) for one in (api, worker)}
                print(done)
                print(*[l[:500] for l in attacker.lines if not l.startswith("{")], sep="\n")
                print("quiet", len(quiet), p99(quiet), max(x["took"] for x in quiet))
                print("beside", len(beside), p99(beside), max(x["took"] for x in beside))
                print("slowest", sorted(beside, key=lambda x: -x["took"])[:8])
                print("cpu quiet", [round(b - a, 2) for a, b in zip(cpu0, cpu1)], "attack", [round(b - a, 2) for a, b in zip(cpu1, cpu2)])
                print("memory", before, after)
                failed = [one for one in traffic.requests if not one["ok"]]
                print("failed", len(failed), failed[:5])
                accepted = await traffic.finish()
            database = Database(derive(built.postgres_url), app_size=1, worker_size=1, direct_size=1)
            await database.start()
            try:
                await eventually(lambda: is_counted(database, shop, accepted), what="everything is counted once", timeout=120)
            finally:
                await database.stop()
            print([l for l in api.logs if l.get("level") in ("error", "warning")][:5])
            print([l for l in worker.logs if l.get("level") in ("error",)][:5])
        assert not failed
        assert p99(beside) <= FACTOR * p99(quiet) + OVER_S


def cpu(pid: int) -> float:
    f = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


async def is_counted(database: Database, tenant: int, accepted: dict[str, int]) -> bool:
    async with database.worker() as tx:
        rows = {row["kind"]: row["n"] for row in await tx.fetch(ROWS, [tenant])}
        impressions, clicks = await tx.fetchrow(SEEN, [tenant])
        keys = await tx.fetchval(KEYS, [tenant])
    assert rows == {kind: accepted[kind] for kind in ("impression", "click", "view")}
    assert (impressions, clicks) == (accepted["impression"], accepted["click"])
    assert keys == sum(accepted.values())
    return True
