"""People in the pipeline: what is new is written once, and what says nothing new costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

import msgspec
import pytest

from handbill.events.model import CapturedEvent, Row, encode, key
from handbill.events.model import Edge as SaidEdge
from handbill.infra.postgres import Database, PostgresError
from handbill.kit import crashpoints
from handbill.kit.errors import Busy
from handbill.people.keeper import Keeper
from handbill.people.model import EdgeKind
from handbill.people.sink import PeopleSink
from tests.conftest import MakeTenant
from tests.kit.clocks import FakeClock
from tests.kit.people import commit, history, said, state


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """The names of the statements that are sent within the block."""
    seen: list[str] = []
    before = crashpoints.hook

    def hook(name: str) -> None:
        if name.startswith("before:pg:") and not name.endswith((":begin", ":commit")):
            seen.append(name.removeprefix("before:pg:"))

    crashpoints.install(hook)
    try:
        yield seen
    finally:
        crashpoints.install(before)


def rows(events: Sequence[CapturedEvent]) -> list[Row]:
    return [Row(place, key("capture", each.id), each, encode(each)) for place, each in enumerate(events)]


async def through(database: Database, sink: PeopleSink, *events: CapturedEvent) -> None:
    batch = rows(events)
    async with database.worker() as tx:
        await sink.write(tx, batch, 0)
    await sink.project(batch, [])


async def test_an_event_that_says_nothing_new_costs_no_statement(database: Database, tenant: int) -> None:
    clock = FakeClock()
    told: list[int] = []

    async def new_names(tenant_id: int) -> None:
        told.append(tenant_id)

    sink = PeopleSink(Keeper(database), clock, new_names)
    at = clock.now_ms() // 3_600_000 * 3_600_000
    login = said(tenant, "e2", at + 1, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, "phone"))
    await through(database, sink, said(tenant, "e1", at, "see", "zoe", properties=b'{"price":1}'), login)
    assert told == [tenant], "there are names that nobody had seen"
    with statements() as sent:
        await through(database, sink, said(tenant, "e3", at + 2, "see", "zoe", properties=b'{"price":2}'))
    assert sent == []
    with statements() as sent:
        again = said(tenant, "e4", at + 3, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, "phone"))
        await through(database, sink, again)
    assert sent == ["new_edges"], "what browsers repeat on every page is asked about, and no more"
    before = await state(database, tenant)
    clock.advance(hours=2)
    with statements() as sent:
        await through(database, sink, said(tenant, "e5", at + 4, "see", "zoe", properties=b'{"price":2}'))
    assert "news_of_ids" in sent, "after an hour nothing is taken for granted"
    assert "mark_unfolded" not in sent
    assert await state(database, tenant) == before
    assert told == [tenant]


async def test_a_batch_of_copies_alone_costs_no_statement_unless_one_corrects(database: Database, tenant: int) -> None:
    named: list[int] = []

    async def new_names(tenant_id: int) -> None:
        named.append(tenant_id)

    sink = PeopleSink(Keeper(database), FakeClock(), new_names)
    first = said(tenant, "e1", 1, "see", "zoe", set=b'{"plan":"a"}', sequence=9)
    second = said(tenant, "e2", 1, "see", "zoe", set=b'{"plan":"b"}', sequence=5)
    await through(database, sink, first, second)
    named.clear()
    copies, survivors = rows([first, second]), rows([])
    with statements() as sent:
        async with database.worker() as tx:
            await sink.write(tx, survivors, 0)
        await sink.project(survivors, copies)
    assert sent == []
    lowered, survivors = rows([msgspec.structs.replace(first, sequence=1)]), rows([])
    with statements() as sent:
        async with database.worker() as tx:
            await sink.write(tx, survivors, 0, lowered)
        await sink.project(survivors, [*copies, *lowered])
    assert sent[:3] == ["lock_books", "update_books", "mark_unfolded"]
    assert "refresh_people" in sent, "the person is another now"
    assert named == []


async def test_what_a_dead_process_left_is_mended(database: Database, tenant: int) -> None:
    """It committed and died: nobody projects its batch, and no batch of this tenant comes after it."""
    heard: list[tuple[int, list[str]]] = []

    async def follower(tenant_id: int, ids: Sequence[str]) -> None:
        heard.append((tenant_id, list(ids)))

    sink = PeopleSink(Keeper(database), FakeClock())
    async with database.worker() as tx:
        login = said(tenant, "e2", 2, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, "phone"))
        await sink.write(tx, rows([said(tenant, "e1", 1, "see", "phone"), login]), 0)
    assert (await state(database, tenant))["unfolded"] == ["('phone',)", "('zoe',)"]
    keeper = Keeper(database, [follower])
    await asyncio.gather(*(keeper.mend(timedelta(seconds=-1)) for _ in range(3)))
    assert (await state(database, tenant))["unfolded"] == []
    assert [ids for each, ids in heard if each == tenant] == [["phone", "zoe"]]
    await keeper.settle(tenant)
    assert len([ids for each, ids in heard if each == tenant]) == 1


async def test_the_poison_of_one_tenant_keeps_nobody_else_from_being_mended(
    database: Database, make_tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned, tenant = sorted([await make_tenant(), await make_tenant()])
    for each in (poisoned, tenant):
        login = said(each, "e2", 2, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, "phone"))
        await commit(database, each, [said(each, "e1", 1, "see", "phone"), login])
    keeper = Keeper(database)
    fold = keeper.folder.fold

    async def folded(tenant_id: int) -> int:
        if tenant_id == poisoned:
            raise PostgresError("no", sqlstate="22012", constraint=None, statement="set_people")
        return await fold(tenant_id)

    monkeypatch.setattr(keeper.folder, "fold", folded)
    assert await keeper.mend(timedelta(seconds=-1)) >= 1
    assert (await state(database, tenant))["unfolded"] == []
    assert (await state(database, poisoned))["unfolded"] != []
    await Keeper(database).mend(timedelta(seconds=-1))  # `keeper` itself pauses for the tenant first
    assert (await state(database, poisoned))["unfolded"] == []


async def test_many_lanes_and_processes_on_one_crowd_give_the_people_of_one(
    database: Database, make_tenant: MakeTenant
) -> None:
    """Eight lanes of three processes write and fold at once; whoever is told to try again does so, as a lane does."""
    tenant, control = await make_tenant(), await make_tenant()
    events = [msgspec.structs.replace(each, tenant=tenant) for each in history(77, size=1_200, people=150)]
    sinks = [PeopleSink(Keeper(database), FakeClock()) for _ in range(3)]

    async def lane(number: int) -> None:
        mine = [each for each in events if int(each.distinct_id[2:]) % 8 == number]
        for start in range(0, len(mine), 20):
            batch = sorted(rows(mine[start : start + 20]), key=lambda row: row.key)
            sink = sinks[number % 3]

            async def written(sink: PeopleSink = sink, batch: list[Row] = batch) -> None:
                async with database.worker() as tx:
                    await sink.write(tx, batch, number)

            await until_done(written)
            await until_done(partial(sink.project, batch, []))

    await asyncio.gather(*(lane(number) for number in range(8)))
    await commit(database, control, events)
    await Keeper(database).settle(control)
    assert await state(database, tenant) == await state(database, control)


async def until_done(work: Callable[[], Awaitable[None]], tries: int = 20) -> None:
    for _ in range(tries):
        with contextlib.suppress(Busy):
            await work()
            return
    raise AssertionError("busy, and busy again")
