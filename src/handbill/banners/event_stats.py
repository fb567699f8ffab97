"""Banner statistics from the events themselves, by any dimension: exact, since every event is in the store once.

The same buckets and the same rules as the counters (`tally`). What the store does not have is told, never left out
without a word: the counters know how many events there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from handbill.banners.event_filters import COLUMNS, Chosen, condition, scope
from handbill.banners.stats_model import MOST_ROWS, Dimension, Interval, MissingEvents
from handbill.banners.tally import BUCKET_MS, FIGURES
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouseAway, ClickHouseBusy
from handbill.insights.service import Compiled, EventStoreReader
from handbill.kit.errors import Busy

Q = sqlfiles.queries("handbill.banners")
_BUCKET = f"intDiv(toUnixTimestamp64Milli(e.at), {BUCKET_MS}) * {BUCKET_MS}"
_CUTS: dict[Interval, str] = {
    "bucket": _BUCKET,
    "hour": f"{_BUCKET} - 60000 * toMinute(fromUnixTimestamp64Milli({_BUCKET}, 'UTC'), {{zone:String}})",
    "day": "toInt64(toDate32(e.at, {zone:String}))",
    "total": "toInt64(0)",
}
"""What a row is of: milliseconds, or days from 1970 on in the zone."""
_RETRY_AFTER_S = 2.0

DayCounts = Mapping[date, tuple[int, int, int]]
"""Impressions, clicks and views of a UTC day, marked ones included."""


class EventSeries(msgspec.Struct, frozen=True):
    """Rows with `cut`, the dimensions that were asked for, and FIGURES; and how many events of each day are there."""

    rows: list[dict[str, Any]]
    days: DayCounts


class EventStats:
    def __init__(self, event_store: EventStoreReader | None) -> None:
        self._event_store = event_store

    async def read(
        self, tenant: int, span: tuple[datetime, datetime], zone: str, interval: Interval, by: Sequence[Dimension],
        chosen: Chosen,
    ) -> EventSeries:  # fmt: skip
        """One row more than may be answered, if there are more. Raises Busy (503) while the event store is away.

        It is asked once: one that accepts connections and does not answer would keep the caller for three timeouts."""
        if self._event_store is None:
            raise away()
        asked = series(tenant, span, zone, interval, by, chosen)
        try:
            async with self._event_store.limiter.slot(tenant):
                found = await self._event_store.ask(asked, again=False)
                days = await self._event_store.ask(day_counts(tenant, span, chosen.by_number_only()), again=False)
        except (ClickHouseAway, ClickHouseBusy) as error:
            raise away() from error
        names = ("cut", *by, *FIGURES)
        return EventSeries(
            [dict(zip(names, row, strict=True)) for row in found],
            {
                date.fromisoformat(str(day)): (int(seen), int(clicked), int(viewed))
                for day, seen, clicked, viewed in days
            },
        )


def away() -> Busy:
    return Busy(
        "Statistics by variant, country, device or page are read from ClickHouse, which is away or busy; nothing was "
        "counted. Ask again, or leave these dimensions out.",
        code="STATS_EVENTS_AWAY",
        retry_after=_RETRY_AFTER_S,
    )


def series(
    tenant: int, span: tuple[datetime, datetime], zone: str, interval: Interval, by: Sequence[Dimension], chosen: Chosen
) -> Compiled:
    where, params = condition(chosen)
    slots = {
        "cut": _CUTS[interval],
        "dimensions": "".join(f"{COLUMNS[name]} as {name}_," for name in by),
        "where": where,
        "groups": ", ".join(("cut", *(f"{name}_" for name in by))),
    }
    text = str(Q.event_series)
    for slot, words in slots.items():
        text = text.replace(f"<<{slot}>>", words)
    return Compiled(text, {**scope(tenant, *span), **params, "zone": zone, "rows": MOST_ROWS + 1})


def day_counts(tenant: int, span: tuple[datetime, datetime], chosen: Chosen) -> Compiled:
    where, params = condition(chosen)
    return Compiled(str(Q.event_days).replace("<<where>>", where), {**scope(tenant, *span), **params})


def missing(counted: DayCounts, stored: DayCounts) -> list[MissingEvents]:
    """Kind by kind: more events of one kind do not make up for fewer of another."""
    found = []
    for day, counts in sorted(counted.items()):
        events = sum(max(0, wanted - there) for wanted, there in zip(counts, stored.get(day, (0, 0, 0)), strict=True))
        if events:
            found.append(MissingEvents(day, events))
    return found


def complete_from(gaps: Sequence[MissingEvents], fresh_at: datetime) -> date | None:
    """The day after the last one that misses events and is over: on the day of `fresh_at` some are on their way."""
    over = [gap.day for gap in gaps if gap.day < fresh_at.date()]
    return max(over) + timedelta(days=1) if over else None
