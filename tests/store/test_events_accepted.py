"""Waiting until all that was accepted is counted; and not waiting where nobody counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from handbill.events.accepted import Accepted
from handbill.events.model import CapturedEvent
from handbill.events.store import EventStore
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy
from tests.kit.loop import loop


async def test_what_was_accepted_before_is_counted_afterwards(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=1) as house:
        forever = Accepted(database, house.journal, house.lanes, patience_s=3_600)
        await forever.counted()  # nothing was accepted, and nobody counts
        now = house.clock.now_ms()
        await house.events.accept([CapturedEvent(tenant, "e1", now, now, "see", "zoe", "own")])
        with pytest.raises(Busy, match="nothing was erased") as behind:
            await forever.counted()  # at once: nobody will
        assert behind.value.code == "HISTORY_BEHIND"
        store, (lane, number) = EventStore(), house.lanes.all()[0]
        async with database.worker() as tx:
            await store.add_lane(tx, lane, number)
            state = await store.claim(tx, [lane], "idle", timedelta(minutes=5))
        assert state is not None
        with pytest.raises(Busy):
            await Accepted(database, house.journal, house.lanes, patience_s=0.1).counted()
        async with database.worker() as tx:
            await store.release(tx, state.owned, state.projected)
        await house.consumer()
        await house.drained()
        await house.events.accept([CapturedEvent(tenant, f"f{n}", now, now, "see", "ann", "own") for n in range(300)])
        await forever.counted()
        assert await house.people.person_of(tenant, "ann") is not None


async def test_a_mark_that_keeps_ids_growing_is_nothing_to_wait_for(database: Database, redis: Redis) -> None:
    async with loop(database, redis, main=1) as house:
        lane = house.lanes.all()[0][0]
        await house.journal._anchor([house.journal._stream(lane), house.journal._meta(lane)], ["5-0"])
        assert await house.journal.end(lane) == "5-1"
        await Accepted(database, house.journal, house.lanes).counted()
