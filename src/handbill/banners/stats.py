"""Reading the stats: any range, any zone, by any dimension; from the counters, or from the events themselves."""

from __future__ import annotations

import csv
import io
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from handbill.banners.ctr import ctr, wilson
from handbill.banners.dimensions import page_form
from handbill.banners.event_filters import Chosen, spelled
from handbill.banners.event_stats import EventStats, complete_from, missing
from handbill.banners.stats_model import (
    LONGEST_PAGE,
    MOST_DAYS,
    MOST_ROWS,
    MOST_VALUES,
    VALUE_LENGTH,
    DayState,
    Dimension,
    Interval,
    MissingEvents,
    Source,
    StatsAnswer,
    StatsQuery,
    StatsRow,
)
from handbill.banners.suspicion import Suspected, counted
from handbill.banners.tally import FIGURES
from handbill.banners.uniques import AWAY, UniquePeople, Uniques
from handbill.events.service import EventsService
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, PostgresStopped, Tx
from handbill.insights.service import EventStoreReader
from handbill.kit.cells import harmless
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault, Invalid
from handbill.kit.zones import find_zone
from handbill.tenants.service import Directory

__all__ = ["Dimension", "Interval", "Source", "Stats", "StatsAnswer", "StatsQuery", "StatsRow", "as_csv", "totals"]

S = sqlfiles.load("handbill.banners")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERED = ("banner", "placement", "campaign")

Named = Mapping[tuple[str, int], tuple[UUID, str]]
"""Public id and name by kind and number."""


class Found(NamedTuple):
    """What a source answers."""

    rows: list[dict[str, Any]]
    fresh_at: datetime
    gaps: Sequence[MissingEvents] = ()


class Asked(NamedTuple):
    """A question with everything looked up: whose, between which moments, in which zone, and about what."""

    tenant: int
    query: StatsQuery
    by: tuple[Dimension, ...]
    zone: zoneinfo.ZoneInfo
    start: datetime
    end: datetime
    chosen: Chosen


class Stats:
    """Without an event store, questions by variant, country, device and page are refused as while it is away."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        clock: Clock,
        events: EventsService,
        event_store: EventStoreReader | None,
    ) -> None:
        self._database = database
        self._events = events
        self._uniques = Uniques(event_store) if event_store is not None else None
        self._event_stats = EventStats(event_store)
        self._directory = directory
        self._clock = clock

    async def read(self, tenant: int, query: StatsQuery) -> StatsAnswer:
        _check(query)
        zone = await self._zone(tenant, query)
        async with self._database.tenant(tenant) as tx:
            chosen = await self._chosen(tx, tenant, query)
        asked = Asked(
            tenant, query, tuple(dict.fromkeys(query.by)), zone,
            _midnight(query.start, zone), _midnight(query.end, zone), chosen,
        )  # fmt: skip
        source = query.source
        found = await (self._from_counters(asked) if source == "counters" else self._from_events(asked))
        if len(found.rows) > MOST_ROWS:
            raise Invalid(
                f"More than {MOST_ROWS} rows; ask for a shorter range, a coarser interval or fewer dimensions.",
                code="TOO_MANY_ROWS",
            )
        async with self._database.tenant(tenant) as tx:
            names = await self._names(tx, tenant, found.rows)
            states = await tx.fetch(S.days_state, tenant, asked.start.date(), asked.end.date() + timedelta(days=1))
        points = [_row(row, names) for row in found.rows]
        days = [DayState(**dict(state)) for state in states]
        return StatsAnswer(
            points, totals(points), str(zone), found.fresh_at, days, await self._suspected(asked),
            await self._people(asked), source, complete_from(found.gaps, found.fresh_at), list(found.gaps),
        )  # fmt: skip

    async def _from_counters(self, asked: Asked) -> Found:
        by, query = asked.by, asked.query
        async with self._database.tenant(asked.tenant) as tx:
            rows = await tx.fetch(
                S.series, asked.tenant, asked.start, asked.end, query.interval, str(asked.zone),
                *(name in by for name in _NUMBERED), *asked.chosen.numbers, MOST_ROWS + 1,
            )  # fmt: skip
        lag = timedelta(seconds=self._events.lag_seconds_of(asked.tenant))
        found = [dict(row) for row in rows]
        for row in found:
            if query.interval == "day":  # midnight may come twice, and then the earlier one is it
                row["at"] = _midnight(row["at"].astimezone(asked.zone).date(), asked.zone)
        return Found(found, self._clock.now() - lag)

    async def _from_events(self, asked: Asked) -> Found:
        now = self._clock.now()
        fresh_at = now - timedelta(seconds=await self._events.export_lag_seconds_of(asked.tenant))
        query = asked.query
        read = await self._event_stats.read(
            asked.tenant, (asked.start, asked.end), str(asked.zone), query.interval, asked.by, asked.chosen
        )
        async with self._database.tenant(asked.tenant) as tx:  # asked second: what came in between counts as missing
            days = await tx.fetch(S.counted_by_day, asked.tenant, asked.start, asked.end, *asked.chosen.numbers)
        counts = {row["day"]: (row["impressions"], row["clicks"], row["views"]) for row in days}
        return Found([_of_events(row, asked) for row in read.rows], fresh_at, missing(counts, read.days))

    async def _suspected(self, asked: Asked) -> list[Suspected] | None:
        """In a transaction of its own: a statement that reaches its time limit ends it."""
        try:
            async with self._database.tenant(asked.tenant) as tx:
                return await counted(tx, asked.tenant, asked.start, asked.end, asked.chosen)
        except PostgresStopped as error:
            if not error.is_time_limit:
                raise
            return None

    async def _people(self, asked: Asked) -> UniquePeople | None:
        if not asked.query.uniques:
            return None
        if self._uniques is None:
            return UniquePeople(note=AWAY)
        return await self._uniques.read(asked.tenant, asked.start, asked.end, asked.chosen)

    async def _zone(self, tenant: int, query: StatsQuery) -> zoneinfo.ZoneInfo:
        name = query.zone or (await self._directory.profile(tenant)).tenant.time_zone
        zone = find_zone(name)
        if zone is None:
            raise Invalid("`zone` is no time zone.", faults=[Fault("zone", "must be a name such as Europe/Paris")])
        return zone

    async def _chosen(self, tx: Tx, tenant: int, query: StatsQuery) -> Chosen:
        """Our numbers for the public ids asked for; an unknown one matches nothing."""
        wanted = dict(zip(_NUMBERED, (query.banners, query.placements, query.campaigns), strict=True))
        rows = await tx.fetch(S.ids_of, tenant, *(list(ids) for ids in wanted.values()))
        numbers = [[row["id"] for row in rows if row["kind"] == kind] if ids else None for kind, ids in wanted.items()]
        return spelled(numbers, query.variants, query.countries, query.devices, query.pages)

    async def _names(self, tx: Tx, tenant: int, rows: Sequence[Mapping[str, Any]]) -> Named:
        ids = [sorted({number for row in rows if (number := row.get(f"{kind}_id")) is not None}) for kind in _NUMBERED]
        found = await tx.fetch(S.public_ids, tenant, *ids)
        return {(row["kind"], row["id"]): (row["public_id"], row["name"]) for row in found}


def totals(rows: Sequence[StatsRow]) -> StatsRow:
    """The sum of all rows; its ratio is of the sums, not a mean of ratios."""
    sums = {name: sum(getattr(row, name) for row in rows) for name in FIGURES}
    return _with_ratio(None, sums, {})


def as_csv(answer: StatsAnswer) -> bytes:
    """The rows as CSV; a text that a spreadsheet would take for a formula gets an apostrophe in front.

    A last line that starts with # says which days lack events, if any do.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    names = [field.name for field in msgspec.structs.fields(StatsRow)]
    writer.writerow(names)
    for row in answer.rows:
        writer.writerow([_cell(getattr(row, name)) for name in names])
    if answer.complete_from is not None:
        lost = sum(gap.events for gap in answer.missing if gap.day < answer.complete_from)
        writer.writerow(
            [f"# {lost} events of days before {answer.complete_from} are not in the event store and not here."]
        )
    return out.getvalue().encode("utf-8", "replace")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return harmless(value.replace("\0", "\N{REPLACEMENT CHARACTER}"))
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _of_events(row: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """A row of the event store as one of the counters would look, with the dimensions that only events have."""
    cut, interval = int(row["cut"]), asked.query.interval
    at: datetime | None = None
    if interval == "day":
        at = _midnight((_EPOCH + timedelta(days=cut)).date(), asked.zone)
    elif interval != "total":
        at = _EPOCH + timedelta(milliseconds=cut)
    dimensions = {f"{name}_id" if name in _NUMBERED else name: row[name] or None for name in asked.by}
    return {"at": at, **dimensions, **{name: int(row[name]) for name in FIGURES}}


def _row(row: Mapping[str, Any], names: Named) -> StatsRow:
    said: dict[str, Any] = {name: row.get(name) for name in ("variant", "country", "device", "page")}
    for kind in _NUMBERED:
        public_id, name = names.get((kind, row.get(f"{kind}_id") or 0), (None, None))
        said |= {f"{kind}_id": public_id, f"{kind}_name": name}
    return _with_ratio(row["at"], {name: row[name] for name in FIGURES}, said)


def _with_ratio(at: datetime | None, figures: dict[str, Any], said: dict[str, Any]) -> StatsRow:
    impressions, clicks = figures["impressions"], figures["clicks"]
    low, high = wilson(impressions, clicks)
    return StatsRow(at=at, ctr=ctr(impressions, clicks), ctr_low=low, ctr_high=high, **figures, **said)


def _check(query: StatsQuery) -> None:
    if query.start >= query.end or (query.end - query.start).days > MOST_DAYS:
        raise Invalid(
            "The range is empty or too long.",
            faults=[Fault("to", f"must be later than from, by at most {MOST_DAYS} days")],
        )
    if query.start.year < 1970 or query.end.year > 9998:  # a zone would carry them past the calendar's ends
        raise Invalid("There is nothing there.", faults=[Fault("from", "must be between 1970 and 9998")])
    faults = [
        *_value_faults("variant", query.variants, VALUE_LENGTH),
        *_value_faults("country", query.countries, VALUE_LENGTH),
        *_value_faults("device", query.devices, VALUE_LENGTH),
        *_value_faults("page", query.pages, LONGEST_PAGE),
    ]
    faults += [Fault("page", "is nothing but a query or a fragment") for page in query.pages if not page_form(page)]
    if faults:
        raise Invalid("A filter is not valid.", faults=faults)


def _value_faults(name: str, values: Sequence[str], longest: int) -> Iterable[Fault]:
    if len(values) > MOST_VALUES:
        yield Fault(name, f"may be given {MOST_VALUES} times at most")
    if any(not 1 <= len(value) <= longest or "\0" in value for value in values):
        yield Fault(name, f"must have 1 to {longest} characters, none of them NUL")


def _midnight(day: date, zone: zoneinfo.ZoneInfo) -> datetime:
    """The first moment of a day in the zone, as UTC."""
    return datetime.combine(day, time(), zone).astimezone(UTC)
