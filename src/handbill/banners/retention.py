"""Months are made ahead and dropped whole: never inside a cap's window, never before they are rolled up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date, datetime, timedelta

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.telemetry import logs, metrics

S = sqlfiles.load("handbill.banners")
_log = logs.get("retention")
PARENTS = ("banners.banner_impressions", "banners.banner_clicks", "caps.user_views")
AHEAD = 2
Archive = Callable[[Tx, date], Awaitable[None]]


class Cleaned(msgspec.Struct, frozen=True):
    """What one run did. `kept` months were old enough, but a day in them or before is not rolled up yet."""

    made: int
    dropped: list[str]
    kept: list[str]


class Retention:
    """`archive` is told of a month before its rows go, inside the same transaction."""

    def __init__(self, database: Database, clock: Clock, *, days: int = 90, archive: Archive | None = None) -> None:
        self._database = database
        self._clock = clock
        self._days = days
        self._archive = archive

    async def run(self) -> Cleaned:
        now = self._clock.now()
        made = await self._ahead(now)
        dropped: list[str] = []
        kept: list[str] = []
        limit = await self._limit(now)
        async with self._database.worker() as tx:
            months = [row["month"] for row in await tx.fetch(S.months_of, list(PARENTS))]
        for month in months:
            if _next(month) <= limit:
                (dropped if await self._drop(month) else kept).append(f"{month:%Y-%m}")
        metrics.PARTITIONS_DROPPED.inc(len(dropped))
        _log.info("retention-cleanup", made=made, dropped=dropped, kept=kept, limit=limit.isoformat())
        return Cleaned(made, dropped, kept)

    async def _limit(self, now: datetime) -> date:
        """The day before which nobody needs raw rows: no tenant's retention, and no cap's window."""
        async with self._database.worker() as tx:
            days = await tx.fetchval(S.keep_days, self._days) or self._days
            hours = await tx.fetchval(S.longest_window_hours)
        return (now - max(timedelta(days=max(int(days), 1)), timedelta(hours=int(hours)))).date()

    async def _ahead(self, now: datetime) -> int:
        made = 0
        month = now.date().replace(day=1)
        for _ in range(AHEAD + 1):
            for parent in PARENTS:
                async with self._database.worker() as tx:
                    made += bool(await tx.fetchval(S.make_month, parent, month))
            month = _next(month)
        return made

    async def _drop(self, month: date) -> bool:
        """A month of all tables and its days' mark in one transaction: a recount never finds half of a day's rows."""
        end = _next(month)
        async with self._database.worker() as tx:
            if await tx.fetchval(S.unrolled_before, end):
                _log.warning("retention-waits", month=month.isoformat(), detail="a day in it is not rolled up yet")
                return False
            if self._archive is not None:
                await self._archive(tx, month)
            await tx.execute(S.mark_raw_gone, end)
            for parent in PARENTS:
                await tx.fetchval(S.drop_month, parent, month)
        return True


def _next(month: date) -> date:
    return (month.replace(day=28) + timedelta(days=4)).replace(day=1)
