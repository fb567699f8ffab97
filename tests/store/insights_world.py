"""Generated events of two tenants in one table, and every question answered again by plain loops over them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID, uuid5
from zoneinfo import ZoneInfo

import msgspec

from handbill.infra.clickhouse import ClickHouse
from handbill.insights.model import Field, Filter, FunnelQuery, RetentionQuery, TrendsQuery
from handbill.insights.periods import cuts, midnight
from tests.store.funnel_model import chain
from tests.store.insights_properties import NESTED, TEXTS, nested, property_of, value_of

SPACE = UUID(int=11)
BANNERS = ("$banner_impression", "$banner_click")
NAMES = ("view", "buy", "sign up", "it's")
COUNTRIES = ("FR", "NP", "")
# Names and values that would leave a quoted string, a bound parameter or a comment if anything were spliced.
PROPERTIES = (
    "plan",
    "a.b",
    "it's",
    "x{y:String}",
    "'; drop table events; --",
    "back\\slash",
    "tab\tline\n",
    "日本 `q`",
)
COLUMNS = (
    "tenant_id", "at", "received", "event", "event_id", "event_key", "distinct_id", "person_id", "properties", "url",
    "country", "screen_width", "source", "micros", "sequence",
)  # fmt: skip
PERSON_COLUMNS = ("tenant_id", "person_id", "properties", "version", "deleted")
ZONES = ("Europe/Paris", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")


class Happened(msgspec.Struct, frozen=True):
    id: str
    at: datetime
    name: str
    distinct_id: str
    properties: dict[str, Any]
    url: str
    country: str
    screen_width: int | None
    source: str
    person: UUID | None
    """None: nobody said whose it was."""
    sequence: int = 0
    of_person: dict[str, Any] = {}
    """The properties that its person has now."""

    @property
    def place(self) -> tuple[datetime, int, str]:
        """In the order of events."""
        return self.at, self.sequence, self.id

    @property
    def key(self) -> bytes:
        return blake2b(self.id.encode(), digest_size=16).digest()


class World:
    """Events of one tenant around a change of the clock, with ids that moved from person to person."""

    def __init__(self, tenant: int, seed: int, events: int = 800) -> None:
        self.tenant = tenant
        self.rng = rng = Random(seed)
        self.order = Random(seed + 1_000)
        self.segments: dict[UUID, set[UUID]] = {}
        self.zone = ZoneInfo(rng.choice(ZONES))
        self.start = rng.choice((date(2026, 3, 1), date(2026, 10, 20), date(2026, 3, 24)))
        ids = [f"id-{number}" for number in range(40)]
        self.moves = [(rng.choice(ids), rng.randrange(6), 2 + place, rng.random() < 0.2) for place in range(24)]
        self.now = {one: uuid5(SPACE, f"{tenant}:{one}") for one in ids}
        for one, person, _, deleted in self.moves:
            alone = uuid5(SPACE, f"{tenant}:{one}")
            self.now[one] = alone if deleted else uuid5(SPACE, f"{tenant}:p{person}")
        self.described = {
            person: {name: value_of(self.order) for name in PROPERTIES[:3]} | nested(self.order)
            for person in sorted(set(self.now.values()))
            if self.order.random() < 0.7
        }
        begin = midnight(self.start, self.zone) - timedelta(days=9)
        self.events = [self._event(number, begin, ids) for number in range(events)]

    def _event(self, number: int, begin: datetime, ids: Sequence[str]) -> Happened:
        rng = self.rng
        at = begin + timedelta(milliseconds=rng.randrange(24 * 86_400) * 1000 + rng.choice((0, 0, 1, 999)))
        if rng.random() < 0.2:  # some at the very edges, and some at one and the same moment
            at = midnight(self.start + timedelta(days=rng.randrange(9)), self.zone)
            at -= timedelta(milliseconds=rng.choice((0, 0, 1)))
        at += timedelta(microseconds=self.order.choice((0, 0, 0, 1, 999)))
        begun = len(ids) * max((at - begin).days, 0) // 24 + 2  # people begin all the time, not only at the beginning
        one = rng.choice(ids[:begun])
        name, source, person = rng.choice(NAMES), "own", self.now[one]
        id_ = f"{self.order.getrandbits(16):04x}-{self.tenant}-{number}"
        unknown = rng.random()
        if unknown < 0.2:
            name, source = rng.choice(BANNERS), "banners"
        if unknown < 0.12:
            return self._made(id_, at, name, f"event:{id_}", source, None)
        if unknown > 0.98:  # a sender may call somebody so
            one = f"event:{id_}"
            person = self.now[one] = uuid5(SPACE, f"{self.tenant}:{one}")
        return self._made(id_, at, name, one, source, person)

    def _made(self, id_: str, at: datetime, name: str, one: str, source: str, person: UUID | None) -> Happened:
        rng = self.rng
        return Happened(
            id_, at, name, one,
            {name: value_of(rng) for name in PROPERTIES if rng.random() < 0.5} | nested(self.order),
            rng.choice(("", "https://a.example/Q?x=1", "https://b.example/")), rng.choice(COUNTRIES),
            rng.choice((None, 320, 1920)), source, person, self.order.choice((0, 0, 1, 2, 2**62 - 1)),
            self.described.get(person, {}) if person is not None else {},
        )  # fmt: skip

    async def put(self, clickhouse: ClickHouse) -> None:
        rows = [
            (
                self.tenant, to_millisecond(event.at), to_millisecond(event.at), event.name, event.id, event.key,
                event.distinct_id,
                uuid5(SPACE, f"{self.tenant}:{event.distinct_id}"),
                json.dumps(event.properties, ensure_ascii=False, separators=(",", ":")),
                event.url, event.country, event.screen_width, event.source, event.at.microsecond % 1000, event.sequence,
            )
            for event in self.events
        ]  # fmt: skip
        await clickhouse.insert("events", COLUMNS, rows, token=f"world-{self.tenant}")
        moved = [
            (self.tenant, one, uuid5(SPACE, f"{self.tenant}:p{person}"), version, int(deleted))
            for one, person, version, deleted in self.moves
        ]
        columns = ("tenant_id", "distinct_id", "person_id", "version", "deleted")
        await clickhouse.insert("person_distinct_id_overrides", columns, moved, token=f"moves-{self.tenant}")
        await clickhouse.insert("person_properties", PERSON_COLUMNS, self._person_rows(), token=f"people-{self.tenant}")

    def _person_rows(self) -> list[tuple[Any, ...]]:
        """With what somebody was like before, and what those were like who are gone."""
        gone = [(person, {"plan": "gone"}) for person in set(self.now.values()) - self.described.keys()]
        rows: list[tuple[Any, ...]] = [(self.tenant, person, "", 9, 1) for person, _ in gone]
        for person, properties in [*gone, *self.described.items()]:
            for version, said in ((8, properties), (7, {"plan": "before"})):
                text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
                rows.append((self.tenant, person, text, version, 0))
        return rows

    # --- questions
    def segment(self) -> str | None:
        """Now and then a segment of a few people."""
        if self.rng.random() < 0.75:
            return None
        made = UUID(int=self.rng.getrandbits(128))
        people = sorted(set(self.now.values()))
        self.segments[made] = set(self.rng.sample(people, len(people) // 2))
        return str(made)

    async def members(self, tenant: int, segment: UUID, most: int) -> list[UUID]:
        return sorted(self.segments[segment]) if tenant == self.tenant else []

    def span(self, most: int = 14) -> dict[str, Any]:
        start = self.start + timedelta(days=self.rng.randrange(-3, 3))
        end = start + timedelta(days=self.rng.randrange(2, most))
        return {"from": start.isoformat(), "to": end.isoformat(), "zone": str(self.zone)}

    def field(self) -> dict[str, str]:
        if self.rng.random() < 0.3:
            return {"column": self.rng.choice(("country", "event", "screen_width", "distinct_id", "url"))}
        of = {"of": "person"} if self.order.random() < 0.25 else {}
        return {"property": self.property(), **of}

    def property(self) -> str:
        name = self.rng.choice(PROPERTIES)
        return self.order.choice(NESTED) if self.order.random() < 0.4 else name

    def filters(self, most: int = 2) -> list[dict[str, Any]]:
        return [self._filter() for _ in range(most) if self.rng.random() < 0.35]

    def _filter(self) -> dict[str, Any]:
        rng = self.rng
        op = rng.choice(("is", "is_not", "in", "not_in", "contains", "not_contains", "gt", "gte", "lt", "lte",
                         "set", "not_set"))  # fmt: skip
        values: list[Any] = []
        if op in ("is", "is_not", "in", "not_in"):
            several = rng.randrange(1, 4) if op.endswith("in") else 1
            values = [rng.choice((*TEXTS[:-1], 3, 12, 7.25, True, False, "FR", "320")) for _ in range(several)]
        elif op.endswith("contains"):
            values = [rng.choice(("X", "1", "example/q", "本", "'", "zz"))]
        elif op not in ("set", "not_set"):
            values = [rng.choice((-1.5, 0, 3, 12, 600))]
        return {"op": op, "values": values, **self.field()}

    def matching(self) -> dict[str, Any]:
        return {"event": self.rng.choice((*NAMES[:2], *BANNERS, None, None)), "filters": self.filters(1)}


def to_millisecond(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


# --- the same rules, as plain as can be
def said(event: Happened, field: Field) -> Any:
    if field.property is not None:
        return property_of(event.of_person if field.of == "person" else event.properties, field.property)
    names = {"event": "name"}
    value = getattr(event, names.get(field.column or "", field.column or ""))
    return None if value == "" else value


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if re.fullmatch(r"-?\d+(\.\d+)?", value) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def holds(event: Happened, one: Filter) -> bool:
    value = said(event, one.subject())
    if one.op == "set":
        return value is not None
    if one.op in ("is_not", "not_in", "not_contains", "not_set"):
        positive: Any = {"is_not": "is", "not_in": "in", "not_contains": "contains", "not_set": "set"}[one.op]
        return not holds(event, Filter(positive, one.property, one.column, one.values, one.of))
    if value is None:
        return False
    if one.op in ("is", "in"):
        return any(
            text(value) == text(wanted) if isinstance(wanted, str | bool) else number(value) == wanted
            for wanted in one.values
        )
    if one.op == "contains":
        return text(one.values[0]).lower() in text(value).lower()
    found, wanted = number(value), float(one.values[0])
    if found is None:
        return False
    return {"gt": found > wanted, "gte": found >= wanted, "lt": found < wanted, "lte": found <= wanted}[one.op]


def matches(event: Happened, one: Any) -> bool:
    named = one.event is None or event.name == one.event
    return named and all(holds(event, condition) for condition in one.filters)


def within(
    world: World, start: datetime, end: datetime, filters: Sequence[Filter], segment: UUID | None = None
) -> list[Happened]:
    return [
        event
        for event in world.events
        if start <= event.at < end
        and (segment is None or event.person in world.segments[segment])
        and all(holds(event, one) for one in filters)
    ]


def people_of(events: Sequence[Happened]) -> set[UUID]:
    return {event.person for event in events if event.person is not None}


def nobodys(events: Sequence[Happened], one: Any) -> int:
    return sum(event.person is None and matches(event, one) for event in events)


def grouped(event: Happened, field: Field | None, top: Sequence[str]) -> tuple[str, str | None]:
    if field is None:
        return "all", None
    value = said(event, field)
    if value is None:
        return "none", None
    return ("value", text(value)[:200]) if text(value)[:200] in top else ("other", None)


def top_values(events: Sequence[Happened], field: Field | None, among: Sequence[Any], groups: int) -> list[str]:
    if field is None:
        return []
    told = [event for event in events if any(matches(event, one) for one in among)]
    counts = Counter(text(said(event, field))[:200] for event in told if said(event, field) is not None)
    return sorted(counts, key=lambda value: (-counts[value], value.encode()))[:groups]


def measured(events: Sequence[Happened], measure: str, of: str | None) -> float | None:
    if measure == "count":
        return len(events)
    if measure == "people":
        return len(people_of(events))
    numbers = sorted(
        found for event in events if (found := number(said(event, Field(property=of)))) is not None
    )  # fmt: skip
    if measure == "sum":
        return math.fsum(numbers)
    if not numbers:
        return None
    if measure == "avg":
        return math.fsum(numbers) / len(numbers)
    if measure in ("min", "max"):
        return numbers[0] if measure == "min" else numbers[-1]
    place = int(measure[1:]) / 100 * (len(numbers) - 1)
    low = math.floor(place)
    high = min(low + 1, len(numbers) - 1)
    return numbers[low] + (numbers[high] - numbers[low]) * (place - low)


Told = dict[tuple[int, str, str | None], tuple[list[float | None], float | None]]


def trends(world: World, query: TrendsQuery, start: date, end: date, top: Sequence[str]) -> Told:
    """Figures and total of every (series, group) that has any event, for one range of days."""
    edges = cuts(start, end, query.interval, world.zone)
    bounds = [*edges, midnight(end, world.zone)]
    events = within(world, edges[0], bounds[-1], query.filters, query.segment)
    found: Told = {}
    for place, series in enumerate(query.series):
        mine = [event for event in events if matches(event, series)]
        for group in {grouped(event, query.breakdown, top) for event in mine}:
            ours = [event for event in mine if grouped(event, query.breakdown, top) == group]
            figures = [
                measured([one for one in ours if low <= one.at < high], series.measure, series.of)
                for low, high in pairwise(bounds)
            ]
            found[(place, *group)] = (figures, measured(ours, series.measure, series.of))
    return found


def unidentified(
    world: World, query: TrendsQuery, place: int, group: tuple[str, str | None], top: Sequence[str]
) -> list[int]:
    """Of one series and group, for each interval."""
    edges = cuts(query.start, query.end, query.interval, world.zone)
    bounds = [*edges, midnight(query.end, world.zone)]
    events = within(world, edges[0], bounds[-1], query.filters, query.segment)
    ours = [event for event in events if grouped(event, query.breakdown, top) == group]
    return [
        nobodys([event for event in ours if low <= event.at < high], query.series[place])
        for low, high in pairwise(bounds)
    ]


def funnel(world: World, query: FunnelQuery) -> tuple[list[str], dict[tuple[str, str | None], list[list[datetime]]]]:
    """The listed values, and for each group the chains of its people."""
    events = within(
        world, midnight(query.start, world.zone), midnight(query.end, world.zone), query.filters, query.segment
    )
    top = top_values([one for one in events if one.person is not None], query.breakdown, query.steps[:1], query.groups)
    found: dict[tuple[str, str | None], list[list[datetime]]] = {}
    for person in people_of(events):
        moments: list[tuple[datetime, set[int]]] = []
        first: Happened | None = None
        for event in sorted(events, key=lambda event: event.place):
            hits = {place for place, step in enumerate(query.steps) if matches(event, step)}
            if event.person == person and hits:
                moments.append((event.at, hits))
                first = event if first is None and 0 in hits else first
        if first is not None:
            walked = chain(moments, len(query.steps), timedelta(seconds=query.window_s))
            found.setdefault(grouped(first, query.breakdown, top), []).append(walked)
    return top, found


def retention(world: World, query: RetentionQuery) -> list[tuple[int, list[int]]]:
    edges = cuts(query.start, query.end, query.period, world.zone)
    bounds = [*edges, midnight(query.end, world.zone)]
    events = within(world, datetime(1971, 1, 1, tzinfo=UTC), bounds[-1], query.filters, query.segment)

    def place(at: datetime) -> int:
        return sum(edge <= at for edge in edges) - 1

    cohorts: list[set[UUID]] = [set() for _ in edges]
    back: dict[UUID, set[int]] = {}
    for person in people_of(events):
        mine = [event for event in events if event.person == person]
        begun = sorted(event.at for event in mine if matches(event, query.begins))
        for at in begun[:1] if query.first else [at for at in begun if at >= edges[0]]:
            if at >= edges[0]:
                cohorts[place(at)].add(person)
        back[person] = {place(one.at) for one in mine if one.at >= edges[0] and matches(one, query.returns)}
    return [
        (len(people), [sum(later in back[person] for person in people) for later in range(number + 1, len(edges))])
        for number, people in enumerate(cohorts)
    ]
