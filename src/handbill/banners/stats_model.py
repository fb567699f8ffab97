"""The question and the answer of banner statistics."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal
from uuid import UUID

import msgspec

from handbill.banners.suspicion import Suspected
from handbill.banners.uniques import UniquePeople
from handbill.kit.read_waits import Completeness, Until

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

    @property
    def until(self) -> Until:
        """What a read with `wait` waits for."""
        return "exported" if self.uniques or self.source == "events" else "counted"


class StatsRow(msgspec.Struct, frozen=True):
    """Counts of one point. Marked ones (bots) are kept apart. `ctr` is clicks by impressions, none without any.

    Chance alone would leave the true ratio between `ctr_low` and `ctr_high` in 95 of 100 cases (Wilson score interval).
    A dimension is null where it was not asked for, or where the events did not say it.
    """

    at: datetime | None
    """When the row's interval begins; null with the interval `total`."""
    impressions: int
    clicks: int
    views: int
    dismissals: int
    """Views that ended because the user closed the banner."""
    marked_impressions: int
    """Impressions that are counted apart because a mark makes them doubtful, e.g. a bot's."""
    marked_clicks: int
    """Clicks that are counted apart because a mark makes them doubtful, e.g. a bot's."""
    marked_views: int
    """Views that are counted apart because a mark makes them doubtful, e.g. a bot's."""
    ctr: float | None
    """Clicks divided by impressions; null without impressions."""
    banner_id: UUID | None = None
    """The banner's public id; null where it was not asked for."""
    placement_id: UUID | None = None
    """The placement's public id; null where it was not asked for or not sent."""
    campaign_id: UUID | None = None
    """The campaign's public id; null where it was not asked for or there is none."""
    ctr_low: float | None = None
    """The lower end of the 95 % confidence interval of `ctr` (Wilson score)."""
    ctr_high: float | None = None
    """The upper end of the 95 % confidence interval of `ctr` (Wilson score)."""
    variant: str | None = None
    """The key of the variant; null where it was not asked for or not sent."""
    country: str | None = None
    """The country by two letters, ISO 3166; null where it was not asked for or not known."""
    device: str | None = None
    """The kind of device; null where it was not asked for or not sent."""
    page: str | None = None
    """The page's address without query and fragment; null where it was not asked for or not sent."""
    banner_name: str | None = None
    """The banner's name now."""
    placement_name: str | None = None
    """The placement's name now."""
    campaign_name: str | None = None
    """The campaign's name now."""


class DayState(msgspec.Struct, frozen=True):
    """How sure a UTC day is: rolled up when, touched by late events since when, raw rows gone since when."""

    day: date
    """The day, in UTC."""
    rolled_at: datetime | None
    """When its counts were last worked out from the raw rows; null: not yet."""
    dirty_since: datetime | None
    """Since when late events wait for the next such count; null: none do."""
    combinations: int | None
    """How many combinations of banner, placement and campaign the day has."""
    raw_gone_at: datetime | None
    """When its raw rows were deleted, after which it is not counted anew; null: they are there."""


class MissingEvents(msgspec.Struct, frozen=True):
    """Events of a UTC day that were counted and are not in the event store: on their way, past retention, or lost."""

    day: date
    """The day, in UTC."""
    events: int
    """How many events of that day the event store lacks."""


class StatsAnswer(Completeness, frozen=True):
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
    """Events accepted later than this may still be missing."""
    days: list[DayState]
    """How settled each UTC day of the range is."""
    suspected: list[Suspected] | None = msgspec.field(default_factory=list)
    """Events marked as doubtful when their day was counted, by reason; null where it cannot be worked out."""
    uniques: UniquePeople | None = None
    """How many different people; null unless asked for."""
    source: Source = "counters"
    """Where the figures come from: the counters, or the stored events."""
    complete_from: date | None = None
    """Days from this UTC day on miss no event, that of `fresh_at` aside; null where no day misses any."""
    missing: list[MissingEvents] = msgspec.field(default_factory=list)
    """Of `events` only: how many events were counted and are not in the event store, by day."""
