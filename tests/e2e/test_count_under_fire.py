"""Real processes, real HTTP, kill -9: what was answered with 202 is counted, once, by banner, bucket and figure."""

from __future__ import annotations

import asyncio
import random

from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from tests.conftest import MakeTenant
from tests.kit import tracker
from tests.kit.loop import LANES, loop
from tests.kit.tracker import Tracker, Undying
from tests.kit.waiting import eventually

STRIKES = ("worker", "api", "worker")
EVENTS_BETWEEN = 500


async def test_every_answered_event_counts_once_while_processes_are_killed(
    handbill_env: dict[str, str], database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    env = {**handbill_env, "HANDBILL_EVENTS__LEASE_S": "1", "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0"}
    dice = random.Random(7)
    shops, names = [], {}
    async with loop(database, redis) as house:
        for tenant in [await make_tenant() for _ in range(2)]:
            await house.shop(tenant)
            made = await house.tenants.create_key(tenant, NewKey(kind="write", name="shop"), actor="test")
            shop, names[tenant] = tracker.names(house.catalogue, tenant, made.key)
            shops.append(shop)
        now = house.clock.now_ms()
    sending = Tracker(f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", shops, names, dice)
    processes = {
        "api": Undying("api", env=env, ready="api-ready"),
        "worker": Undying("worker", "--only", "consume", env=env, ready="worker-ready"),
    }
    stop = asyncio.Event()
    async with processes["api"].alive(), processes["worker"].alive(), asyncio.TaskGroup() as group:
        load = group.create_task(sending.run(now, stop, senders=4))
        for turn, name in enumerate(STRIKES, 1):
            await eventually(lambda due=turn * EVENTS_BETWEEN: load.done() or sending.answered >= due, what="load")
            await processes[name].strike()
        await processes["api"].up()
        enough = (len(STRIKES) + 1) * EVENTS_BETWEEN
        await eventually(lambda: load.done() or sending.answered >= enough, what="load")
        stop.set()
        await load
        await processes["worker"].up()
        await eventually(lambda: drained(database, redis), timeout=120, what="everything is counted")
        await tracker.check(database, sending.ledger)
    assert sending.answered >= enough
    assert [processes[name].kills for name in ("api", "worker")] == [1, 2]


async def drained(database: Database, redis: Redis) -> bool:
    """Every lane's cursor stands at the end of its journal."""
    async with database.worker() as tx:
        cursors = {row["lane"]: row["cursor"] for row in await tx.fetch(LANES)}
    journal = StreamsJournal(redis)
    lags = [await journal.lag(lane, cursors.get(lane, "0-0")) for lane, _ in Lanes().all()]
    return not any(lag.events for lag in lags)
