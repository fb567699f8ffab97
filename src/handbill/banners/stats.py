"""Reading the stats: any range, any zone, by banner, placement and campaign; sums of the live rows."""

from __future__ import annotations

import csv
import io
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from handbill.banners.suspicion import Suspected, counted
from handbill.banners.tally import FIGURES
from handbill.banners.uniques import AWAY, UniquePeople, Uniques
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault, Invalid
from handbill.kit.zones import find_zone
from handbill.tenants.service import Directory

S = sqlfiles.load("handbill.banners")
MOST_ROWS = 10_000
MOST_DAYS = 800
Interval = Literal["bucket", "hour", "day", "total"]
Dimension = Literal["banner", "placement", "campaign"]


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


class StatsRow(msgspec.Struct, frozen=True):
    """Counts of one point. Marked ones (bots) are kept apart. `ctr` is clicks by impressions, none without any."""

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


class DayState(msgspec.Struct, frozen=True):
    """How sure a UTC day is: rolled up when, touched by late events since when, raw rows gone since when."""

    day: date
    rolled_at: datetime | None
    dirty_since: datetime | None
    combinations: int | None
    raw_gone_at: datetime | None


class StatsAnswer(msgspec.Struct, frozen=True):
    """The rows, their sum, and how fresh they are: events accepted later than `fresh_at` may still be missing.

    `suspected` events are in the counts; they were marked when their day was rolled up. `uniques` where asked for.
    """

    rows: list[StatsRow]
    totals: StatsRow
    zone: str
    fresh_at: datetime
    days: list[DayState]
    suspected: list[Suspected] = []
    uniques: UniquePeople | None = None


class Stats:
    def __init__(self, database: Database, directory: Directory, clock: Clock, uniques: Uniques | None = None) -> None:
        self._database = database
        self._uniques = uniques
        self._directory = directory
        self._clock = clock

    async def read(self, tenant: int, query: StatsQuery, lag_seconds: float = 0.0) -> StatsAnswer:
        _check(query)
        zone = await self._zone(tenant, query)
        start, end = _midnight(query.start, zone), _midnight(query.end, zone)
        async with self._database.tenant(tenant) as tx:
            chosen = await self._numbers(tx, tenant, query)
            rows = await tx.fetch(
                S.series, tenant, start, end, query.interval, str(zone), "banner" in query.by, "placement" in query.by,
                "campaign" in query.by, *chosen, MOST_ROWS + 1,
            )  # fmt: skip
            if len(rows) > MOST_ROWS:
                raise Invalid(
                    f"More than {MOST_ROWS} rows; ask for a shorter range, a coarser interval or fewer dimensions.",
                    code="TOO_MANY_ROWS",
                )
            names = await self._publics(tx, tenant, rows)
            doubtful = await counted(tx, tenant, start, end, chosen[0])
            states = await tx.fetch(S.days_state, tenant, start.date(), end.date() + timedelta(days=1))
        points = [_row(row, names) for row in rows]
        days = [DayState(**dict(state)) for state in states]
        fresh = self._clock.now() - timedelta(seconds=lag_seconds)
        people = None
        if query.uniques:
            people = await self._uniques.read(tenant, start, end, chosen) if self._uniques else UniquePeople(note=AWAY)
        return StatsAnswer(points, totals(points), str(zone), fresh, days, doubtful, people)

    async def _zone(self, tenant: int, query: StatsQuery) -> zoneinfo.ZoneInfo:
        name = query.zone or (await self._directory.profile(tenant)).tenant.time_zone
        zone = find_zone(name)
        if zone is None:
            raise Invalid("`zone` is no time zone.", faults=[Fault("zone", "must be a name such as Europe/Paris")])
        return zone

    async def _numbers(self, tx: Tx, tenant: int, query: StatsQuery) -> list[list[int] | None]:
        """Our numbers for the public ids asked for; an unknown one matches nothing."""
        wanted = {"banner": query.banners, "placement": query.placements, "campaign": query.campaigns}
        rows = await tx.fetch(S.ids_of, tenant, *(list(ids) for ids in wanted.values()))
        return [[row["id"] for row in rows if row["kind"] == kind] if ids else None for kind, ids in wanted.items()]

    async def _publics(self, tx: Tx, tenant: int, rows: Sequence[Any]) -> dict[tuple[str, int], UUID]:
        columns = ("banner_id", "placement_id", "campaign_id")
        ids = [sorted({row[name] for row in rows if row[name] is not None}) for name in columns]
        found = await tx.fetch(S.public_ids, tenant, *ids)
        return {(row["kind"], row["id"]): row["public_id"] for row in found}


def totals(rows: Sequence[StatsRow]) -> StatsRow:
    """The sum of all rows; its ratio is of the sums, not a mean of ratios."""
    sums = [sum(getattr(row, name) for row in rows) for name in FIGURES]
    return StatsRow(at=None, ctr=ctr(sums[0], sums[1]), **dict(zip(FIGURES, sums, strict=True)))


def ctr(impressions: int, clicks: int) -> float | None:
    return round(clicks / impressions, 6) if impressions else None


def as_csv(answer: StatsAnswer) -> bytes:
    """The rows as CSV: numbers, times and ids only, so nothing a spreadsheet would take for a formula."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    names = [field.name for field in msgspec.structs.fields(StatsRow)]
    writer.writerow(names)
    for row in answer.rows:
        writer.writerow([_cell(getattr(row, name)) for name in names])
    return out.getvalue().encode()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _row(row: Any, names: dict[tuple[str, int], UUID]) -> StatsRow:
    return StatsRow(
        at=row["at"],
        ctr=ctr(row["impressions"], row["clicks"]),
        banner_id=names.get(("banner", row["banner_id"])),
        placement_id=names.get(("placement", row["placement_id"])),
        campaign_id=names.get(("campaign", row["campaign_id"])),
        **{name: row[name] for name in FIGURES},
    )


def _check(query: StatsQuery) -> None:
    if query.start >= query.end or (query.end - query.start).days > MOST_DAYS:
        raise Invalid(
            "The range is empty or too long.",
            faults=[Fault("to", f"must be later than from, by at most {MOST_DAYS} days")],
        )
    if query.start.year < 1970 or query.end.year > 9998:  # a zone would carry them past the calendar's ends
        raise Invalid("There is nothing there.", faults=[Fault("from", "must be between 1970 and 9998")])


def _midnight(day: date, zone: zoneinfo.ZoneInfo) -> datetime:
    """The first moment of a day in the zone, as UTC."""
    return datetime.combine(day, time(), zone).astimezone(UTC)
