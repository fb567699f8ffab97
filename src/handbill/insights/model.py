"""The questions and their answers: frozen, with a limit on everything that a caller could make large.

A day is a day in the tenant's zone unless the question names another; ranges are half-open, `to` is the day after.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, field

MOST_SERIES = 8
MOST_FILTERS = 20
MOST_VALUES = 100
MOST_STEPS = 10
MOST_GROUPS = 50
MOST_POINTS = 1_000
MOST_DAYS = 800
MOST_PERIODS = 60
MOST_MEMBERS = 10_000
SEARCH_DAYS = 90
EXPORT_ROWS = 100_000

Column = Literal[
    "event", "distinct_id", "session_id", "url", "referrer", "country", "browser", "browser_version", "os",
    "os_version", "device_type", "language", "timezone", "screen_width", "screen_height", "lib", "source",
]  # fmt: skip
Op = Literal["is", "is_not", "in", "not_in", "contains", "not_contains", "gt", "gte", "lt", "lte", "set", "not_set"]
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
    """Something an event says: one of its properties, or one of its columns."""

    property: Word | None = None
    column: Column | None = None

    def __post_init__(self) -> None:
        if (self.property is None) == (self.column is None):
            raise ValueError("name either a property or a column")
        _plain(self.property)


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text and booleans compare as text; numbers as numbers, also with a property that was sent as text.

    `is_not`, `not_in` and `not_contains` hold for an event that does not say it at all.
    """

    op: Op
    property: Word | None = None
    column: Column | None = None
    values: Annotated[list[Value], Meta(max_length=MOST_VALUES)] = []

    def __post_init__(self) -> None:
        if (self.property is None) == (self.column is None):
            raise ValueError("name either a property or a column")
        _plain(self.property)
        several = self.op in ("in", "not_in")
        if (self.op in _ALONE) != (not self.values) or (len(self.values) > 1 and not several):
            raise ValueError("set and not_set take no value, in and not_in several, every other op one")
        for value in self.values:
            _check_value(self.op, value)

    def subject(self) -> Field:
        return Field(self.property, self.column)


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
    of: Word | None = None
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
    interval: Interval = "day"
    zone: Zone | None = None
    filters: Filters = []
    breakdown: Field | None = None
    groups: Annotated[int, Meta(ge=1, le=MOST_GROUPS)] = 10
    compare: bool = False
    segment: UUID | None = None


class FunnelQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps in the order of events (decision 0036), all within the window from the first."""

    start: date = field(name="from")
    end: date = field(name="to")
    steps: Annotated[list[Matching], Meta(min_length=2, max_length=MOST_STEPS)]
    window_s: Annotated[int, Meta(ge=1, le=90 * 86_400)] = 14 * 86_400
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
    returns: Matching = field(default_factory=Matching)
    period: Period = "day"
    first: bool = True
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
    value: str | None = None


class Line(msgspec.Struct, frozen=True):
    """One series for one group: a figure for each point of `points`, and one for the whole range.

    Where nothing was measured, counts and sums are 0 and every other figure is null. `unidentified`, for the measure
    `people`: events that named no user, session or device. They are in no figure of people; null for other measures.
    """

    series: int
    group: Group
    figures: list[float | None]
    total: float | None
    previous: list[float | None] | None = None
    previous_total: float | None = None
    unidentified: list[int] | None = None
    unidentified_total: int | None = None


class Trends(msgspec.Struct, frozen=True):
    """`points` are the first moments of the intervals; the first one may begin inside its week or month."""

    points: list[datetime]
    lines: list[Line]
    zone: str
    previous_points: list[datetime] | None = None


class Step(msgspec.Struct, frozen=True):
    """People who came this far, and the median time from the step before, of those who did."""

    people: int
    of_first: float | None
    of_previous: float | None
    median_s: float | None


class FunnelLine(msgspec.Struct, frozen=True):
    group: Group
    steps: list[Step]


class Funnel(msgspec.Struct, frozen=True):
    """`unidentified`: for each step, events that match it and named no user, session or device; no person has them."""

    lines: list[FunnelLine]
    zone: str
    unidentified: list[int] = []


class Cohort(msgspec.Struct, frozen=True):
    """`people` began in the period that starts at `at`; `returned[k]` of them came back k + 1 periods later."""

    at: datetime
    people: int
    returned: list[int]


class UnidentifiedEvents(msgspec.Struct, frozen=True):
    """Events between `from` and `to` that match and named no user, session or device; they are in no cohort."""

    begins: int = 0
    returns: int = 0


class Retention(msgspec.Struct, frozen=True):
    cohorts: list[Cohort]
    period: Period
    zone: str
    unidentified: UnidentifiedEvents = UnidentifiedEvents()


class EventRow(msgspec.Struct, frozen=True):
    """One stored event, with the person that its id belongs to now; null where it named no user, session or device."""

    at: datetime
    received: datetime
    event: str
    event_id: str
    distinct_id: str
    person_id: UUID | None
    session_id: str | None
    properties: dict[str, Any]
    url: str | None
    referrer: str | None
    country: str | None
    browser: str | None
    os: str | None
    device_type: str | None
    lib: str | None
    source: str | None
    marks: list[str]
    key: str = ""


class Stored(msgspec.Struct, frozen=True):
    """Is the event in the event store? `state` is shipped, not_yet, or away (the store did not answer)."""

    state: Literal["shipped", "not_yet", "away"]
    row: EventRow | None = None


class Whereabouts(msgspec.Struct, frozen=True):
    """Where an event went, from acceptance to the event store. `outcome` is counted, counted_apart, not_counted, stored
    (whether it counted is not known yet), parked, waiting or unknown."""

    event_id: str
    outcome: str
    said: str
    kind: str | None = None
    counted_at: datetime | None = None
    parked: list[dict[str, Any]] = []
    stored: Stored | None = None
    person_id: UUID | None = None
    names: dict[str, str] = {}
    """Of the `banner`, `placement` and `campaign` whose ids are in the stored event."""
