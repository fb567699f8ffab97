"""Reads that wait: until what was accepted is counted, its people worked out and ClickHouse has it; and no longer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from handbill.events.model import CapturedEvent, Edge, EdgeKind, Event
from handbill.events.policy import ShippingPolicy
from handbill.events.service import LaneProgress
from handbill.events.store import EventStore
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.read_waits import Completeness, Lag
from handbill.people.model import person_id
from handbill.people.overrides import Overrides
from handbill.people.read_waits import WaitLimits
from handbill.people.service import ReadWaits
from tests.conftest import MakeTenant
from tests.kit.loop import Loop, loop
from tests.kit.shipping import people, shipping
from tests.kit.waiting import eventually, soon

FOREVER_S = 600.0
COMPLETE = Completeness(complete=True)
MARK = Sql(
    "insert into people.unfolded (tenant_id, distinct_id, marked_at, regroup) values ($1, $2, now(), $3)", "test_mark"
)
UNMARK = Sql("delete from people.unfolded where tenant_id = $1 and distinct_id = $2", "test_unmark")
KNOW = Sql(
    "insert into people.distinct_ids (tenant_id, distinct_id, person_id, first_seen_at, version)"
    " values ($1, $2, $3, now(), 1)",
    "test_know_moved",
)


def waits(house: Loop, limits: WaitLimits | None = None) -> ReadWaits:
    return ReadWaits(house.database, LaneProgress(house.journal, house.lanes), limits)


def seen(house: Loop, tenant: int, who: str, number: int = 0) -> Event:
    now = house.clock.now_ms()
    return CapturedEvent(tenant, f"{who}-{number}", now, now, "see", who, "own")


async def test_whoever_waited_sees_the_person_as_it_is_by_then(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=2) as house:
        reads = waits(house)
        assert await reads.wait(tenant, 0, "people") == COMPLETE  # nothing was accepted
        await house.events.accept([seen(house, tenant, f"w{n}") for n in range(30)])
        behind = await reads.wait(tenant, 0.1, "counted")
        assert (behind.complete, behind.lag is not None and behind.lag.entries) == (False, 30)
        assert behind.lag is not None
        assert behind.lag.seconds >= 0.1
        waiting = asyncio.create_task(reads.wait(tenant, FOREVER_S, "counted"))
        await eventually(lambda: reads.waiting() == 1)
        await house.consumer()
        assert await soon(waiting) == COMPLETE
        for number in range(15):
            now, phone, name = house.clock.now_ms(), f"phone-{number}", f"ada-{number}"
            plan = b'{"plan":"%d"}' % number
            await house.events.accept([
                CapturedEvent(tenant, f"s{number}", now, now, "see", phone, "own"),
                CapturedEvent(
                    tenant, f"i{number}", now, now, "$identify", name, "own", edge=Edge(EdgeKind.IDENTIFY, phone),
                    set=plan,
                ),
            ])  # fmt: skip
            assert await reads.wait(tenant, FOREVER_S, "people") == COMPLETE
            page = await house.people.find(tenant, phone)
            assert (page.person.ids, page.person.named_by) == (2, name)
            assert page.person.properties == {"plan": str(number)}


async def test_people_that_somebody_works_out_right_now_are_waited_for(
    database: Database, redis: Redis, tenant: int, make_tenant: MakeTenant
) -> None:
    """A folding takes its marks in a transaction, and others do not see what it made of them before its end."""
    other = await make_tenant()
    async with loop(database, redis, main=1) as house:
        reads = waits(house)
        for regroup in (True, False):
            async with database.worker() as tx:
                await tx.execute(MARK, tenant, "ada", regroup)
            async with database.worker() as tx:
                await tx.execute(UNMARK, tenant, "ada")  # nobody else sees this yet
                assert await reads.wait(tenant, 0.1, "people") == Completeness(complete=False, lag=Lag(0.0, 0))
                assert await reads.wait(tenant, 0, "counted") == COMPLETE
                assert await reads.wait(other, 0, "people") == COMPLETE
                waiting = asyncio.create_task(reads.wait(tenant, FOREVER_S, "people"))
                await eventually(lambda: reads.waiting() == 1)
            assert await soon(waiting) == COMPLETE


async def test_a_busy_tenants_new_marks_are_not_waited_for(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=1) as house:
        reads, left = waits(house), 0
        async with database.worker() as tx:
            await tx.execute(MARK, tenant, "0", False)
        waiting = asyncio.create_task(reads.wait(tenant, FOREVER_S, "people"))
        while not waiting.done():  # there is always a mark, and none stays for long
            left += 1
            async with database.worker() as tx:
                await tx.execute(MARK, tenant, str(left), False)
                await tx.execute(UNMARK, tenant, str(left - 1))
            await asyncio.sleep(0)
        assert await waiting == COMPLETE
        async with database.worker() as tx:
            await tx.execute(UNMARK, tenant, str(left))


async def test_clickhouse_has_the_events_and_whose_they_are(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        reads, overrides = waits(house), Overrides(database, history)
        slow = ShippingPolicy(ship_events=25, ship_wait_s=FOREVER_S)
        await house.consumer(shipping=shipping(database, history, house.journal, policy=slow))
        await house.events.accept([seen(house, tenant, "ada", number) for number in range(10)])
        assert await reads.wait(tenant, FOREVER_S, "people") == COMPLETE
        behind = await reads.wait(tenant, 0.1, "exported")
        assert behind.lag is not None
        assert (behind.complete, behind.lag.entries) == (False, 10)
        waiting = asyncio.create_task(reads.wait(tenant, FOREVER_S, "exported"))
        await eventually(lambda: reads.waiting() == 1)
        await house.events.accept([seen(house, tenant, "bob", number) for number in range(20)])  # enough for an export
        assert await soon(waiting) == COMPLETE
        assert await people(history, tenant) == {each: person_id(tenant, each) for each in ("ada", "bob")}

        async with database.worker() as tx:
            await tx.execute(KNOW, tenant, "moved", person_id(tenant, "ada"))
        assert await reads.wait(tenant, 0, "people") == COMPLETE
        assert (await reads.wait(tenant, 0.1, "exported")).complete is False
        waiting = asyncio.create_task(reads.wait(tenant, FOREVER_S, "exported"))
        await eventually(lambda: reads.waiting() == 1)
        await overrides.ship()
        assert await soon(waiting) == COMPLETE


async def test_waiting_reads_are_few_and_hold_nothing(
    database: Database, redis: Redis, tenant: int, make_tenant: MakeTenant
) -> None:
    other = await make_tenant()
    async with loop(database, redis, main=1) as house:
        reads = waits(house, WaitLimits(of_tenant=8, of_process=10))
        await house.events.accept([seen(house, tenant, "ada"), seen(house, other, "bob")])
        waiting = [asyncio.create_task(reads.wait(tenant, FOREVER_S, "people")) for _ in range(8)]
        await eventually(lambda: reads.waiting() == 8)
        full = await soon(reads.wait(tenant, FOREVER_S, "people"))  # at once, and as complete as it is
        assert full.complete is False
        waiting += [asyncio.create_task(reads.wait(other, FOREVER_S, "people")) for _ in range(2)]
        await eventually(lambda: reads.waiting() == 10)
        assert (await soon(reads.wait(other, FOREVER_S, "people"))).complete is False
        async with database.worker(), database.worker(), database.worker():  # of four connections
            assert not any(task.done() for task in waiting)
        for task in waiting[4:]:
            task.cancel()  # their clients left
        await asyncio.gather(*waiting[4:], return_exceptions=True)
        assert reads.waiting() == 4
        await house.consumer()
        assert await soon(asyncio.gather(*waiting[:4])) == [COMPLETE] * 4


async def test_a_mark_that_keeps_ids_growing_is_nothing_to_wait_for(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        lane, number = house.lanes.all()[0]
        async with database.worker() as tx:
            await EventStore().add_lane(tx, lane, number)
            await EventStore().claim(tx, [lane], "idle", timedelta(minutes=5))
        await house.journal._anchor([house.journal._stream(lane), house.journal._meta(lane)], ["5-0"])
        assert await house.journal.end(lane) == "5-1"
        assert await waits(house).wait(tenant, 0, "exported") == COMPLETE
