"""One queue whose keys are broken stops no other: relay, sweep, gauges; a list goes on behind a job that is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.chores import SweepChore
from handbill.jobs.gauges import Gauges
from handbill.jobs.model import NewJob
from handbill.jobs.outbox.relay import FIRST_PAUSE_S
from handbill.jobs.records import Entry, Filter
from handbill.jobs.service import JobsService
from handbill.kit.errors import EngineRefused
from handbill.kit.telemetry import metrics
from tests.kit.audit import RecordedAudit
from tests.kit.clocks import FakeClock

Unique = Callable[[str], str]


class Pair:
    """Two queues, the first of which has a key of the wrong type."""

    def __init__(self, database: Database, redis: Redis, unique: Unique, clock: FakeClock) -> None:
        self.redis = redis
        self.database = database
        self.jobs = JobsService(database, redis, audit=RecordedAudit(), clock=clock)
        self.bad, self.good = self.jobs.queues.queue(unique("a-bad")), self.jobs.queues.queue(unique("b-good"))

    async def names(self) -> list[str]:
        return [self.bad.name, self.good.name]

    async def spoil(self, *keys: str) -> None:
        for key in keys:
            await self.redis.call("SET", self.bad.keys[key], "not what it should be")

    async def put(self) -> None:
        async with self.database.worker() as tx:
            await self.jobs.outbox.put_many(tx, [Entry(name, "work", {}, None) for name in await self.names()])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pair(database: Database, redis: Redis, unique: Unique, clock: FakeClock) -> Pair:
    return Pair(database, redis, unique, clock)


async def test_relay_serves_the_queues_behind_one_that_raises(pair: Pair, clock: FakeClock) -> None:
    await pair.spoil("wait")
    await pair.put()
    pace = await pair.jobs.relay.cycle()
    assert any(isinstance(error, EngineRefused) for error in pace.errors)
    assert (await pair.good.counts()).waiting == 1
    await pair.redis.call("DEL", pair.bad.keys["wait"])
    pace = await pair.jobs.relay.cycle()
    assert pace.next_due is not None
    assert pace.next_due <= FIRST_PAUSE_S * 1.01
    assert (await pair.bad.counts()).waiting == 0, "it has a pause of its own"
    clock.advance(seconds=FIRST_PAUSE_S * 2)
    await pair.jobs.relay.cycle()
    assert (await pair.bad.counts()).waiting == 1


async def test_sweep_reconciles_the_queues_behind_one_that_raises(pair: Pair) -> None:
    added = await pair.good.add("work", {})
    key = pair.good.keys.job(added.id)
    await pair.redis.call("HSET", key, "failedReason", "no", "finishedOn", 1_000)
    await pair.redis.call("ZADD", pair.good.keys["failed"], 1_000, added.id)
    await pair.spoil("failed")
    chore = SweepChore(pair.jobs.sweeper, pair.jobs.ledger, pair.names)
    with pytest.raises(EngineRefused):
        await chore.turn()
    letters = await pair.jobs.dead.page(Filter(queue=pair.good.name), None, 10)
    assert [letter.job_id for letter in letters.items] == [added.id]


async def test_gauges_measure_the_queues_behind_one_that_raises(pair: Pair) -> None:
    await pair.good.add("work", {})
    await pair.spoil("wait")
    with pytest.raises(EngineRefused):
        await Gauges(pair.database, pair.jobs.queues, pair.names).measure()
    assert metrics.QUEUE_DEPTH.labels(pair.good.name, "waiting")._value.get() == 1


async def test_list_goes_on_behind_a_job_that_is_gone(pair: Pair) -> None:
    added = await pair.good.add_many([NewJob("work", {"n": number}) for number in range(450)])
    await pair.redis.call("DEL", pair.good.keys.job(added[10].id))
    listed: list[str] = []
    cursor = None
    while True:
        page = await pair.jobs.list_jobs(pair.good.name, "waiting", None, cursor, 100)
        listed += [view.id for view in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert listed == [job.id for job in added if job is not added[10]]
