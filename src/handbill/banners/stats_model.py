"""The question and the answer of banner statistics."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal
from uuid import UUID

import msgspec

from handbill.banners.suspicion import Suspected
from handbill.banners.uniques import UniquePeople

MOST_ROWS = 10_000
MOST_DAYS = 800
MOST_VALUES = 50
"""Of one filter by variant, country, device or page."""
VALUE_LENGTH = 200
LONGEST_PAGE = 2_000
"""Of an address in a filter, with the query and fragment that are cut off."""
Interval = Literal["bucket", "hour", "day", "total"]
Dimension = Literal["banner", "placement", "campaign", "variant", "country", "device", "page"]
Source = Literal["counters", "events"]
OF_EVENTS: tuple[Dimension, ...] = ("variant", "country", "device", "page")
"""Dimensions that only the events have: the counters are kept by banner, placement and campaign."""


class StatsQuery(msgspec.Struct, frozen=True):
    """`start` and `end` are days in the zone, half-open. Without a zone: the tenant's own."""

    start: date
    end: date
    interval: Interval = "day"
    by: tuple[Dimension, ...] = ()
    banners: tuple[UUID, ...] = ()
    placements: tuple[UUID, ...] = ()
    campaigns: tuple[UUID, ...] = ()
    zone: str | None = None
    uniques: bool = False
    variants: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        """Where it is answered from."""
        filtered = self.variants or self.countries or self.devices or self.pages
        return "events" if filtered or not set(OF_EVENTS).isdisjoint(self.by) else "counters"


class StatsRow(msgspec.Struct, frozen=True):
    """Counts of one point. Marked ones (bots) are kept apart. `ctr` is clicks by impressions, none without any.

    Chance alone would leave the true ratio between `ctr_low` and `ctr_high` in 95 of 100 cases (Wilson score interval).
    A dimension is null where it was not asked for, or where the events did not say it.
    """

    at: datetime | None
    impressions: int
    clicks: int
    views: int
    dismissals: int
    marked_impressions: int
    marked_clicks: int
    marked_views: int
    ctr: float | None
    banner_id: UUID | None = None
    placement_id: UUID | None = None
    campaign_id: UUID | None = None
    ctr_low: float | None = None
    ctr_high: float | None = None
    variant: str | None = None
    country: str | None = None
    device: str | None = None
    page: str | None = None
    banner_name: str | None = None
    placement_name: str | None = None
    campaign_name: str | None = None


class DayState(msgspec.Struct, frozen=True):
    """How sure a UTC day is: rolled up when, touched by late events since when, raw rows gone since when."""

    day: date
    rolled_at: datetime | None
    dirty_since: datetime | None
    combinations: int | None
    raw_gone_at: datetime | None


class MissingEvents(msgspec.Struct, frozen=True):
    """Events of a UTC day that were counted and are not in the event store: on their way, past retention, or lost."""

    day: date
    events: int


class StatsAnswer(msgspec.Struct, frozen=True):
    """The rows, their sum, and how fresh they are: events accepted later than `fresh_at` may still be missing.

    `source`: `counters`, or `events` for a question by variant, country, device or page. `missing`, of `events` only:
    how many events the counters have for the same banners, placements and campaigns, and the event store has not.
    `complete_from`: the first UTC day after the last one, before the day of `fresh_at`, that misses any; null where
    none does. `suspected` events are in the counts; they were marked when their day was rolled up; null where nobody
    can say which of them the filters leave. `uniques` where asked for.
    """

    rows: list[StatsRow]
    totals: StatsRow
    zone: str
    fresh_at: datetime
    days: list[DayState]
    suspected: list[Suspected] | None = []
    uniques: UniquePeople | None = None
    source: Source = "counters"
    complete_from: date | None = None
    missing: list[MissingEvents] = []
