"""From the journal into ClickHouse: every event once, whatever dies or is away, and as it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from handbill.events.batch import Owned
from handbill.events.consumer import Consumer
from handbill.events.model import CapturedEvent, Event, Impression, Row
from handbill.events.policy import ConsumerPolicy, ShippingPolicy
from handbill.events.shipping import LaneShipper
from handbill.events.shipping_insert import Shipping
from handbill.events.shipping_rows import Record, RowMaker
from handbill.events.shipping_store import Group
from handbill.infra.clickhouse import ClickHouse, ClickHouseAway
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.task_health import TaskHealth
from handbill.people.model import person_id
from tests.kit import ledger
from tests.kit.crashes import Died, enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.proxy import proxy
from tests.kit.shipping import AT_ONCE, captures, hasty, no_public_ids, shipped, shipping, stored, wanted
from tests.kit.waiting import eventually, soon

SMALL = ConsumerPolicy(batch_events=40, batch_wait_ms=0)
PARKED = Sql("select event_id, reason from events.parked where tenant_id = $1 order by event_id", "test_parked")
UNFINISHED = Sql(
    "select count(*)::int from events.ch_batches where lane = any ($1::text[]) and done_at is null", "test_unfinished"
)
UNSHIPPED = Sql(
    "update events.ch_batches set done_at = null, group_id = null where lane = any ($1::text[])", "test_unshipped"
)
UNDONE = Sql(
    "update events.ch_batches set done_at = null where id in (select id from events.ch_batches"
    " where lane = any ($1::text[]) and done_at is not null and group_id is null order by created_at, id limit $2)"
    " returning events",
    "test_undone",
)


async def unfinished(house: Loop) -> int:
    async with house.database.worker() as tx:
        return int(await tx.fetchval(UNFINISHED, house.lane_names()))


async def accepted(house: Loop, events: Sequence[Event], size: int = 50) -> None:
    for at in range(0, len(events), size):
        await house.events.accept(events[at : at + size])


async def test_every_event_is_there_once_and_as_it_was_sent(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    dice = random.Random(1)
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        events: list[Event] = [*captures(dice, tenant, 200, now), *ledger.events(dice, [shop], 200, now, word="b")]
        events += dice.sample(events, 60)
        dice.shuffle(events)
        await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
        await accepted(house, events)
        await house.drained()
        await shipped(house)
        assert await stored(history, tenant) == wanted(events)
        told = next(event for event in events if isinstance(event, CapturedEvent) and event.user_agent)
        rows = await history.query(
            "select event, distinct_id, person_id, properties, set, url, browser, os, device_type, ip, source,"
            " toUnixTimestamp64Milli(at), toUnixTimestamp64Milli(received)"
            " from events where tenant_id = {t:UInt32} and event_id = {id:String}",
            {"t": tenant, "id": told.id},
        )
        assert [row[:6] for row in rows] == [
            (told.name, told.distinct_id, person_id(tenant, told.distinct_id), told.properties.decode(),
             (told.set or b"").decode(), told.url)
        ]  # fmt: skip
        assert rows[0][9:] == (told.ip, "own", told.at, told.received)
        assert rows[0][6:9] in {("Chrome", "Mac OS X", "Desktop"), ("Mobile Safari", "iOS", "Mobile")}
        counts = await history.query(
            "select event, count() from events where tenant_id = {t:UInt32} and banner_id > 0 group by 1 order by 1",
            {"t": tenant},
        )
        sent = ledger.Ledger()
        sent.note(event for event in events if not isinstance(event, CapturedEvent))
        assert dict(counts) == {f"$banner_{kind}": n for (_, kind), n in sent.rows.items()}


async def test_few_events_wait_for_others_and_then_go_together(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """A lane does not make a part of ClickHouse's from every small batch; a stop ships what waits."""
    patient = ShippingPolicy(ship_events=100, ship_wait_s=600)
    async with loop(database, redis, main=1) as house:
        now = house.clock.now_ms()
        events = captures(random.Random(2), tenant, 130, now)
        consumer = await house.consumer(SMALL, shipping=shipping(database, history, house.journal, policy=patient))
        await eventually(lambda: _begun(consumer, house), what="the shippers have looked once")
        await accepted(house, events[:60], size=10)
        await house.drained()
        assert await stored(history, tenant) == []
        await accepted(house, events[60:], size=10)
        await house.drained()
        await eventually(lambda: _some(history, tenant, 100), what="a hundred are enough")
        await consumer.stop()
        assert await stored(history, tenant) == wanted(events)
        assert await unfinished(house) == 0


async def test_what_comes_during_an_export_waits_for_others_too(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load something always comes: a lane that exported it at once would make a part of every small batch."""
    patient = ShippingPolicy(ship_events=100, ship_wait_s=600)
    groups: list[int] = []
    begun, going = asyncio.Event(), asyncio.Event()
    async with loop(database, redis, main=1) as house:
        exports = shipping(database, history, house.journal, policy=patient)
        insert = exports.insert

        async def slow(group: Group, rows: Any, *, careful: bool) -> None:
            groups.append(sum(len(some) for _, some in rows))
            begun.set()
            await going.wait()
            await insert(group, rows, careful=careful)

        monkeypatch.setattr(exports, "insert", slow)
        events = captures(random.Random(3), tenant, 200, house.clock.now_ms())
        consumer = await house.consumer(SMALL, shipping=exports)
        await eventually(lambda: _begun(consumer, house), what="the shippers have looked once")
        await accepted(house, events[:100], size=100)
        await soon(begun.wait())
        await accepted(house, events[100:110], size=10)
        await house.drained()
        going.set()
        await eventually(lambda: _some(history, tenant, 100), what="the first hundred are there")
        await accepted(house, events[110:], size=90)
        await eventually(lambda: _some(history, tenant, 200), what="with another ninety the ten are enough")
        assert groups == [100, 100]
        assert await stored(history, tenant) == wanted(events)


def _begun(consumer: Consumer, house: Loop) -> bool:
    ships = consumer._ships
    return len(ships) == len(house.lane_names()) and all(shipper.shipped.is_set() for shipper, _ in ships.values())


async def _some(clickhouse: ClickHouse, tenant: int, least: int) -> bool:
    return len(await stored(clickhouse, tenant)) >= least


async def test_death_at_every_point_of_shipping(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """The dead one's group is sent again by whoever comes next, from the journal, and is there once."""
    events = captures(random.Random(4), tenant, 2_000, int(1e12) + 86_400_000 * 7_000)
    async with loop(database, redis, main=1) as house, contextlib.AsyncExitStack() as doors:
        lane = house.lanes.all()[0]
        owned = Owned(lane[0], lane[1], 1)
        own = Database(derive(engines.postgres_url), worker_size=2, acquire_timeout_ms=30_000)
        line = Redis(engines.redis_url, timeout=30)
        for each in (own, line):
            await each.start()
            doors.push_async_callback(each.stop)
        await accepted(house, events, size=20)
        await counted_only(house)
        waiting = await unshipped_again(house, 2)

        async def attempt() -> None:
            engine = hasty(engines)
            await engine.start()
            try:
                await _one_shipper(owned, shipping(own, engine, StreamsJournal(line, house.keys)))
            finally:
                await engine.stop()

        async def check(at: int, name: str) -> None:
            nonlocal waiting
            await _one_shipper(owned, shipping(database, history, house.journal))
            found = await stored(history, tenant)
            assert len(found) == len(set(found)) == waiting, f"death {at} at {name}"
            assert await unfinished(house) == 0
            waiting += await unshipped_again(house, 2)

        points = await enumerate_points(attempt, check, what="shipping")
        assert points >= 14
        await unshipped_again(house, 1_000)
        await _one_shipper(owned, shipping(database, history, house.journal))
        assert await stored(history, tenant) == wanted(events)


async def counted_only(house: Loop) -> None:
    """Somebody counts, and nobody ships: that is left to the test."""
    consumer = await house.consumer(SMALL)
    await house.drained()
    await consumer.stop()
    house.consumers.remove(consumer)


async def unshipped_again(house: Loop, batches: int) -> int:
    """Counted batches that were not shipped wait for it from now on; how many events are in them."""
    async with house.database.worker() as tx:
        return sum(row["events"] for row in await tx.fetch(UNDONE, house.lane_names(), batches))


async def _one_shipper(owned: Owned, made: Shipping) -> None:
    """A shipper that ships what there is, and ends."""
    shipper = LaneShipper(owned, made, TaskHealth("ship"))
    task = asyncio.create_task(shipper.run())
    waiting = asyncio.create_task(shipper.shipped.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        shipper.stop()
        with contextlib.suppress(Died):
            await task
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_clickhouse_away_is_busy(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Counting goes on, nothing is parked, the journal keeps it; afterwards all of it is there."""
    dice = random.Random(3)
    async with loop(database, redis) as house, proxy(engines.clickhouse_url) as (net, through):
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        events: list[Event] = [*captures(dice, tenant, 1_500, now), *ledger.events(dice, [shop], 1_500, now, word="b")]
        away = hasty(engines, through)
        await away.start()
        try:
            policy = ShippingPolicy(ship_events=1, ship_wait_s=0, hold_events=200, most_events=700)
            await house.consumer(
                ConsumerPolicy(batch_events=200, batch_wait_ms=0),
                shipping=shipping(database, away, house.journal, policy=policy),
            )
            await accepted(house, events[:300], size=100)
            await eventually(lambda: _some(history, tenant, 1), what="the first are there")
            net.down()
            await accepted(house, events[300:], size=100)
            await house.drained()
            assert await unfinished(house) > 0
            await house.edge.look()
            assert house.edge.unshipped > 0
            assert await _parked(database, tenant) == []
            net.up()
            await shipped(house)
        finally:
            for consumer in house.consumers:
                await consumer.stop()
            await away.stop()
        assert await stored(history, tenant) == wanted(events)


class Late(ClickHouse):
    """The answer to the first sending of each insert is lost. Its rows are stored at once, or when the same insert is
    sent again: just before that one, or just after it."""

    def __init__(self, engines: Engines, lands: str) -> None:
        super().__init__(engines.clickhouse_url, engines.worker)
        self._lands = lands
        self._first: dict[str | None, Sequence[Sequence[Any]]] = {}
        self.sent: Counter[str | None] = Counter()

    async def insert_columns(
        self, table: str, columns: Sequence[str], values: Sequence[Sequence[Any]], token: str | None = None
    ) -> None:
        self.sent[token] += 1
        if self.sent[token] == 1:
            self._first[token] = values
            if self._lands == "at once":
                await super().insert_columns(table, columns, values, token)
            raise ClickHouseAway("the answer was lost")
        late = self._first.pop(token, None)
        if late and self._lands == "before":
            await super().insert_columns(table, columns, late, token)
        await super().insert_columns(table, columns, values, token)
        if late and self._lands == "after":
            await super().insert_columns(table, columns, late, token)


@pytest.mark.parametrize(("lands", "times"), [("at once", 1), ("before", 2), ("after", 2)])
async def test_an_insert_whose_answer_was_lost_is_stored_once_whenever_it_lands(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int, lands: str, times: int
) -> None:
    """Rows that are there are not sent again; what lands between the question and the next sending has its token."""
    engine = Late(engines, lands)
    await engine.start()
    async with loop(database, redis, main=1) as house:
        events = captures(random.Random(9), tenant, 100, house.clock.now_ms())
        consumer = await house.consumer(SMALL, shipping=shipping(database, engine, house.journal))
        await eventually(lambda: _begun(consumer, house), what="the shippers have looked once")
        await accepted(house, events, size=50)
        await house.drained()
        await shipped(house)
        await consumer.stop()
        assert await stored(history, tenant) == wanted(events)
        assert set(engine.sent.values()) == {times}
    await engine.stop()


async def _parked(database: Database, tenant: int) -> list[tuple[str, str]]:
    async with database.worker() as tx:
        return [tuple(row) for row in await tx.fetch(PARKED, tenant)]


class Clumsy(RowMaker):
    """Makes rows that no table takes of events whose id says so."""

    def record(self, row: Row, people: object, retention: int, public_ids: object = None) -> Record:
        made = super().record(row, people, retention, public_ids or {})  # type: ignore[arg-type]
        return (-1, *made[1:]) if "poison" in row.event.id else made


async def test_rows_that_the_engine_refuses_are_alone(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        now = house.clock.now_ms()
        events = captures(random.Random(5), tenant, 60, now)
        bad = [msgspec.structs.replace(event, id=f"poison{n}") for n, event in enumerate(events[:3])]
        made = shipping(database, history, house.journal, maker=Clumsy(person_id, lambda address: None, no_public_ids))
        await house.consumer(SMALL, shipping=made)
        mixed = [*events[:20], bad[0], *events[20:40], *bad[1:], *events[40:]]
        await accepted(house, mixed, size=30)
        await house.drained()
        await shipped(house)
        assert await stored(history, tenant) == wanted(events)
        assert await _parked(database, tenant) == [(f"poison{n}", "UNSHIPPED") for n in range(3)]


async def test_a_wiped_journal_leaves_a_list_of_what_is_missing(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        now = house.clock.now_ms()
        events = captures(random.Random(6), tenant, 80, now)
        await accepted(house, events, size=20)
        await counted_only(house)
        await unshipped_again(house, 1_000)
        waiting = await unfinished(house)
        await redis.call("DEL", *(house.keys.tagged("journal", lane) for lane in house.lane_names()))
        await redis.call("DEL", *(house.keys.tagged("journal", lane, "meta") for lane in house.lane_names()))
        await house.consumer(SMALL, shipping=shipping(database, history, house.journal, policy=AT_ONCE))
        await shipped(house)
        lost = [each for each in await house.events.lost(limit=10_000) if each.lane in house.lane_names()]
        assert len(lost) == waiting
        assert sum(each.events for each in lost) == len(events)
        assert await stored(history, tenant) == []
        later = [Impression(tenant, uuid.uuid4().hex, now, now, (await house.shop(tenant)).banners[0])]
        await house.events.accept(later)
        await house.drained()
        await shipped(house)
        assert await stored(history, tenant) == wanted(later)


async def test_a_restored_store_is_asked_what_it_has(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """PostgreSQL as it was before the shipping, ClickHouse as it was after it, and no token is remembered."""
    async with loop(database, redis, main=1) as house:
        events = captures(random.Random(8), tenant, 100, house.clock.now_ms())
        consumer = await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
        await accepted(house, events, size=25)
        await house.drained()
        await shipped(house)
        await consumer.stop()
        async with database.worker() as tx:
            await tx.execute(UNSHIPPED, house.lane_names())
        assert await unfinished(house) > 0
        await house.consumer(SMALL, shipping=shipping(database, history, house.journal))
        await shipped(house)
        assert await stored(history, tenant) == wanted(events)
