"""Search and exports over generated events, what a question may cost, how it ends, and looking at the journal."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable, Collection
from datetime import date
from typing import Any
from uuid import UUID

import msgspec
import pytest

from handbill.events.edge import Edge
from handbill.events.model import CapturedEvent, Event, decode, encode
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.insights import onlooker
from handbill.insights import service as room
from handbill.insights.compile import Compiled
from handbill.insights.model import EventRow, Filter, SearchQuery, TrendsQuery
from handbill.insights.onlooker import ENTRIES, EVENTS, Glance, Onlooker
from handbill.insights.periods import midnight
from handbill.insights.service import InsightsService
from handbill.insights.store import Bounds, EventStoreReader
from handbill.insights.tail import Missed, Tails, Wanted
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Invalid, NotFound
from tests.kit.waiting import eventually, soon
from tests.store import insights_world as plain
from tests.store.insights_world import World

MakeTenant = Callable[..., Awaitable[int]]
Build = Callable[..., InsightsService]


@pytest.fixture
async def build(clickhouse: ClickHouse, redis: Redis) -> Build:
    await migrate_clickhouse(clickhouse)

    def make(**more: Any) -> InsightsService:
        nobody: Any = None  # these questions name their zone, and ask PostgreSQL nothing
        return InsightsService(clickhouse, nobody, nobody, Tails(Onlooker(redis, ["0"])), SystemClock(), **more)

    return make


@pytest.fixture
async def world(clickhouse: ClickHouse, build: Build, make_tenant: MakeTenant) -> World:
    for seed in (8, 7):
        made = World(await make_tenant(), seed)
        await made.put(clickhouse)
    return made


async def everything(insights: InsightsService, tenant: int, query: SearchQuery, limit: int) -> list[EventRow]:
    found: list[EventRow] = []
    cursor = None
    while True:
        page = await insights.search(tenant, query, cursor, limit)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


async def test_search_and_export_give_what_is_there_newest_first(
    world: World, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    insights = build()
    for _ in range(8):
        span = world.span(20)
        filters = tuple(msgspec.convert(world.filters(1), list[Filter]))
        name = world.rng.choice((None, *plain.NAMES))
        start, end = date.fromisoformat(span["from"]), date.fromisoformat(span["to"])
        query = SearchQuery(start, end, name, None, filters, span["zone"])
        wanted = [
            event
            for event in plain.within(world, midnight(start, world.zone), midnight(end, world.zone), filters)
            if name in (None, event.name)
        ]
        wanted.sort(key=lambda event: event.place, reverse=True)
        found = await everything(insights, world.tenant, query, 200 if len(wanted) > 60 else 7)
        assert [row.event_id for row in found] == [event.id for event in wanted]
        assert [(row.at, row.person_id, row.properties) for row in found] == [
            (event.at, event.person, event.properties) for event in wanted
        ]
    everything_ = SearchQuery(start, end, zone=span["zone"])
    whole = b"".join([piece async for piece in insights.export(world.tenant, everything_)]).decode()
    rows = list(csv.DictReader(io.StringIO(whole)))
    assert len(rows) == len(plain.within(world, midnight(start, world.zone), midnight(end, world.zone), ()))
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
    monkeypatch.setattr(room, "EXPORT_ROWS", 5)
    cut = b"".join([piece async for piece in insights.export(world.tenant, everything_)]).decode().splitlines()
    assert cut[-1].startswith("# Cut after")


async def test_a_page_of_large_events_is_shorter_and_an_export_comes_in_small_pieces(
    world: World, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    insights = build()
    query = SearchQuery(date(2026, 2, 1), date(2026, 4, 20), zone="UTC")
    if world.start.month == 10:
        query = SearchQuery(date(2026, 10, 1), date(2026, 12, 1), zone="UTC")
    pieces = [piece async for piece in insights.export(world.tenant, query)]
    whole = await everything(insights, world.tenant, query, 200)
    assert len(whole) > 20
    monkeypatch.setattr(room, "_PAGE_BYTES", 100)
    monkeypatch.setattr(room, "_PORTION_BYTES", 100)
    first = await insights.search(world.tenant, query, None, 200)
    assert 0 < len(first.items) < len(whole)
    assert first.next is not None
    assert await everything(insights, world.tenant, query, 200) == whole
    smaller = [piece async for piece in insights.export(world.tenant, query)]
    assert b"".join(smaller) == b"".join(pieces)
    assert len(smaller) > len(whole) / 20
    assert max(map(len, smaller)) < max(map(len, pieces))


async def test_a_persons_events_are_those_of_its_ids(world: World, build: Build) -> None:
    ids = ["id-1", "id-3", "it's \\ nobody's"]

    async def ids_of(tenant: int, person: UUID) -> list[str]:
        return ids if person.int == 1 else []

    insights = build(ids_of=ids_of)
    query = SearchQuery(date(2026, 2, 1), date(2026, 4, 20), zone="UTC")
    if world.start.month == 10:
        query = SearchQuery(date(2026, 10, 1), date(2026, 12, 1), zone="UTC")
    page = await insights.of_person(world.tenant, UUID(int=1), query, None, 200)
    wanted = {event.id for event in world.events if event.distinct_id in ids}
    assert {row.event_id for row in page.items} == wanted
    assert wanted
    with pytest.raises(NotFound):
        await insights.of_person(world.tenant, UUID(int=2), query, None, 200)


@pytest.mark.parametrize("bounds", [Bounds(rows_read=10), Bounds(memory_bytes=4_000), Bounds(rows_answered=1)])
async def test_a_question_that_costs_too_much_is_the_askers_to_mend(world: World, build: Build, bounds: Bounds) -> None:
    asked = {**world.span(), "series": [{"measure": "people"}], "breakdown": {"property": "plan"}}
    with pytest.raises(Invalid) as heavy:
        await build(bounds=bounds).trends(world.tenant, msgspec.convert(asked, TrendsQuery))
    assert heavy.value.code == "INSIGHT_TOO_HEAVY"


async def test_a_cancelled_question_ends_in_the_engine(clickhouse: ClickHouse, build: Build) -> None:
    mark = "sleepEachRow(0.9)"
    slow = Compiled(f"select {mark} from numbers(500) settings max_block_size = 1", {})
    running = f"select 1 from system.processes where query like '%{mark}%' and query not like '%processes%'"
    reader = EventStoreReader(clickhouse, Bounds(seconds=600))
    task = asyncio.create_task(reader.ask(slow))
    await eventually(lambda: clickhouse.query(running))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def gone() -> Any:
        return not await clickhouse.query(running)

    await eventually(gone)  # by itself it would run for minutes


async def test_an_onlooker_sees_what_comes_and_says_when_it_was_too_much(redis: Redis, tenant: int) -> None:
    journal = StreamsJournal(redis)
    await journal.start()

    async def append(*names: str) -> None:
        bodies = [encode(CapturedEvent(tenant, name, 1, 1, name, "ada", "own")) for name in names]
        await journal.append("3", bodies)

    await append("before")
    looker = Onlooker(redis, ["3"])
    await looker.begin()
    await append("a", "b")
    await journal.append("3", [b"no event", encode(CapturedEvent(tenant, "c", 1, 1, "c", "ada", "own"))])
    glance = await looker.look("3", {tenant})
    assert [event.id for event in glance.events] == ["a", "b", "c"]
    assert (glance.skipped.total(), glance.is_behind) == (0, False)
    assert (await looker.look("3", {tenant})).events == []
    for number in range(ENTRIES + 10):
        await append(f"f{number}", f"g{number}")
    glance = await looker.look("3", {tenant})
    assert [event.id for event in glance.events][-2:] == [f"f{ENTRIES + 9}", f"g{ENTRIES + 9}"]
    assert (len(glance.events), glance.is_behind) == (2 * ENTRIES, True)
    await append(*(f"h{number}" for number in range(EVENTS + 5)))
    glance = await looker.look("3", {tenant})
    assert [event.id for event in glance.events] == [f"h{number}" for number in range(5, EVENTS + 5)]
    assert (glance.skipped, glance.is_behind) == ({tenant: 5}, False)
    await journal.stop()


async def test_events_of_other_tenants_are_not_decoded(
    redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    unpacked: list[bytes] = []

    def count_decodes(body: bytes) -> Event:
        decoded.append(body)
        return decode(body)

    def count_unpacks(packed: bytes) -> list[bytes]:
        unpacked.append(packed)
        return msgspec.msgpack.decode(packed, type=list[bytes])

    monkeypatch.setattr(onlooker, "decode", count_decodes)
    monkeypatch.setattr(onlooker, "_unpack", count_unpacks)
    journal = StreamsJournal(redis)
    await journal.start()

    def events(tenant_id: int, *ids: str) -> list[bytes]:
        return [encode(CapturedEvent(tenant_id, each, 1, 1, "view", "ada", "own")) for each in ids]

    looker = Onlooker(redis, ["3"])
    await looker.begin()
    for other in range(tenant + 1, tenant + 11):
        await journal.append("3", events(other, *map(str, range(1_000))), tenant_ids={other})
    glance = await looker.look("3", {tenant})
    assert (glance.events, glance.skipped.total(), glance.is_behind) == ([], 0, False)
    assert (decoded, unpacked) == ([], []), "10,000 events of others are not even received"
    await asyncio.gather(  # one entry of two calls, as the appender makes them
        journal.append("3", events(tenant + 1, *map(str, range(1_000))), tenant_ids={tenant + 1}),
        journal.append("3", events(tenant, "mine"), tenant_ids={tenant}),
    )
    await journal.append("3", [*events(tenant + 1, *map(str, range(500))), *events(tenant, "unnamed")])
    glance = await looker.look("3", {tenant})
    assert [event.id for event in glance.events] == ["mine", "unnamed"]
    assert len(decoded) == 2, "in an entry that is shared, too, others' events stay as they are"
    await journal.stop()


async def test_the_edge_names_the_tenants_of_what_it_appends(redis: Redis, database: Database, tenant: int) -> None:
    journal = StreamsJournal(redis)
    await journal.start()
    edge = Edge(journal, Lanes(1, 1), database, SystemClock())
    looker = Onlooker(redis, ["0"])
    await looker.begin()
    one, two, other = (
        CapturedEvent(each, name, 1, 1, "view", "ada", "own")
        for each, name in ((tenant, "1"), (tenant, "2"), (tenant + 1, "3"))
    )
    await edge.accept([one])
    await edge.accept([one, two])
    await edge.accept([other])
    named = [fields[7] for _, fields in await redis.call("XREVRANGE", "hb:journal:{0}", "+", "-", "COUNT", 3)]
    assert named == [b",%d," % (tenant + 1), b",%d," % tenant, b",%d," % tenant]
    assert (await looker.look("0", {tenant})).events == [one, one, two]
    await journal.stop()


async def test_tails_end_when_the_process_stops(redis: Redis, tenant: int) -> None:
    tails = Tails(Onlooker(redis, ["0"]))
    async with tails.opened(tenant, Wanted()) as tail:
        waiting = asyncio.create_task(tail.next(600))
        await asyncio.sleep(0)
        await tails.stop()
        assert await soon(waiting) is None
    assert len(tails) == 0


async def test_one_bad_look_ends_no_tail(redis: Redis, tenant: int) -> None:
    class Odd(Onlooker):
        looks = 0

        async def look(self, lane: str, tenant_ids: Collection[int]) -> Glance:
            self.looks += 1
            if self.looks == 1:
                raise ValueError("bytes that nobody expects")
            return Glance([CapturedEvent(tenant, "e", 1, 1, "seen", "ada", "own")])

    tails = Tails(Odd(redis, ["0"]))
    async with tails.opened(tenant, Wanted()) as tail:
        assert await soon(tail.next(60)) == ([], Missed(0, more=True)), "something was not shown"
        found = await soon(tail.next(60))
        assert found is not None
        assert found[0][0].event == "seen"
