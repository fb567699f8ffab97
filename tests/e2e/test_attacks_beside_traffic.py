"""One tenant and somebody without a key do their worst; the traffic of another tenant hardly notices it."""

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
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

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
from tests.kit.attacker import EXTRAS
from tests.kit.attacks import ATTACKS, HARD_PATTERNS, Target, heavy_file
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
        (shop, write_key, _, banner_id, placement_id), (tenant, *rest) = made
        for pattern in HARD_PATTERNS:
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


class Pair(NamedTuple):
    """A quiet round and one beside the attacks."""

    quiet: list[dict[str, Any]]
    beside: list[dict[str, Any]]
    answers: dict[str, dict[str, int]]
    longest: dict[str, float]
    waiting: float
    """Processes that wanted each core. Others may load the machine as well: then everything takes so much longer."""

    @property
    def is_close(self) -> bool:
        return p99(self.beside) <= FACTOR * p99(self.quiet) + OVER_S * max(1.0, self.waiting)

    def __str__(self) -> str:
        slowest = sorted(self.beside, key=lambda one: -float(one["took"]))[:5]
        return (
            f"p99 {p99(self.quiet):.3f} s quiet, {p99(self.beside):.3f} s beside attacks; processes for each core:"
            f" {self.waiting:.1f}; slowest: {slowest}; attacks: {self.answers}; longest: {self.longest}"
        )


async def play(traffic: Traffic, attacker: Process) -> Pair:
    quiet = await traffic.span(QUIET_S)
    attacker.signal(signal.SIGUSR1)
    await attacker.log(event="begun")
    beside = await traffic.span(ATTACK_S)
    attacker.signal(signal.SIGTERM)
    done = await attacker.log(event="finished", timeout=120)
    return Pair(quiet, beside, done["answers"], done["longest"], os.getloadavg()[0] / (os.cpu_count() or 1))


async def play_until_close(traffic: Traffic, target: Target, folder: Path, servers: list[Process]) -> list[Pair]:
    """At most PAIRS: what else the machine does comes in waves, while what an attack costs is there every time."""
    pairs: list[Pair] = []
    before: list[int] = []
    while len(pairs) < PAIRS and not any(pair.is_close for pair in pairs):
        async with own_program("attacker", target, folder) as attacker:
            await attacker.log(event="prepared", timeout=300)
            before = before or [resident(server.pid) for server in servers]
            pairs.append(await play(traffic, attacker))
            print(pairs[-1])
    after = [resident(server.pid) for server in servers]
    for server, then, now in zip(servers, before, after, strict=True):
        assert now <= MEMORY_FACTOR * then + MEMORY_OVER, (server.name, then, now)
    return pairs


def check_answers(pair: Pair) -> None:
    """Every attack got through to what it attacks, and none broke anything."""
    assert pair.answers.keys() == {*ATTACKS, *EXTRAS}
    for name, answers in pair.answers.items():
        assert not [status for status in answers if status[0] == "5" and status != "503"], (name, answers)
        assert "timeout" not in answers, (name, answers)
    for name in ("targeting_patterns", "heavy_questions", "large_answers", "previews"):
        assert pair.answers[name].get("200"), (name, pair.answers[name])


@asynccontextmanager
async def running(built: Stack, port: int) -> AsyncIterator[list[Process]]:
    async with (
        process("api", env=built.env(HANDBILL_API__PORT=str(port))) as api,
        process("worker", env=built.env()) as worker,
    ):
        await api.log(event="api-ready")
        await worker.log(event="worker-ready")
        yield [api, worker]


@pytest.mark.timeout(480)
async def test_honest_traffic_hardly_notices_attacks(tmp_path: Path) -> None:
    """No honest request fails, p99 stays close to that of a quiet round, memory stays flat, each event counts once."""
    port = free_port()
    async with stack(clickhouse=True) as built:
        shop, site, target = await prepare(built, f"http://127.0.0.1:{port}")
        async with running(built, port) as servers:
            target = await upload(target)
            async with own_program("honest_traffic", site, tmp_path) as honest:
                await honest.log(event="request", kind="health", ok=True)
                traffic = Traffic(honest)
                pairs = await play_until_close(traffic, target, tmp_path, servers)
                accepted = await traffic.finish()
            assert [one for one in traffic.requests if not one["ok"]] == []
            for pair in pairs:
                check_answers(pair)
            assert any(pair.is_close for pair in pairs), "\n".join(map(str, pairs))
            async with connected(built) as database:
                await eventually(lambda: is_counted(database, shop, accepted), timeout=120, what="all is counted once")


@asynccontextmanager
async def connected(built: Stack) -> AsyncIterator[Database]:
    database = Database(derive(built.postgres_url), app_size=1, worker_size=1, direct_size=1)
    await database.start()
    try:
        yield database
    finally:
        await database.stop()


async def is_counted(database: Database, tenant: int, accepted: dict[str, int]) -> bool:
    async with database.worker() as tx:
        rows = {row["kind"]: row["n"] for row in await tx.fetch(ROWS, [tenant])}
        impressions, clicks = await tx.fetchrow(SEEN, [tenant])
        keys = await tx.fetchval(KEYS, [tenant])
    assert rows == {kind: accepted[kind] for kind in ("impression", "click", "view")}
    assert (impressions, clicks) == (accepted["impression"], accepted["click"])
    assert keys == sum(accepted.values())
    return True
