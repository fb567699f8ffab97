"""The three questions over time: checked, cut into intervals, asked, and put together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from handbill.insights import answers, compile
from handbill.insights.compile import Range
from handbill.insights.model import (
    MOST_MEMBERS,
    MOST_PERIODS,
    Field,
    Filter,
    Funnel,
    FunnelQuery,
    Matching,
    Retention,
    RetentionQuery,
    Trends,
    TrendsQuery,
    UnidentifiedEvents,
)
from handbill.insights.periods import EARLIEST, check_range, cuts, midnight, zone_named
from handbill.insights.store import EventStoreReader
from handbill.kit.errors import Fault, Invalid, NotFound
from handbill.kit.telemetry import metrics
from handbill.tenants.service import Directory

MOST_FIGURES = 50_000
MembersOf = Callable[[int, UUID, int], Awaitable[Sequence[UUID]]]
"""Handed in by the wiring: the people of a segment, at most so many."""


class Questions:
    def __init__(
        self, reader: EventStoreReader, directory: Directory, members_of: MembersOf | None = None
    ) -> None:  # fmt: skip
        self._reader = reader
        self._directory = directory
        self._members_of = members_of

    async def zone(self, tenant: int, name: str | None) -> ZoneInfo:
        return zone_named(name or (await self._directory.profile(tenant)).tenant.time_zone)

    async def trends(self, tenant: int, query: TrendsQuery) -> Trends:
        zone = await self.zone(tenant, query.zone)
        check_range(query.start, query.end)
        points = cuts(query.start, query.end, query.interval, zone)
        before: list[datetime] = []
        if query.compare:
            earlier = query.start - (query.end - query.start)
            check_range(earlier, query.start)
            before = cuts(earlier, query.start, query.interval, zone)
        _check_figures(query, len(points) + len(before))
        end = midnight(query.end, zone)
        only = await self._members(tenant, query.segment)
        whole = Range((before or points)[0], end, (*before, *points), points[0], only)
        async with self._asked(tenant, "trends"):
            top = await self._top(tenant, Range(points[0], end, only=only), query, query.series)
            rows = await self._reader.ask(compile.trends(tenant, whole, query, top))
        lines = answers.trend_lines(query, rows, points, before, top)
        return Trends(points, lines, str(zone), before if query.compare else None)

    async def funnel(self, tenant: int, query: FunnelQuery) -> Funnel:
        zone = await self.zone(tenant, query.zone)
        check_range(query.start, query.end)
        only = await self._members(tenant, query.segment)
        within = Range(midnight(query.start, zone), midnight(query.end, zone), only=only)
        async with self._asked(tenant, "funnel"):
            top = await self._top(tenant, within, query, query.steps[:1])
            rows = await self._reader.ask(compile.funnel(tenant, within, query, top))
            unidentified = await self._unidentified(tenant, within, query.filters, query.steps)
        lines = answers.funnel_lines(rows, len(query.steps), top, query.breakdown is not None)
        return Funnel(lines, str(zone), unidentified)

    async def retention(self, tenant: int, query: RetentionQuery) -> Retention:
        zone = await self.zone(tenant, query.zone)
        check_range(query.start, query.end)
        points = cuts(query.start, query.end, query.period, zone)
        if len(points) > MOST_PERIODS:
            raise Invalid(
                f"More than {MOST_PERIODS} periods; ask for a shorter range or a longer period.",
                faults=[Fault("period", f"gives {len(points)} periods, more than {MOST_PERIODS}")],
            )
        begin = datetime(EARLIEST.year, 1, 1, tzinfo=UTC) if query.first else points[0]
        only = await self._members(tenant, query.segment)
        within = Range(begin, midnight(query.end, zone), tuple(points), points[0], only)
        async with self._asked(tenant, "retention"):
            rows = await self._reader.ask(compile.retention(tenant, within, query))
            proper = Range(points[0], within.end, only=only)
            begins, returns = await self._unidentified(tenant, proper, query.filters, (query.begins, query.returns))
        unidentified = UnidentifiedEvents(begins, returns)
        return Retention(answers.cohorts(rows, points), query.period, str(zone), unidentified)

    async def _unidentified(
        self, tenant: int, within: Range, filters: Sequence[Filter], among: Sequence[Matching]
    ) -> list[int]:
        asked = compile.unidentified_events(tenant, within, filters, among)
        if asked is None:
            return [0] * len(among)
        return [int(count) for count in (await self._reader.ask(asked))[0]]

    async def _members(self, tenant: int, segment: UUID | None) -> tuple[UUID, ...] | None:
        if segment is None:
            return None
        if self._members_of is None:
            raise NotFound("There is no such segment.", code="SEGMENT_NOT_FOUND")
        found = await self._members_of(tenant, segment, MOST_MEMBERS + 1)
        if len(found) > MOST_MEMBERS:
            raise Invalid(
                f"The segment has more than {MOST_MEMBERS} people; filter by what the events say, or narrow it.",
                code="SEGMENT_TOO_LARGE",
            )
        return tuple(found)

    async def _top(
        self, tenant: int, within: Range, query: TrendsQuery | FunnelQuery, among: Sequence[Any]
    ) -> list[str]:
        field: Field | None = query.breakdown
        if field is None:
            return []
        of_people = isinstance(query, FunnelQuery)
        asked = compile.top_values(tenant, within, field, query.filters, among, query.groups, of_people=of_people)
        return [str(row[0]) for row in await self._reader.ask(asked)]

    @asynccontextmanager
    async def _asked(self, tenant: int, question: str) -> AsyncIterator[None]:
        started = time.perf_counter()
        async with self._reader.limiter.slot(tenant):
            yield
        metrics.INSIGHTS_SECONDS.labels(question).observe(time.perf_counter() - started)


def _check_figures(query: TrendsQuery, points: int) -> None:
    groups = 1 if query.breakdown is None else query.groups + 2
    figures = points * groups * len(query.series)
    if figures > MOST_FIGURES:
        raise Invalid(
            f"The answer would have up to {figures} figures, more than {MOST_FIGURES}; ask for fewer points or groups.",
            code="TOO_MANY_ROWS",
        )
