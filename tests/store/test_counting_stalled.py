"""A lock that keeps events from being counted is seen: the lanes that do not move are named until they do."""

from __future__ import annotations

import random

import asyncpg

from handbill.events.edge import Edge
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit import ledger
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.loop import loop
from tests.kit.waiting import eventually


async def test_a_lock_on_the_event_keys_stalls_counting_until_it_is_released(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    owner = await asyncpg.connect(engines.postgres_url)
    async with loop(database, redis, main=1) as house:
        clock = FakeClock()
        edge = Edge(house.journal, house.lanes, database, clock)
        shop = await house.shop(tenant)
        consumer = await house.consumer()
        await eventually(consumer.lanes, what="the consumer has its lanes")
        async with owner.transaction():
            await owner.execute("lock table events.event_keys in access exclusive mode")
            await house.events.accept(ledger.events(random.Random(7), [shop], 20, house.clock.now_ms()))
            await edge.look()
            clock.advance(seconds=29)
            await edge.look()
            assert list(edge.stalled.counting) == []
            clock.advance(seconds=2)
            await edge.look()
            assert list(edge.stalled.counting) == [house.lane_names()[0]]
        await house.drained()
        await edge.look()
        assert list(edge.stalled.counting) == []
    await owner.close()
