"""Shipping at its edges: what was refused comes back once, large events fill no memory, a lost batch costs no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from uuid import UUID

from handbill.events.batch import Batch, Owned, Parked
from handbill.events.model import CapturedEvent, Row, encode, key
from handbill.events.policy import ConsumerPolicy, ShippingPolicy
from handbill.events.reader import ParkedRow
from handbill.events.reasons import Reason
from handbill.events.reshipping import Reshipping
from handbill.events.service import Chosen, OnFailure
from handbill.events.shipping import LaneShipper
from handbill.events.shipping_insert import Shipping
from handbill.events.shipping_rows import Record, RowMaker
from handbill.events.shipping_store import Group, Load
from handbill.events.store import EventStore
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.clickhouse.client import ClickHouseAway
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.ids import Ids
from handbill.kit.task_health import LIMIT_S, TaskHealth
from handbill.people.model import person_id
from handbill.people.squash import LOCK
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import captures, hasty, no_public_ids, shipped, shipping, stored, wanted
from tests.kit.waiting import eventually

FORGET = Sql("update events.parked set replayed_at = null where tenant_id = $1", "test_forget")
UNDONE = Sql("update events.ch_batches set done_at = null where lane = any ($1::text[])", "test_undone")
ONE_BY_ONE = ConsumerPolicy(batch_events=1, batch_wait_ms=0)
GROUPS = Sql("select count(*)::int from events.ch_groups where id = any ($1::uuid[])", "test_groups")


class Clumsy(RowMaker):
    """Until it is mended it makes rows that no table takes."""

    bad = True

    def record(self, row: Row, people: object, retention: int, public_ids: object = None) -> Record:
        made = super().record(row, people, retention, public_ids or {})  # type: ignore[arg-type]
        return (-1, *made[1:]) if self.bad else made


async def parked(house: Loop, tenant: int, number: int) -> tuple[list[CapturedEvent], list[UUID]]:
    """Counted events whose rows ClickHouse has refused."""
    events = captures(random.Random(1), tenant, number, house.clock.now_ms())
    rows = [Parked(tenant, "capture", event.id, Reason.UNSHIPPED, "", encode(event)) for event in events]
    async with house.database.worker() as tx:
        await EventStore().park(tx, rows, "0", Ids())
    return events, [row.id for row in await waiting(house, tenant)]


async def waiting(house: Loop, tenant: int) -> Sequence[ParkedRow]:
    return await house.events.parked(tenant, reason=None, replayed=False, after=None, limit=100)


async def test_what_only_clickhouse_lacks_goes_there_alone_and_once(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        events, ids = await parked(house, tenant, 25)
        dead, maker = house.events.dead, Clumsy(person_id, lambda address: None, no_public_ids)
        dead.reship = Reshipping(database, shipping(database, history, house.journal, maker=maker), LOCK)
        done = await dead.replay(Chosen(tenant), on_failure=OnFailure.STOP)
        assert (done.shipped, done.unshipped, done.failed, done.stopped) == (0, 20, 20, True)
        maker.bad = False
        async with database.session() as session:
            assert await session.try_lock(LOCK)
            done = await dead.replay(Chosen(tenant))
            assert (done.matched, done.shipped, done.unshipped) == (25, 0, 25), "a squash must not miss their rows"
            await session.unlock(LOCK)
        assert (await dead.replay(Chosen(tenant), dry_run=True)).unshipped == 25
        assert await stored(history, tenant) == []
        done = await dead.replay(Chosen(tenant))
        assert (done.matched, done.sent, done.shipped, done.unshipped) == (25, 0, 25, 0)
        assert await stored(history, tenant) == wanted(events)
        async with database.worker() as tx:
            await tx.execute(FORGET, tenant)  # it died between ClickHouse's answer and its own commit
            assert await tx.fetchval(GROUPS, ids) == 0, "a squash would wait for them"
        assert (await dead.replay(Chosen(tenant))).shipped == 25
        assert await stored(history, tenant) == wanted(events)
        assert list(await waiting(house, tenant)) == []


async def test_clickhouse_away_leaves_them_parked(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    away = hasty(engines, "http://127.0.0.1:1/none")
    await away.start()
    async with loop(database, redis, main=1) as house:
        await parked(house, tenant, 2)
        house.events.dead.reship = Reshipping(database, shipping(database, away, house.journal), LOCK)
        done = await house.events.dead.replay(Chosen(tenant), on_failure=OnFailure.STOP)
        assert (done.shipped, done.unshipped, done.stopped) == (0, 2, False)
        assert len(await waiting(house, tenant)) == 2
    await away.stop()


async def test_a_lane_without_events_is_well_after_an_outage(
    database: Database, redis: Redis, history: ClickHouse
) -> None:
    clock = FakeClock()
    health = TaskHealth("export", clock=clock)
    health.failed(ClickHouseAway("ClickHouse is away."))
    clock.advance(seconds=LIMIT_S)
    assert health.is_stuck()
    async with loop(database, redis, main=1) as house:
        policy = ShippingPolicy(look_every_s=3_600)
        owned = Owned(house.lanes.all()[0][0], 0, 1)
        shipper = LaneShipper(owned, shipping(database, history, house.journal, policy=policy), health)
        running = asyncio.create_task(shipper.run())
        await eventually(lambda: not health.is_stuck())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def batch(owned: Owned, tenant: int, number: int, size: int, ids: Ids) -> Batch:
    made = Batch(owned, "0-0", f"{number}-0", [], "0-0", id=ids.new())
    event = CapturedEvent(tenant, f"e{number}", 1, 1, "seen", "ada", "own", b'{"n":"%s"}' % (b"x" * size))
    made.survivors = [Row(0, key("capture", event.id), event, encode(event))]
    return made


async def test_large_events_are_held_and_grouped_by_their_bytes(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    policy = ShippingPolicy(ship_events=1, ship_wait_s=0, most_bytes=20_000, hold_bytes=25_000)
    async with loop(database, redis, main=1) as house:
        made, ids = Sized(shipping(database, history, house.journal, policy=policy)), Ids()
        owned = Owned(house.lanes.all()[0][0], 0, 1)
        shipper = LaneShipper(owned, made, TaskHealth("ship"))
        for number in range(4):
            shipper.offer(batch(owned, tenant, number, 10_000, ids))
        assert (len(shipper._held), shipper._held_bytes) == (2, sum(map(_bytes, shipper._held.values())))
        body = b'{"n":"%s"}' % (b"x" * 9_000)
        now = house.clock.now_ms()
        events = [CapturedEvent(tenant, f"e{n}", now, now, "seen", "ada", "own", body) for n in range(12)]
        counting = await house.consumer(ONE_BY_ONE)
        for event in events:
            await house.events.accept([event])
        await house.drained()
        await counting.stop()
        house.consumers.remove(counting)
        async with database.worker() as tx:
            await tx.execute(UNDONE, [lane for lane, _ in house.lanes.all()])
        await house.consumer(ONE_BY_ONE, shipping=made)
        await shipped(house)
        assert await stored(history, tenant) == wanted(events)
        assert 18_000 <= max(made.sizes) <= 30_000, "together, and up to the batch that fills it"


def _bytes(rows: Sequence[Row]) -> int:
    return sum(len(row.body) for row in rows)


class Sized(Shipping):
    """Remembers how large its groups were."""

    def __init__(self, like: Shipping) -> None:
        self.__dict__.update(like.__dict__)
        self.sizes: list[int] = []

    async def insert(self, group: Group, rows: Sequence[tuple[Load, Sequence[Row]]], *, careful: bool) -> None:
        self.sizes.append(sum(_bytes(some) for _, some in rows))
        await super().insert(group, rows, careful=careful)


async def test_a_group_that_lost_a_batch_is_another_insert(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Half of it was inserted; then the journal lost the first batch. The second must be there whole, and once."""
    async with loop(database, redis, main=1) as house:
        events = captures(random.Random(3), tenant, 20, house.clock.now_ms())
        rows = [Row(n, key(event.kind, event.id), event, encode(event)) for n, event in enumerate(events)]
        ids = Ids()
        lost, kept = (Load(ids.new(), "0-0", "1-0", b"\xff\xff\xff", 20) for _ in range(2))
        group = Group(ids.new(), (lost, kept), {})
        made = shipping(database, history, house.journal)
        await made.insert(group, [(lost, rows[:5]), (kept, rows[5:8])], careful=False)
        shipper = LaneShipper(Owned(house.lanes.all()[0][0], 0, 1), made, TaskHealth("ship"))
        await shipper._send(group, [(kept, rows[5:])], careful=False)
        assert await stored(history, tenant) == wanted(events)
