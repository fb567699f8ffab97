"""Counting for minutes at 70 % of what this machine can, while its processes and its Redis are killed.

Every five seconds the api or a worker gets SIGKILL; once Redis is killed and started again; once it is started with a
disk that takes its time, and killed on that, too. In the end the tracker's ledger and PostgreSQL agree by banner,
placement, bucket and figure, and a recount of every day corrects nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from handbill.banners.rollup import Rollup
from handbill.infra.embedded.process import Engine
from handbill.infra.embedded.redis import start_redis
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.kit.ids import Ids
from handbill.tenants.model import NewKey, NewTenant
from tests.kit import slow_fsync, tracker
from tests.kit.loop import LANES, loop
from tests.kit.processes import free_port
from tests.kit.tracker import Tracker, Undying
from tests.kit.waiting import eventually
from tests.soak.context import Context

EVERY_S = 5.0
SHARE = 0.7
SLOW_MS = 60
DAYS = Sql("select tenant_id, day from banners.stat_days order by 1, 2", "soak_days")
PARKED = Sql("select count(*)::int from events.parked", "soak_parked")
DROPS = Sql("select reason, sum(events)::bigint as n from events.drops group by 1", "soak_drops")


class OwnRedis:
    """A Redis that is killed and comes back at the same place."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.engine: Engine | None = None
        self.kills = 0

    async def start(self, slow_ms: int = 0) -> None:
        extra = slow_fsync.environment(slow_ms) if slow_ms else {}
        port = int(self.engine.url.rpartition(":")[2].partition("/")[0]) if self.engine else None
        os.environ.update(extra)
        try:
            self.engine = await start_redis(self._home, port=port)
        finally:
            for name in extra:
                del os.environ[name]

    async def kill(self) -> None:
        assert self.engine is not None
        os.kill(self.engine.pid, signal.SIGKILL)
        await self.engine.wait()
        self.kills += 1


@contextlib.asynccontextmanager
async def adapters(postgres_url: str, redis_url: str) -> AsyncIterator[tuple[Database, Redis]]:
    database, redis = Database(derive(postgres_url)), Redis(redis_url, timeout=30)
    await database.start()
    await redis.start()
    try:
        yield database, redis
    finally:
        await redis.stop()
        await database.stop()


async def a_tracker(ctx: Context, database: Database, redis: Redis, port: int, tenants: int = 6) -> Tracker:
    shops, names = [], {}
    async with loop(database, redis) as house:
        for number in range(tenants):
            new = NewTenant(name=f"Shop {number}", slug=f"shop-{number}")
            tenant = (await house.tenants.create_tenant(new, actor="soak")).tenant_id
            await house.shop(tenant, banners=4)
            made = await house.tenants.create_key(tenant, NewKey(kind="write", name="shop"), actor="soak")
            shop, names[tenant] = tracker.names(house.catalogue, tenant, made.key)
            shops.append(shop)
    return Tracker(f"http://127.0.0.1:{port}", shops, names, ctx.random, size=100)


async def behind(database: Database, redis: Redis) -> int:
    """Events that are not counted yet, over all lanes."""
    async with database.worker() as tx:
        cursors = {row["lane"]: row["cursor"] for row in await tx.fetch(LANES)}
    journal = StreamsJournal(redis)
    return sum([(await journal.lag(lane, cursors.get(lane, "0-0"))).events for lane, _ in Lanes().all()])


async def drained(database: Database, redis: Redis) -> None:
    async def done() -> bool:
        return await behind(database, redis) == 0

    await eventually(done, timeout=600, what="everything is counted")


async def top(sending: Tracker, database: Database, redis: Redis, now_ms: int, seconds: float) -> float:
    """Events a second from request to row when nothing is broken."""
    stop = asyncio.Event()
    began = time.monotonic()
    load = asyncio.create_task(sending.run(now_ms, stop))
    await asyncio.wait([load], timeout=seconds)
    stop.set()
    await load
    await drained(database, redis)
    return sending.answered / (time.monotonic() - began)


async def exact(database: Database, sending: Tracker) -> dict[str, Any]:
    """The ledger's word against PostgreSQL's; and PostgreSQL's live figures against its rows."""
    await tracker.check(database, sending.ledger)
    rollup = Rollup(database, SystemClock(), Ids())
    async with database.worker() as tx:
        days = [(row["tenant_id"], row["day"]) for row in await tx.fetch(DAYS)]
        parked = await tx.fetchval(PARKED)
        drops = {row["reason"]: row["n"] for row in await tx.fetch(DROPS)}
    rolled = [await rollup.tenant_day(tenant, day) for tenant, day in days]
    assert sum(item.corrected for item in rolled) == 0
    assert parked == 0
    return {
        "events_counted": sum(sending.ledger.rows.values()),
        "cells_compared": len(sending.ledger.cells),
        "days_recounted": len(days),
        "requests": sending.requests,
        "requests_repeated": dict(sending.repeated),
        "drops": drops,
        "parked": parked,
    }


class Fire:
    def __init__(self, ctx: Context, redis: OwnRedis, processes: list[Undying]) -> None:
        self.ctx, self.redis, self.processes = ctx, redis, processes
        self.slowed = 0

    async def strikes(self, until: float) -> None:
        while time.monotonic() + EVERY_S < until:
            await asyncio.sleep(EVERY_S)
            await self.ctx.random.choice(self.processes).strike()

    async def redis_trouble(self, began: float, until: float) -> None:
        await asyncio.sleep((until - began) * 0.3)
        self.ctx.say("Redis is killed and started again")
        await self.redis.kill()
        await self.redis.start()
        await asyncio.sleep((until - began) * 0.3)
        self.ctx.say("Redis gets a slow disk, and is killed on it")
        await self.redis.kill()
        await self.redis.start(slow_ms=SLOW_MS)
        await asyncio.sleep(min(5.0, (until - began) * 0.1))
        self.slowed += 1
        await self.redis.kill()
        await self.redis.start()


async def run(ctx: Context) -> dict[str, Any]:
    port = free_port()
    env = {"HANDBILL_API__PORT": str(port), "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0"}
    async with ctx.stack(redis=False) as built:
        own = OwnRedis(built.home / "engines")
        await own.start()
        assert own.engine is not None
        built.redis_url = own.engine.url
        try:
            async with adapters(built.postgres_url, built.redis_url) as (database, redis):
                return await _under_fire(ctx, own, database, redis, built.env(**env), port)
        finally:
            await own.engine.stop()


async def _under_fire(
    ctx: Context, own: OwnRedis, database: Database, redis: Redis, env: dict[str, str], port: int
) -> dict[str, Any]:
    sending = await a_tracker(ctx, database, redis, port)
    now_ms = SystemClock().now_ms()
    api = Undying("api", env=env, ready="api-ready")
    workers = [Undying("worker", "--only", "consume", env=env, ready="worker-ready") for _ in range(2)]
    async with api.alive(), workers[0].alive(), workers[1].alive():
        measured = await top(sending, database, redis, now_ms, min(10.0, ctx.seconds / 6))
        sending.pace = measured * SHARE
        ctx.settings.update(workers=2, top=round(measured), pace=round(sending.pace), batch=sending.size)
        ctx.say(f"top {measured:,.0f} events/s; now {sending.pace:,.0f}/s under fire")
        fire = Fire(ctx, own, [api, *workers])
        began, stop, before = time.monotonic(), asyncio.Event(), sending.answered
        until = began + max(ctx.time_left(), 20.0)
        load = asyncio.create_task(sending.run(now_ms, stop))
        await asyncio.gather(fire.strikes(until), fire.redis_trouble(began, until))
        await asyncio.wait([load], timeout=max(0.0, until - time.monotonic()))
        stop.set()
        await load
        rate = (sending.answered - before) / (time.monotonic() - began)
        ctx.say(f"{sending.answered:,} answered ({rate:,.0f}/s under fire); counting off")
        for each in (api, *workers):
            await each.up()
        await drained(database, redis)
        found = await exact(database, sending)
    return {
        **found,
        "events_answered": sending.answered,
        "rate_under_fire": round(rate),
        "kills": {"api": api.kills, "workers": sum(each.kills for each in workers), "redis": own.kills},
        "slow_fsync_spells": fire.slowed,
    }
