"""Knowing for minutes while everything is killed: workers, the api, Redis, ClickHouse and PostgreSQL, in turn.

Product events with identifications, one request in ten sent twice. In the end both stores have every answered event
once, and of the same person as the fold over the ledger says; before and after all overrides are squashed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from handbill.events.service import EventsService
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.embedded.clickhouse import start_clickhouse
from handbill.infra.embedded.postgres import start_postgres
from handbill.infra.embedded.process import Engine
from handbill.infra.embedded.redis import start_redis
from handbill.infra.migrations import migrate, migrate_clickhouse
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.people.squash import Squash
from handbill.tenants.model import NewKey, NewTenant
from handbill.tenants.service import TenantService
from tests.kit.knower import Knower, check, settled
from tests.kit.loop import loop
from tests.kit.processes import free_port
from tests.kit.stack import Stack
from tests.kit.tracker import Undying
from tests.kit.waiting import eventually
from tests.soak.context import Context
from tests.soak.count_under_fire import drained

EVERY_S = 4.0
AWAY_S = 3.0
PARKED = Sql("select count(*)::int from events.parked", "soak_parked")
LOST = Sql("select count(*)::int from events.ch_batches where lost_at is not null", "soak_lost")
STARTS: dict[str, Callable[..., Awaitable[Engine]]] = {
    "postgres": start_postgres, "redis": start_redis, "clickhouse": start_clickhouse,
}  # fmt: skip


class Engines:
    """Engines that are killed and come back at their places."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.running: dict[str, Engine] = {}
        self.kills = dict.fromkeys(STARTS, 0)

    async def start(self, name: str) -> None:
        known = self.running.get(name)
        port = int(known.url.rpartition(":")[2].partition("/")[0]) if known else None
        self.running[name] = await STARTS[name](self._home, port=port)

    async def strike(self, name: str, away_s: float) -> None:
        os.kill(self.running[name].pid, signal.SIGKILL)
        await self.running[name].wait()
        self.kills[name] += 1
        await asyncio.sleep(away_s)
        await self.start(name)

    async def stop(self) -> None:
        for name in ("clickhouse", "redis", "postgres"):
            if name in self.running:
                await self.running[name].stop()


@contextlib.asynccontextmanager
async def house(ctx: Context) -> AsyncIterator[tuple[Engines, Stack, Database, Redis, ClickHouse]]:
    """Three engines that may be killed, migrated, and adapters of our own."""
    async with ctx.stack(postgres=False, redis=False) as built:
        own = Engines(built.home / "engines")
        try:
            for name in STARTS:
                await own.start(name)
            built.postgres_url, built.redis_url = own.running["postgres"].url, own.running["redis"].url
            built.clickhouse_url = own.running["clickhouse"].url
            await migrate(built.postgres_url)
            database, redis = Database(derive(built.postgres_url)), Redis(built.redis_url, timeout=30)
            clickhouse = ClickHouse(built.clickhouse_url)
            parts = (database, redis, clickhouse)
            for part in parts:
                await part.start()
            await migrate_clickhouse(clickhouse)
            try:
                yield own, built, database, redis, clickhouse
            finally:
                for part in reversed(parts):
                    await part.stop()
        finally:
            await own.stop()


async def a_knower(ctx: Context, database: Database, redis: Redis, port: int, tenants: int = 4) -> Knower:
    keys = {}
    service = TenantService(database, redis, seal_key=b"0" * 32, clock=SystemClock())
    for number in range(tenants):
        new = NewTenant(name=f"Shop {number}", slug=f"shop-{number}")
        tenant = (await service.create_tenant(new, actor="soak")).tenant_id
        made = await service.create_key(tenant, NewKey(kind="write", name="shop"), actor="soak")
        keys[tenant] = made.key
    await service.stop()
    return Knower(f"http://127.0.0.1:{port}", keys, ctx.random)


async def exact(database: Database, redis: Redis, clickhouse: ClickHouse, knower: Knower) -> dict[str, Any]:
    await drained(database, redis)
    await eventually(lambda: settled(database), timeout=300, what="everything is folded, told and shipped")
    found: dict[str, Any] = dict(await check(database, clickhouse, knower))
    async with loop(database, redis) as ours:
        events: EventsService = ours.events
        squashed = 0
        while some := await Squash(database, clickhouse, events.shipments).run():
            squashed += some
    await check(database, clickhouse, knower)
    async with database.worker() as tx:
        parked, lost = await tx.fetchval(PARKED), await tx.fetchval(LOST)
    assert parked == lost == 0
    return {
        **found, "squashed": squashed, "parked": parked, "lost": lost, "requests": knower.requests,
        "requests_repeated": dict(knower.repeated),
    }  # fmt: skip


async def strikes(ctx: Context, own: Engines, processes: list[Undying], until: float) -> None:
    """A process, then an engine, then a process, until the time is over."""
    engines = ["clickhouse", "redis", "postgres"]
    turn = 0
    while time.monotonic() + EVERY_S + AWAY_S < until:
        await asyncio.sleep(EVERY_S)
        await ctx.random.choice(processes).strike()
        await asyncio.sleep(EVERY_S / 2)
        name = engines[turn % len(engines)]
        if name != "clickhouse":  # a process that begins without these refuses, and is begun again by its supervisor
            for each in processes:
                await each.up()
        ctx.say(f"{name} is killed")
        await own.strike(name, 0.0 if name == "redis" else AWAY_S)
        turn += 1


async def ended(load: asyncio.Task[None], processes: list[Undying]) -> None:
    """The last requests are answered; or a process is gone for good, and nobody would ever answer them."""
    watched = [each._task for each in processes if each._task is not None]
    await asyncio.wait([load, *watched], return_when=asyncio.FIRST_COMPLETED, timeout=120)
    for task in watched:
        if task.done():
            load.cancel()
            task.result()
    assert load.done(), "the last requests are not answered after two minutes"
    load.result()


async def run(ctx: Context) -> dict[str, Any]:
    port = free_port()
    settings = {
        "HANDBILL_API__PORT": str(port), "HANDBILL_EVENTS__SHIP_WAIT_S": "0.5", "HANDBILL_EVENTS__LEASE_S": "3",
    }  # fmt: skip
    async with house(ctx) as (own, built, database, redis, clickhouse):
        knower = await a_knower(ctx, database, redis, port)
        knower.pace = 600.0
        ctx.settings.update(pace=knower.pace, batch=knower.size, people=knower.people, workers=2)
        env = built.env(**settings)
        api = Undying("api", env=env, ready="api-ready")
        workers = [Undying("worker", "--only", "consume,cron", env=env, ready="worker-ready") for _ in range(2)]
        async with api.alive(), workers[0].alive(), workers[1].alive():
            began, stop = time.monotonic(), asyncio.Event()
            until = began + max(ctx.time_left() - 20.0, 20.0)
            load = asyncio.create_task(knower.run(SystemClock().now_ms(), stop))
            everybody = [api, *workers]
            await strikes(ctx, own, everybody, until)
            await asyncio.wait([load], timeout=max(0.0, until - time.monotonic()))
            stop.set()
            await ended(load, everybody)
            rate = knower.answered / (time.monotonic() - began)
            ctx.say(f"{knower.answered:,} answered ({rate:,.0f}/s under fire); now it must become exact")
            for each in (api, *workers):
                await each.up()
            found = await exact(database, redis, clickhouse, knower)
    return {
        **found,
        "events_answered": knower.answered,
        "rate_under_fire": round(rate),
        "kills": {"api": api.kills, "workers": sum(each.kills for each in workers), **own.kills},
    }
