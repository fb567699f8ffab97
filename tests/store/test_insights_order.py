"""Insights go by the order of events: microsecond, sequence, id. So do the steps of a funnel, pages and exports."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import pytest

from handbill.events.forgetting import Forgetting
from handbill.events.model import key
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.insights.model import EventRow, Funnel, FunnelQuery, SearchQuery
from handbill.insights.onlooker import Onlooker
from handbill.insights.service import Bounds, InsightsService, Tails
from handbill.kit.clock import SystemClock, to_us
from handbill.kit.errors import Invalid
from handbill.kit.pages import encode
from handbill.people.model import person_id
from tests.store.funnel_model import chain
from tests.store.insights_world import to_millisecond

MakeInsights = Callable[..., InsightsService]
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SPAN: dict[str, Any] = {"from": "2026-07-01", "to": "2026-07-02", "zone": "UTC"}
SEARCH = SearchQuery(date(2026, 7, 1), date(2026, 7, 2), zone="UTC")
COLUMNS = (
    "tenant_id", "at", "received", "event", "event_id", "event_key", "distinct_id", "person_id", "properties", "micros",
    "sequence",
)  # fmt: skip


class Sent(msgspec.Struct, frozen=True):
    name: str
    id: str
    at: datetime = NOON
    sequence: int = 0
    distinct_id: str = "ada"
    value: str | None = None
    kind: str = "capture"

    @property
    def place(self) -> tuple[datetime, int, str, bytes]:
        return self.at, self.sequence, self.id, key(self.kind, self.id)


@pytest.fixture
async def insights(clickhouse: ClickHouse, redis: Redis) -> MakeInsights:
    await migrate_clickhouse(clickhouse)

    def make(**more: Any) -> InsightsService:
        unused: Any = None  # the questions name their zone and ask PostgreSQL nothing
        return InsightsService(clickhouse, unused, unused, Tails(Onlooker(redis, ["0"])), SystemClock(), **more)

    return make


async def store(clickhouse: ClickHouse, tenant_id: int, events: Iterable[Sent]) -> None:
    rows = [
        (
            tenant_id, to_millisecond(event.at), NOON, event.name, event.id, key(event.kind, event.id),
            event.distinct_id, person_id(tenant_id, event.distinct_id),
            msgspec.json.encode({} if event.value is None else {"value": event.value}).decode(),
            event.at.microsecond % 1000, event.sequence,
        )
        for event in events
    ]  # fmt: skip
    await clickhouse.insert("events", COLUMNS, rows)


async def merge(clickhouse: ClickHouse, tenant_id: int, into: dict[str, str]) -> None:
    rows = [(tenant_id, other, person_id(tenant_id, one), 2, 0) for other, one in into.items()]
    columns = ("tenant_id", "distinct_id", "person_id", "version", "deleted")
    await clickhouse.insert("person_distinct_id_overrides", columns, rows)


def funnel_of(*names: str | None, **more: Any) -> FunnelQuery:
    return msgspec.convert({**SPAN, "steps": [{"event": name} for name in names], **more}, FunnelQuery)


def reached(answer: Funnel) -> list[int]:
    return [step.people for step in answer.lines[0].steps]


# --- funnels
OFFSETS = (
    timedelta(), timedelta(), timedelta(), MICROSECOND, timedelta(milliseconds=1), timedelta(seconds=1) - MICROSECOND,
    timedelta(seconds=1), timedelta(seconds=1) + MICROSECOND, timedelta(seconds=2),
)  # fmt: skip
PREFIXES = ("", "a", "A", "ab", "a-", "é", "\N{CJK UNIFIED IDEOGRAPH-65E5}", "0197c6a0-0000-7")


def generated_people(rng: Random, number: int) -> list[list[Sent]]:
    """Each with few moments and many ties. Some have two ids, some have events of an earlier release."""
    people = []
    for who in range(number):
        is_earlier_release = rng.random() < 0.3
        ids = [f"{rng.choice(PREFIXES)}{rng.getrandbits(24):x}-{who}-{place}" for place in range(rng.randrange(2, 9))]
        begin = NOON + timedelta(milliseconds=rng.randrange(1_000), microseconds=rng.randrange(1_000))
        events = []
        for id_ in ids:
            at, sequence = begin + rng.choice(OFFSETS), rng.choice((0, 0, 7, 8, 2**62 - 1))
            if is_earlier_release:
                at, sequence = to_millisecond(at), 0
            one = f"{who}-phone" if rng.random() < 0.4 else f"{who}"
            value = rng.choice((None, "x", "y", "z"))
            events.append(Sent(rng.choice(("look", "look", "cart", "buy")), id_, at, sequence, one, value))
        people.append(events)
    return people


def expected(people: Sequence[Sequence[Sent]], query: FunnelQuery) -> dict[str | None, list[list[datetime]]]:
    """The chains of people by the value of their first first-step. Without a breakdown all have None."""
    chains: dict[str | None, list[list[datetime]]] = {}
    for events in people:
        moments: list[tuple[datetime, set[int]]] = []
        value, is_begun = None, False
        for event in sorted(events, key=lambda event: event.place):
            hits = {place for place, step in enumerate(query.steps) if step.event in (None, event.name)}
            moments += [(event.at, hits)] if hits else []
            if 0 in hits and not is_begun:
                value, is_begun = event.value if query.breakdown else None, True
        if is_begun:
            walked = chain(moments, len(query.steps), timedelta(seconds=query.window_s))
            chains.setdefault(value, []).append(walked)
    return chains


@pytest.mark.parametrize("seed", range(2))
async def test_funnels_walk_in_the_order_of_events(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int, seed: int
) -> None:
    people = generated_people(Random(seed), 1_500)
    events = [event for events in people for event in events]
    Random(seed + 1).shuffle(events)
    await store(clickhouse, tenant, events)
    await merge(clickhouse, tenant, {f"{who}-phone": f"{who}" for who in range(len(people))})
    service = insights()
    for steps in (
        ("look", "buy"), ("look", "cart", "buy"), ("buy", "look"), ("look", "look", "look"), (None, "look", None),
        ("look", "buy", "look", "cart"), (None,) * 10,
    ):  # fmt: skip
        for window in (1, 2):
            for breakdown in (None, {"property": "value"}):
                query = funnel_of(*steps, window_s=window, breakdown=breakdown)
                answer = await service.funnel(tenant, query)
                chains = expected(people, query)
                assert {line.group.value for line in answer.lines} == set(chains), query
                for line in answer.lines:
                    mine = chains[line.group.value]
                    for place, step in enumerate(line.steps):
                        further = [chain for chain in mine if len(chain) > place]
                        took = [(one[place] - one[place - 1]).total_seconds() for one in further if place]
                        median = pytest.approx(statistics.median(took), abs=1e-6) if took else None
                        assert (step.people, step.median_s) == (len(further), median), (query, line.group)


async def test_a_visitor_who_looks_logs_in_and_buys_in_one_request_has_bought(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int
) -> None:
    sent = 1_782_907_200_000 << 14
    await store(
        clickhouse, tenant,
        [
            Sent("look", "c", sequence=sent, distinct_id="phone-1"),
            Sent("$identify", "b", sequence=sent + 1),
            Sent("buy", "a", sequence=sent + 2),
        ],
    )  # fmt: skip
    await merge(clickhouse, tenant, {"phone-1": "ada"})
    assert reached(await insights().funnel(tenant, funnel_of("look", "buy"))) == [1, 1]
    assert reached(await insights().funnel(tenant, funnel_of("look", "$identify", "buy"))) == [1, 1, 1]
    assert reached(await insights().funnel(tenant, funnel_of("buy", "look"))) == [1, 0]


async def test_events_of_an_earlier_release_go_by_their_ids(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int
) -> None:
    ids = [f"0197c6a0-1d2e-7{number:03x}-8000-000000000000" for number in range(3)]
    await store(clickhouse, tenant, [Sent("buy", ids[2]), Sent("cart", ids[1]), Sent("look", ids[0])])
    assert reached(await insights().funnel(tenant, funnel_of("look", "cart", "buy"))) == [1, 1, 1]
    assert reached(await insights().funnel(tenant, funnel_of("look", "buy", "cart"))) == [1, 1, 0]


async def test_one_event_is_never_two_steps(clickhouse: ClickHouse, insights: MakeInsights, tenant: int) -> None:
    await store(
        clickhouse, tenant,
        [Sent("look", "a"), Sent("look", "b"), Sent("look", "c", distinct_id="bob")],
    )  # fmt: skip
    assert reached(await insights().funnel(tenant, funnel_of("look", "look", "look"))) == [2, 1, 0]
    assert reached(await insights().funnel(tenant, funnel_of("look", None))) == [2, 1]


async def test_a_window_is_inclusive_to_the_microsecond(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int
) -> None:
    begin = NOON + timedelta(microseconds=999)
    for who, late in (("in", timedelta()), ("out", MICROSECOND)):
        await store(
            clickhouse, tenant,
            [
                Sent("look", f"l-{who}", begin, distinct_id=who),
                Sent("buy", f"b-{who}", begin + timedelta(seconds=1) + late, distinct_id=who),
            ],
        )  # fmt: skip
    assert reached(await insights().funnel(tenant, funnel_of("look", "buy", window_s=1))) == [2, 1]
    answer = await insights().funnel(tenant, funnel_of("look", "buy", window_s=2))
    assert (reached(answer), answer.lines[0].steps[1].median_s) == ([2, 2], 1.000001)


@pytest.mark.parametrize(
    "first",
    [
        Sent("look", "z", NOON, 9, value="z"),
        Sent("look", "z", NOON + MICROSECOND, 4, value="z"),
        Sent("look", "a", NOON + MICROSECOND, 5, value="z"),
    ],
)
async def test_a_breakdown_takes_the_first_first_step(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int, first: Sent
) -> None:
    at = NOON + MICROSECOND
    await store(clickhouse, tenant, [Sent("look", "b", at, 5, value="a"), first, Sent("buy", "c", at, 6)])
    answer = await insights().funnel(tenant, funnel_of("look", "buy", breakdown={"property": "value"}))
    assert {line.group.value: [step.people for step in line.steps] for line in answer.lines} == {
        "z": [1, 1], "a": [0, 0],
    }  # fmt: skip


async def test_a_funnel_of_many_people_writes_to_disk_what_does_not_fit_in_memory(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int
) -> None:
    """600,000 events of 200,000 people: their moments need 100 MiB and more, and the question may have 80."""
    person = "toUUID(concat('00000000-0000-0000-0000-', leftPad(toString(intDiv(number, 3)), 12, '0')))"
    await clickhouse.command(
        "insert into events (tenant_id, at, event, event_id, distinct_id, person_id, sequence)"
        f" select {tenant}, '2026-07-01 12:00:00', ['look', 'cart', 'buy'][1 + number % 3], toString(999999 - number),"
        f" concat('user ', toString(intDiv(number, 3))), {person}, number % 3 from numbers(600000)"
    )
    query = funnel_of("look", "cart", "buy")
    answer = await insights(bounds=Bounds(memory_bytes=80 << 20)).funnel(tenant, query)
    assert reached(answer) == [200_000] * 3
    with pytest.raises(Invalid) as refused:
        await insights(bounds=Bounds(memory_bytes=80 << 20, disk_bytes=1 << 20)).funnel(tenant, query)
    assert refused.value.code == "INSIGHT_TOO_HEAVY"


async def test_an_export_that_does_not_fit_in_memory_is_sorted_on_disk(
    clickhouse: ClickHouse, insights: MakeInsights, tenant: int
) -> None:
    """90,000 events with properties that no compression makes small: 180 MB, and the export may have 120 MiB."""
    await clickhouse.command(
        "insert into events (tenant_id, at, event, event_id, distinct_id, properties, sequence)"
        f" select {tenant}, '2026-07-01 12:00:00', 'look', toString(number), 'ada',"
        " concat('{\"x\":\"', hex(randomString(1000)), '\"}'), number from numbers(90000)"
    )
    bounds = Bounds(memory_bytes=120 << 20)
    query = SearchQuery(date(2026, 7, 1), date(2026, 7, 2), zone="UTC")
    size = lines = 0
    async for block in insights(bounds=bounds).export(tenant, query):
        size, lines = size + len(block), lines + block.count(b"\n")
    assert (lines, size > 180_000_000) == (90_001, True)


# --- lists
async def pages(insights: InsightsService, tenant_id: int, limit: int) -> list[EventRow]:
    rows: list[EventRow] = []
    cursor = None
    while True:
        page = await insights.search(tenant_id, SEARCH, cursor, limit)
        rows += page.items
        cursor = page.next
        if cursor is None:
            return rows


async def test_pages_go_through_ties_one_by_one(clickhouse: ClickHouse, insights: MakeInsights, tenant: int) -> None:
    rng = Random(5)
    events = [
        Sent(rng.choice(("look", "buy")), f"{rng.choice(PREFIXES)}{rng.getrandbits(16):x}\n{'€' * 180}{number}",
             NOON + rng.choice((timedelta(), MICROSECOND)), rng.choice((0, 1, 2**62 - 1)))
        for number in range(40)
    ]  # fmt: skip
    events += [Sent("look", "one", kind="impression"), Sent("look", "one", kind="click"), Sent("look", "one")]
    rng.shuffle(events)
    await store(clickhouse, tenant, events)
    service = insights()
    ordered = sorted(events, key=lambda event: event.place, reverse=True)
    for limit in (1, 2, 7, 100):
        rows = await pages(service, tenant, limit)
        assert [(row.event_id, row.at, row.key) for row in rows] == [
            (event.id, event.at, key(event.kind, event.id).hex()) for event in ordered
        ]
    text = b"".join([piece async for piece in service.export(tenant, SEARCH)]).decode()
    cells = [(row["event_id"], row["at"]) for row in csv.DictReader(io.StringIO(text, newline=""))]
    assert cells == [(event.id, event.at.isoformat()) for event in ordered]
    own = await insights(ids_of=_ids_of_ada).of_person(tenant, UUID(int=1), SEARCH, None, 200)
    assert [row.event_id for row in own.items] == [event.id for event in ordered]


async def _ids_of_ada(tenant_id: int, person: UUID) -> list[str]:
    return ["ada"]


@pytest.mark.parametrize(
    "cursor",
    [
        encode(to_us(NOON) // 1000, "0" * 32),  # of an earlier release
        encode(to_us(NOON), 2**64, "a", "0" * 32),
        encode(-1, 0, "a", "0" * 32),
        encode(2**63, 0, "a", "0" * 32),
        encode(to_us(NOON), 0, "a", "0"),
    ],
)
async def test_a_cursor_of_another_form_is_refused(insights: MakeInsights, tenant: int, cursor: str) -> None:
    with pytest.raises(Invalid) as refused:
        await insights().search(tenant, SEARCH, cursor, 5)
    assert refused.value.code == "BAD_CURSOR"


async def test_the_export_of_a_person_goes_by_the_order_of_events(
    database: Database, clickhouse: ClickHouse, insights: MakeInsights, tenant: int
) -> None:
    insights()
    rng = Random(6)
    events = [
        Sent("look", f"{rng.getrandbits(16):x}-{number}", NOON + rng.randrange(2) * MICROSECOND, rng.randrange(3))
        for number in range(30)
    ]
    await store(clickhouse, tenant, events)
    exported = (await Forgetting(database, clickhouse).export(tenant, "ada", 100))["clickhouse.events"]
    ordered = sorted(events, key=lambda event: event.place)
    assert [(row["event_id"], row["at"].replace(tzinfo=UTC)) for row in exported] == [
        (event.id, event.at) for event in ordered
    ]
