"""Whose an event is, in ClickHouse: overrides in any order, squashed under everything that may happen meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
from uuid import UUID

import pytest

from handbill.events.model import CapturedEvent, Edge, EdgeKind, Event
from handbill.events.policy import ConsumerPolicy
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.people.model import person_id
from handbill.people.overrides import Overrides
from handbill.people.squash import Squash
from tests.conftest import MakeTenant
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import BY_PERSON, PERSON, hasty, people, shipped, shipping

KNOW = Sql(
    "insert into people.distinct_ids (tenant_id, distinct_id, person_id, first_seen_at)"
    " select $1, d, p, now() from unnest($2::text[], $3::uuid[]) as u (d, p) on conflict do nothing",
    "test_know",
)
MOVE = Sql(
    "update people.distinct_ids set person_id = $3, version = version + 1"
    " where tenant_id = $1 and distinct_id = $2 and person_id <> $3",
    "test_move",
)
PLAN = Sql("select count(*)::int from people.squashing where tenant_id = $1", "test_plan")
CHANGES = ("after:ch:command", "after:ch:insert", "after:pg:commit")
OPEN = Sql("select id from events.ch_groups where lane = any ($1::text[])", "test_open")
SMALL = ConsumerPolicy(batch_events=50, batch_wait_ms=0)


@pytest.fixture
async def history(clickhouse: ClickHouse) -> ClickHouse:
    """With its tables, and what earlier tests left in few parts: a mutation takes its time for each of them."""
    await migrate_clickhouse(clickhouse)
    await clickhouse.command("optimize table events final")
    return clickhouse


class Crowd:
    """Some ids and who they are: moved as a folding moves them, and compared with what ClickHouse answers."""

    def __init__(self, database: Database, tenant: int, number: int) -> None:
        self.database = database
        self.tenant = tenant
        self.ids = [f"d{n}" for n in range(number)]
        self.now = {each: person_id(tenant, each) for each in self.ids}
        self._sent = 0

    async def begin(self) -> None:
        async with self.database.worker() as tx:
            await tx.execute(KNOW, self.tenant, list(self.now), list(self.now.values()))

    async def move(self, distinct_id: str, like: str) -> None:
        """Merged with another; or, with itself, apart again."""
        person: UUID = person_id(self.tenant, like)
        async with self.database.worker() as tx:
            await tx.execute(MOVE, self.tenant, distinct_id, person)
        self.now[distinct_id] = person

    async def said(self, house: Loop) -> None:
        """One more event of everybody, in ClickHouse."""
        self._sent += 1
        now = house.clock.now_ms()
        events: list[Event] = [
            CapturedEvent(self.tenant, f"{each}-{self._sent}", now, now, "seen", each, "own") for each in self.ids
        ]
        await house.events.accept(events)
        await house.drained()
        await shipped(house)

    async def check(self, clickhouse: ClickHouse, where: str = "") -> None:
        assert await people(clickhouse, self.tenant) == self.now, where
        rows = await clickhouse.query("select count() from events where tenant_id = {t:UInt32}", {"t": self.tenant})
        assert rows == [(self._sent * len(self.ids),)], where


def a_squash(database: Database, clickhouse: ClickHouse, house: Loop) -> Squash:
    """It waits for this loop's groups only: a process of another test may have left its own."""

    async def shipments() -> list[UUID]:
        async with database.worker() as tx:
            return [row["id"] for row in await tx.fetch(OPEN, [lane for lane, _ in house.lanes.all()])]

    return Squash(database, clickhouse, shipments, patience_s=60)


async def live_overrides(clickhouse: ClickHouse, tenant: int) -> int:
    rows = await clickhouse.query(
        "select count() from (select distinct_id from person_distinct_id_overrides where tenant_id = {t:UInt32}"
        " group by distinct_id having argMax(deleted, version) = 0)",
        {"t": tenant},
    )
    return int(rows[0][0])


async def test_moves_voids_and_squashes_in_any_order(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Random histories: whatever was moved, parted, told, squashed or said meanwhile, everybody is who they are."""
    dice = random.Random(7)
    overrides = Overrides(database, history)
    async with loop(database, redis, main=1) as house:
        crowd, squash = Crowd(database, tenant, 8), a_squash(database, history, house)
        await crowd.begin()
        await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
        await crowd.said(house)
        for step in range(30):
            what = dice.random()
            if what < 0.5:
                await crowd.move(dice.choice(crowd.ids), dice.choice(crowd.ids))
            elif what < 0.65:
                same = dice.choice(crowd.ids)
                await crowd.move(same, same)
            elif what < 0.8:
                await crowd.said(house)
            else:
                await squash.run()
            if dice.random() < 0.4:
                await overrides.ship()
                await crowd.check(history, f"step {step}")
        await overrides.ship()
        while await squash.run():
            pass
        await crowd.check(history)
        assert await live_overrides(history, tenant) == 0
        await crowd.said(house)
        await crowd.check(history, "rows made after the squash")


async def test_death_at_every_point_of_a_squash(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    overrides = Overrides(database, history)
    async with loop(database, redis, main=1) as house, contextlib.AsyncExitStack() as doors:
        crowd = Crowd(database, tenant, 4)
        await crowd.begin()
        own = Database(derive(engines.postgres_url), worker_size=2, direct_size=1, acquire_timeout_ms=30_000)
        await own.start()
        doors.push_async_callback(own.stop)
        number = 0

        async def prepared() -> None:
            nonlocal number
            number += 1
            if number % 5 == 1:
                consumer = await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
                await crowd.said(house)
                await consumer.stop()
                house.consumers.remove(consumer)
            await crowd.move("d1", f"d{number % 2 * 2}")
            await overrides.ship()

        async def attempt() -> None:
            engine = hasty(engines)
            await engine.start()
            try:
                await a_squash(own, engine, house).run()
            finally:
                await engine.stop()

        async def check(at: int, name: str) -> None:
            await crowd.check(history, f"right after death {at} at {name}")
            if at % 3 == 0:
                await crowd.move("d3", "d0" if at % 2 else "d3")  # it moves on between two tries
                await overrides.ship()
                await crowd.check(history, f"moved after death {at}")
            while await a_squash(database, history, house).run():
                pass
            await crowd.check(history, f"squashed after death {at} at {name}")
            async with database.worker() as tx:
                assert await tx.fetchval(PLAN, tenant) == 0
            await prepared()

        await prepared()
        # Every moment that changes what ClickHouse or PostgreSQL has; between two of them there are only questions.
        points = [await enumerate_points(attempt, check, only=only, what=f"squashing, {only}") for only in CHANGES]
        assert points[0] >= 4
        assert points[1] >= 2
        assert points[2] >= 4


async def test_a_squash_waits_for_events_on_their_way(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """A group that asked for its people before the plan was made may carry an older person: its rows come first."""
    async with loop(database, redis, main=1) as house:
        crowd = Crowd(database, tenant, 3)
        await crowd.begin()
        await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
        await crowd.said(house)
        await crowd.move("d0", "d1")
        await Overrides(database, history).ship()
        on_its_way, looked = {UUID(int=1)}, asyncio.Event()

        async def shipments() -> set[UUID]:
            looked.set()
            return set(on_its_way)

        squashing = asyncio.create_task(Squash(database, history, shipments).run())
        await looked.wait()
        assert await live_overrides(history, tenant) == 1
        await crowd.check(history)
        on_its_way.clear()
        assert await squashing >= 1
        assert await live_overrides(history, tenant) == 0
        await crowd.check(history)


LETTERS = "abcdefgh"


def a_story(dice: random.Random) -> list[tuple[str, str, str | None]]:
    """(event id, whose, who it says it was before): pages, and identifications that chain, cross and come late."""
    told: list[tuple[str, str, str | None]] = []
    for n in range(40):
        who = dice.choice(LETTERS)
        before = dice.choice(LETTERS) if dice.random() < 0.15 else None
        told.append((f"e{n}", who, before if before != who else None))
    return told


def as_events(story: list[tuple[str, str, str | None]], tenant: int, now: int) -> list[Event]:
    made: list[Event] = []
    for place, (name, who, before) in enumerate(story):
        at, kind = now - 100_000 + place, EdgeKind.MERGE if place % 3 == 0 else EdgeKind.IDENTIFY
        edge = Edge(kind, before) if before else None
        made.append(CapturedEvent(tenant, name, at, now, "$identify" if edge else "$pageview", who, "own", edge=edge))
    return made


async def grouped(clickhouse: ClickHouse, tenant: int) -> list[tuple[list[str], list[str]]]:
    """Each person by the ids it has and the events it did: the same for every tenant that was told the same story."""
    rows = await clickhouse.query(
        "select arraySort(groupUniqArray(e.distinct_id)), arraySort(groupArray(e.event_id))"
        f" {BY_PERSON} group by {PERSON}",
        {"tenant": tenant},
    )
    return sorted((list(ids), list(events)) for ids, events in rows)


async def test_the_same_story_in_any_order_has_the_same_people(
    database: Database, redis: Redis, history: ClickHouse, make_tenant: MakeTenant
) -> None:
    """Shuffled, repeated, split over two workers, overrides told at any moment, squashed or not; an edge taken back."""
    dice = random.Random(11)
    story = a_story(dice)
    found = []
    async with loop(database, redis) as house:
        now = house.clock.now_ms()
        overrides, squash = Overrides(database, history), a_squash(database, history, house)
        for _ in range(2):
            await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
        for number in range(4):
            tenant = await make_tenant()
            events = as_events(story, tenant, now)
            events += dice.sample(events, 15)
            if number:
                dice.shuffle(events)
            size = dice.choice((3, 11, 60))
            for at in range(0, len(events), size):
                await house.events.accept(events[at : at + size])
                if number % 2:
                    await house.drained()
                    await overrides.ship()
                    await squash.run()
            await house.drained()
            await shipped(house)
            await house.people.mend(0)
            await overrides.ship()
            together = await grouped(history, tenant)
            page = await house.people.find(tenant, max(together, key=lambda each: len(each[0]))[0][0])
            edges = sorted((edge for edge in page.edges if edge.outcome == "joined"), key=lambda edge: edge.at)
            for edge in edges[::2]:
                await house.people.void(tenant, edge.edge_id, actor="test")
            await overrides.ship()
            apart = await grouped(history, tenant)
            for edge in edges[::2]:
                await house.people.restore(tenant, edge.edge_id, actor="test")
            await overrides.ship()
            await squash.run()
            assert await grouped(history, tenant) == together, f"taken back and said again, arrangement {number}"
            found.append((together, apart))
    assert found[0][0] != found[0][1]
    assert len(found[0][0]) < len(LETTERS)
    assert all(each == found[0] for each in found)
