"""The questions and their answers: frozen, with a limit on everything that a caller could make large.

A day is a day in the tenant's zone unless the question names another; ranges are half-open, `to` is the day after.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, field

from handbill.kit.read_waits import Completeness

MOST_SERIES = 8
MOST_FILTERS = 20
MOST_VALUES = 100
MOST_STEPS = 10
MOST_GROUPS = 50
MOST_POINTS = 1_000
MOST_DAYS = 800
MOST_PERIODS = 60
MOST_MEMBERS = 10_000
MOST_LEVELS = 10
"""Names in the path of a nested property."""
SEARCH_DAYS = 90
EXPORT_ROWS = 100_000

Column = Literal[
    "event", "distinct_id", "session_id", "url", "referrer", "country", "browser", "browser_version", "os",
    "os_version", "device_type", "language", "timezone", "screen_width", "screen_height", "lib", "source",
]  # fmt: skip
Op = Literal["is", "is_not", "in", "not_in", "contains", "not_contains", "gt", "gte", "lt", "lte", "set", "not_set"]
Owner = Literal["event", "person"]
Measure = Literal["count", "people", "sum", "avg", "min", "max", "p50", "p90", "p95", "p99"]
Interval = Literal["hour", "day", "week", "month"]
Period = Literal["day", "week", "month"]

Word = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=1000)]
Zone = Annotated[str, Meta(min_length=1, max_length=64)]
Value = Text | bool | int | float

_NUMERIC = frozenset({"gt", "gte", "lt", "lte"})
_ALONE = frozenset({"set", "not_set"})
_LARGEST = 2**53


def _plain(*texts: str | None) -> None:
    for text in texts:
        if text is not None and ("\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text)):
            raise ValueError("a text holds a character that no event can hold")


def path_of(name: str) -> tuple[str, ...]:
    """The names that lead to a nested property; none for a name without a dot, with an empty part, or more than 10."""
    parts = tuple(name.split("."))
    return parts if 1 < len(parts) <= MOST_LEVELS and all(parts) else ()


def _check_field(name: str | None, column: str | None, of: str) -> None:
    if (name is None) == (column is None):
        raise ValueError("name either a property or a column")
    if of == "person" and name is None:
        raise ValueError("only a property can be of a person")
    _plain(name)


def _check_value(op: str, value: Value) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if op in _NUMERIC and not number:
        raise ValueError(f"{op} compares numbers")
    if op in ("contains", "not_contains") and not isinstance(value, str):
        raise ValueError(f"{op} takes a text")
    if number and not abs(value) <= _LARGEST:  # type: ignore[arg-type] # a number, by the line above
        raise ValueError("a number is too large to compare exactly")
    if isinstance(value, str):
        _plain(value)


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something an event says, one of its properties or of its columns; or a property of its person, as it is now.

    With dots, and where there is no property of that very name, it leads into objects: `$context.campaign.source`."""

    property: Word | None = None
    column: Column | None = None
    of: Owner = "event"
    """Whose property: the event's, or that of its person, as it is now."""

    def __post_init__(self) -> None:
        _check_field(self.property, self.column, self.of)


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text and booleans compare as text; numbers as numbers, also with a property that was sent as text.

    `is_not`, `not_in` and `not_contains` hold for an event that does not say it at all. A property with dots is looked
    for by its whole name, then as a path into objects.
    """

    op: Op
    """How the event's value is compared with `values`; `set` and `not_set` take none."""
    property: Word | None = None
    column: Column | None = None
    values: Annotated[list[Value], Meta(max_length=MOST_VALUES)] = []
    """What it is compared with: one value, or several for `in` and `not_in`."""
    of: Owner = "event"
    """Whose property: the event's, or that of its person, as it is now."""

    def __post_init__(self) -> None:
        _check_field(self.property, self.column, self.of)
        several = self.op in ("in", "not_in")
        if (self.op in _ALONE) != (not self.values) or (len(self.values) > 1 and not several):
            raise ValueError("set and not_set take no value, in and not_in several, every other op one")
        for value in self.values:
            _check_value(self.op, value)

    def subject(self) -> Field:
        return Field(self.property, self.column, self.of)


Filters = Annotated[list[Filter], Meta(max_length=MOST_FILTERS)]


class Matching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events by name (any, if none is given) and filters."""

    event: Word | None = None
    filters: Filters = []

    def __post_init__(self) -> None:
        _plain(self.event)


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a trend. `of` names the numeric property for every measure but count and people."""

    event: Word | None = None
    measure: Measure = "count"
    """What is counted or worked out of the events."""
    of: Word | None = None
    """The numeric property of a sum, average, extreme or percentile; null for count and people."""
    filters: Filters = []

    def __post_init__(self) -> None:
        if (self.of is None) != (self.measure in ("count", "people")):
            raise ValueError("count and people take no `of`, every other measure needs one")
        _plain(self.event, self.of)


class TrendsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines over time. `compare` adds the same number of days right before. `segment`: only of people who are in it."""

    start: date = field(name="from")
    end: date = field(name="to")
    series: Annotated[list[Series], Meta(min_length=1, max_length=MOST_SERIES)]
    """One line each, at most 8."""
    interval: Interval = "day"
    """The length of time that one figure is of."""
    zone: Zone | None = None
    filters: Filters = []
    breakdown: Field | None = None
    groups: Annotated[int, Meta(ge=1, le=MOST_GROUPS)] = 10
    compare: bool = False
    """Whether the same number of days right before is added."""
    segment: UUID | None = None


class FunnelQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps in the order of events (decision 0036), all within the window from the first."""

    start: date = field(name="from")
    end: date = field(name="to")
    steps: Annotated[list[Matching], Meta(min_length=2, max_length=MOST_STEPS)]
    """The events of each step in order, 2 to 10."""
    window_s: Annotated[int, Meta(ge=1, le=90 * 86_400)] = 14 * 86_400
    """Within how many seconds from the first step all steps must happen."""
    zone: Zone | None = None
    filters: Filters = []
    breakdown: Field | None = None
    groups: Annotated[int, Meta(ge=1, le=MOST_GROUPS)] = 10
    segment: UUID | None = None


class RetentionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who came back. `first`: a person belongs to the period of its very first start; else to each with a start."""

    start: date = field(name="from")
    end: date = field(name="to")
    begins: Matching = field(default_factory=Matching)
    """The events with which a person begins."""
    returns: Matching = field(default_factory=Matching)
    """The events with which a person comes back."""
    period: Period = "day"
    first: bool = True
    """True: a person belongs to the period of the first beginning only; false: to each with one."""
    zone: Zone | None = None
    filters: Filters = []
    segment: UUID | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    """Events of some days, newest first."""

    start: date
    end: date
    event: str | None = None
    distinct_ids: tuple[str, ...] | None = None
    filters: tuple[Filter, ...] = ()
    zone: str | None = None

    def __post_init__(self) -> None:
        _plain(self.event, *(self.distinct_ids or ()))


class Group(msgspec.Struct, frozen=True):
    """A value of the breakdown. `kind`: all (no breakdown), value, none (not said), other (values beyond the limit)."""

    kind: Literal["all", "value", "none", "other"]
    """all: no breakdown; value: this value; none: not sent; other: values beyond the limit."""
    value: str | None = None
    """The value of the breakdown; null for the other kinds."""


class Line(msgspec.Struct, frozen=True):
    """One series for one group: a figure for each point of `points`, and one for the whole range.

    Counts and people are whole numbers. Where nothing was measured, counts and sums are 0 and every other figure is
    null. `unidentified`, for the measure `people`: events that named no user, session or device. They are in no figure
    of people; null for other measures.
    """

    series: int
    """The position of its series in the question, from 0."""
    group: Group
    figures: list[float | None]
    """One figure for each of `points`; null where nothing was measured."""
    total: float | None
    """The figure of the whole range; null where nothing was measured."""
    previous: list[float | None] | None = None
    """The figures of the time before; null unless `compare` was asked for."""
    previous_total: float | None = None
    """The figure of the whole time before; null unless `compare` was asked for."""
    unidentified: list[int] | None = None
    """For `people`, by point: events without user, session or device; null for other measures."""
    unidentified_total: int | None = None
    """For `people`: events of the whole range without user, session or device; else null."""


class Trends(Completeness, frozen=True):
    """`points` are the first moments of the intervals; the first one may begin inside its week or month."""

    points: list[datetime]
    """When each interval begins."""
    lines: list[Line]
    """One line for each series and group."""
    zone: str
    previous_points: list[datetime] | None = None
    """When each interval of the time before begins; null unless `compare` was asked for."""


class Step(msgspec.Struct, frozen=True):
    """People who came this far, and the median time from the step before, of those who did."""

    people: int
    """How many people came this far."""
    of_first: float | None
    """Their part of those at the first step, from 0 to 1; null where nobody was there."""
    of_previous: float | None
    """Their part of those at the step before, from 0 to 1; 1 at the first step; null where nobody was there."""
    median_s: float | None
    """The median time from the step before on each person's way through, in seconds; null where there is none."""


class FunnelLine(msgspec.Struct, frozen=True):
    group: Group
    steps: list[Step]
    """How many people came to each step."""


class Funnel(Completeness, frozen=True):
    """`unidentified`: for each step, events that match it and named no user, session or device; no person has them."""

    lines: list[FunnelLine]
    """One line for each group."""
    zone: str
    unidentified: list[int] = field(default_factory=list)
    """For each step, events that match it without user, session or device."""


class Cohort(msgspec.Struct, frozen=True):
    """`people` began in the period that starts at `at`; `returned[k]` of them came back k + 1 periods later."""

    at: datetime
    """When the period begins."""
    people: int
    """How many people began in it."""
    returned: list[int]
    """How many of them came back one period later, two periods later, and so on."""


class UnidentifiedEvents(msgspec.Struct, frozen=True):
    """Events between `from` and `to` that match and named no user, session or device; they are in no cohort."""

    begins: int = 0
    """Such events among those with which people begin."""
    returns: int = 0
    """Such events among those with which people come back."""


class Retention(Completeness, frozen=True):
    cohorts: list[Cohort]
    """One row for each period in which people began."""
    period: Period
    zone: str
    unidentified: UnidentifiedEvents = UnidentifiedEvents()
    """Events that are in no cohort, for they have no user, session or device."""


class EventRow(msgspec.Struct, frozen=True):
    """One stored event, with the person that its id belongs to now; null where it named no user, session or device."""

    at: datetime
    """When it happened."""
    received: datetime
    """When it was received."""
    event: str
    """The name of the event."""
    event_id: str
    """The id that the event was sent with, or was given on arrival."""
    distinct_id: str
    person_id: UUID | None
    """The person that the id belongs to now; null where it named no user, session or device."""
    session_id: str | None
    """The id of the session; null: not sent."""
    properties: dict[str, Any]
    url: str | None
    """The address of the page; null: not sent."""
    referrer: str | None
    """The address of the page that led there; null: not sent."""
    country: str | None
    """The country by two letters, ISO 3166; null: not known."""
    browser: str | None
    """The browser by its name; null: not known."""
    os: str | None
    """The operating system by its name; null: not known."""
    device_type: str | None
    """The kind of device; null: not known."""
    lib: str | None
    """The client library that sent it; null: not known."""
    source: str | None
    """What took it in; `banners`: counted by Handbill itself."""
    marks: list[str]
    """What makes it doubtful, e.g. bot; empty: nothing."""
    key: str = ""
    """The event's key in the event store, as hexadecimal digits; of two events with one id it tells which is which."""


class EventPage(Completeness, frozen=True):
    """One piece of a list of events. `next` is the cursor of the following piece, or null at the end."""

    items: list[EventRow]
    """The events, newest first."""
    next: str | None = None
    """What to give as `cursor` for the following events; null: there are no more."""


class Stored(msgspec.Struct, frozen=True):
    """Is the event in the event store? `state` is shipped, not_yet, or away (the store did not answer)."""

    state: Literal["shipped", "not_yet", "away"]
    """Whether the event store has it; `away`: it did not answer."""
    row: EventRow | None = None
    """The event as it is stored; null: it is not, or not known."""


class Whereabouts(Completeness, frozen=True):
    """Where an event went, from acceptance to the event store. `outcome` is counted, counted_apart, not_counted, stored
    (whether it counted is not known yet), parked, waiting or unknown."""

    event_id: str
    outcome: str
    """What became of it, as a constant: counted, counted_apart, not_counted, stored, parked, waiting or unknown."""
    said: str
    """The same in words, with the reason where there is one."""
    kind: str | None = None
    """impression, click, view or capture; null: not known."""
    counted_at: datetime | None = None
    """When it came in; null: it is not stored."""
    parked: list[dict[str, Any]] = field(default_factory=list)
    """Each time it was parked: when, why, and whether it was sent in again."""
    stored: Stored | None = None
    """Whether the event store has it, and as what."""
    person_id: UUID | None = None
    """The person that the event belongs to now; null: none."""
    names: dict[str, str] = field(default_factory=dict)
    """Of the `banner`, `placement` and `campaign` whose ids are in the stored event."""
