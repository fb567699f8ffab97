"""Laws 1 to 3 for people, through the real loop: journal, consumers, PostgreSQL; any order, split, copies and death."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import asyncpg
import msgspec

from handbill.caps.service import CapsService
from handbill.events.batch import Sink
from handbill.events.consumer import Consumer
from handbill.events.model import CapturedEvent, Event, key
from handbill.events.policy import ConsumerPolicy
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.infra.state import state_hash
from handbill.people.gather import Gathered
from handbill.people.identity import fold
from handbill.people.keeper import Keeper
from handbill.people.service import STATE
from handbill.people.sink import PeopleSink
from tests.conftest import MakeTenant
from tests.kit import people as kit
from tests.kit.clocks import FakeClock
from tests.kit.crashes import Died, enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop, own_lanes
from tests.kit.waiting import eventually

TABLES = (*(f"people.{name}" for name in kit.STATE), "people.followups", "events.event_keys", "events.drops")
EXPIRE = Sql(
    "update events.lanes set lease_until = now() - interval '1 second', moved_at = now() where lane = any ($1::text[])",
    "test_expire",
)
GONE = Sql("delete from events.consumers where name like 'victim-%'", "test_gone")
UNCLAIM = Sql(
    "update people.followups set claimed_at = now() - interval '2 minutes'", "test_unclaim", "tests", "everybody's"
)
LEFT = Sql("select count(*)::int from people.followups where tenant_id = $1", "test_left")
KEYS = Sql("select count(*)::int from events.event_keys where tenant_id = $1", "test_keys")
DROPS = Sql("select reason, sum(events)::int as n from events.drops where tenant_id = $1 group by 1", "test_drops")
POLICY = ConsumerPolicy(batch_events=100, batch_wait_ms=0, lease_s=600)


def dated(events: Sequence[CapturedEvent], tenant: int, now: int) -> list[Event]:
    return [
        msgspec.structs.replace(each, tenant=tenant, at=now - 8 * kit.HOUR + each.at, received=now) for each in events
    ]


async def forget(engines: Engines, tenant: int) -> None:
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        for table in TABLES:
            await owner.execute(f"delete from {table} where tenant_id = $1", tenant)
    finally:
        await owner.close()


async def test_every_arrangement_gives_the_same_people(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    dice = random.Random(6)
    clock = FakeClock(datetime.now(UTC))
    sent = dated(kit.history(21, size=400, people=60), tenant, clock.now_ms())
    states = []
    for consumers, main, size in ((1, 1, 5_000), (4, 4, 7), (2, 3, 40), (3, 2, 1)):
        await forget(engines, tenant)
        async with loop(database, redis, clock=clock, lanes=own_lanes(main)) as house:
            for _ in range(consumers):
                await house.consumer(ConsumerPolicy(batch_events=size, batch_wait_ms=1, lease_s=4))
            mixed = [*sent, *dice.choices(sent, k=60)]
            dice.shuffle(mixed)
            parts = [mixed[start : start + 9] for start in range(0, len(mixed), 9)]
            await asyncio.gather(*(house.events.accept(part) for part in parts))
            await house.drained()
            async with database.worker() as tx:
                states.append(await state_hash(tx, STATE))
                assert await tx.fetchval(KEYS, tenant) == len(sent)
                assert await tx.fetchval(LEFT, tenant) == 0
    for state in states[1:]:
        assert state == states[0]


class Victim:
    """A consumer with its own lines to the engines, which may die anywhere."""

    def __init__(self, database: Database, redis: Redis, house: Loop) -> None:
        self.database, self.redis, self.house = database, redis, house

    async def consume(self, end: str, *others: Sink) -> None:
        """`others` write before the people do."""
        house = self.house
        journal = StreamsJournal(self.redis, house.keys)
        caps = CapsService(self.redis, self.database, house.caps.book, house.clock, keys=house.keys)
        sink = PeopleSink(Keeper(self.database, [caps.regrouped]), house.clock)
        consumer = Consumer(
            self.database, journal, house.lanes, [*others, sink], worker=f"victim-{uuid.uuid4().hex[:8]}",
            policy=POLICY,
        )  # fmt: skip
        await consumer.start()
        tasks = {consumer._leader._task} - {None}

        def over() -> bool:
            tasks.update(task for _, task in consumer._runs.values())
            ended = any(task.done() for task in tasks if task)
            return ended or any(run.projected == end for run, _ in consumer._runs.values())

        try:
            await eventually(over, what="the victim is done or dead")
            with contextlib.suppress(Died):
                await consumer.stop()
        finally:
            for task in filter(None, tasks):
                task.cancel()
            await asyncio.gather(*filter(None, tasks), return_exceptions=True)
            with contextlib.suppress(Died):
                await journal.stop()


@contextlib.asynccontextmanager
async def a_victim(engines: Engines, house: Loop) -> AsyncIterator[Victim]:
    database = Database(derive(engines.postgres_url), worker_size=4, acquire_timeout_ms=30_000)
    redis = Redis(engines.redis_url, timeout=30)
    await database.start()
    await redis.start()
    try:
        yield Victim(database, redis, house)
    finally:
        await redis.stop()
        await database.stop()


async def taken_over(house: Loop) -> None:
    async with house.database.worker() as tx:
        await tx.execute(EXPIRE, [lane for lane, _ in house.lanes.all()])
        await tx.execute(GONE)
        await tx.execute(UNCLAIM)
    consumer = await house.consumer(POLICY)
    await house.drained()
    await consumer.stop()
    house.consumers.remove(consumer)
    await house.people.mend(older_s=-1)


async def test_death_at_every_point_leaves_the_people_of_the_fold(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    """Each death in the middle of a few more events of one history; the survivors' people are those of a pure fold.

    Before an await the world is what it was after the one before: the points after each are all there are.
    """
    tenant, control = await make_tenant(), await make_tenant()
    events = kit.history(33, size=1_200, people=30)
    told: list[Event] = []
    async with loop(database, redis, lanes=own_lanes(1)) as house, a_victim(engines, house) as victim:
        now = house.clock.now_ms()
        lane = house.lanes.lane_for(tenant, "anybody")
        end = ""

        async def prepared() -> None:
            nonlocal end
            fresh = dated(events[len(told) : len(told) + 9], tenant, now)
            assert len(fresh) == 9, "the history is too short for so many deaths"
            told.extend(fresh)
            await house.events.accept([*fresh, fresh[0]])
            end = (await house.redis.call("HGET", house.keys.tagged("journal", lane, "meta"), "last")).decode()

        async def attempt() -> None:
            await victim.consume(end)

        async def check(at: int, name: str) -> None:
            await taken_over(house)
            mine = [each for each in told if isinstance(each, CapturedEvent)]
            people = fold(Gathered(mine).edges.values())
            found = await kit.state(database, tenant)
            assert found["unfolded"] == [], f"death {at} at {name}"
            named = sorted(repr((each, people.name_of(each))) for each in kit.everybody(mine))
            assert found["named"] == named, f"death {at} at {name}"
            async with database.worker() as tx:
                assert await tx.fetchval(LEFT, tenant) == 0
            await prepared()

        await prepared()
        assert await enumerate_points(attempt, check, only="after:", what="people") > 40
        await taken_over(house)
        await kit.commit(database, control, [each for each in told if isinstance(each, CapturedEvent)])
        await house.people.keeper.settle(control)
        assert await kit.state(database, tenant) == await kit.state(database, control)


async def test_near_copies_are_no_copies_and_the_horizon_is_35_days(
    database: Database, redis: Redis, tenant: int
) -> None:
    """Keys of ids that differ in one sign, case or space; events just inside and just outside the horizon."""
    ids = [f"{stem}{number}" for number in range(25_000) for stem in ("e", "E", "e ", "e0")]
    assert len({key("capture", each) for each in ids}) == len(set(ids))
    assert not {key("capture", each) for each in ids[:1000]} & {key("view", each) for each in ids[:1000]}
    hour, day = kit.HOUR, 24 * kit.HOUR
    async with loop(database, redis) as house:
        await house.consumer()
        now = house.clock.now_ms()
        near = [
            CapturedEvent(tenant, f"{stem}{n}", now - 34 * day - 23 * hour - n, now, "see", f"u{n % 7}", "own")
            for n in range(300) for stem in ("e", "E", "e ")
        ]  # fmt: skip
        edge = [
            CapturedEvent(tenant, "just inside", now - 35 * day, now, "see", "u1", "own"),
            CapturedEvent(tenant, "just outside", now - 35 * day - 1, now, "see", "u1", "own"),
        ]
        await house.events.accept([*near, *edge])
        await house.events.accept(near[:50])
        await house.drained()
    async with database.worker() as tx:
        assert await tx.fetchval(KEYS, tenant) == len(near) + 1
        drops = {row["reason"]: row["n"] for row in await tx.fetch(DROPS, tenant)}
    assert drops == {"TOO_OLD": 1, "DUPLICATE": 50}
