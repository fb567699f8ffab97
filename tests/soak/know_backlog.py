"""ClickHouse is down and 200,000 product events come in: all are counted meanwhile, and afterwards all are shipped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from handbill.events.shipping_store import ShippingStore
from handbill.kit.clock import SystemClock
from tests.kit.processes import free_port
from tests.kit.tracker import Undying
from tests.soak.context import Context
from tests.soak.count_under_fire import drained
from tests.soak.know_under_fire import a_knower, exact, house

BACKLOG = 200_000


async def run(ctx: Context) -> dict[str, Any]:
    port = free_port()
    async with house(ctx) as (own, built, database, redis, clickhouse):
        knower = await a_knower(ctx, database, redis, port)
        knower.size, knower.people = 500, 2_000
        ctx.settings.update(backlog=BACKLOG, people=knower.people)
        env = built.env(HANDBILL_API__PORT=str(port))
        api = Undying("api", env=env, ready="api-ready")
        worker = Undying("worker", "--only", "consume,cron", env=env, ready="worker-ready")
        async with api.alive(), worker.alive():
            os.kill(own.running["clickhouse"].pid, signal.SIGKILL)
            await own.running["clickhouse"].wait()
            ctx.say("ClickHouse is down; events come in")
            stop = asyncio.Event()
            load = asyncio.create_task(knower.run(SystemClock().now_ms(), stop))
            while knower.answered < BACKLOG and not load.done():
                await asyncio.sleep(0.1)
            stop.set()
            await load
            await drained(database, redis)
            async with database.worker() as tx:
                waiting = sum(each.events for each in (await ShippingStore().unshipped(tx)).values())
            ctx.say(f"{knower.answered:,} answered and counted, {waiting:,} unshipped; ClickHouse comes back")
            await own.start("clickhouse")
            began = time.monotonic()
            found = await exact(database, redis, clickhouse, knower)
            took = time.monotonic() - began
    assert waiting > BACKLOG * 0.9
    return {**found, "events_answered": knower.answered, "unshipped": waiting, "caught_up_s": round(took, 1)}
