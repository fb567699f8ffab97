"""Forget who it was: impressions and clicks stay counted, without a name. Safe to repeat.

No index leads to a person here: it would cost every impression. Each month is read in short statements, so that an
erasure ends however large the month is. The few rows of a small tenant are found by the tenant's index; the month of a
large one is read in ranges of pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, work
from handbill.infra.sqlfiles import Sql

S = sqlfiles.load("handbill.banners")
PAGES = 2_048
"""Pages that one statement reads: 16 MiB, about 80,000 rows."""
FEW = 5_000
"""A tenant with fewer rows in a month is read by its index."""


class _Table(msgspec.Struct, frozen=True):
    """The statements of one table. `erase_at` and `export_at` take places; the others take the ends of a range."""

    name: str
    places: Sql
    erase_at: Sql
    erase: Sql
    export_at: Sql
    export: Sql


_TABLES = tuple(
    _Table(
        f"banners.banner_{kind}",
        S[f"places_of_{kind}"],
        S[f"erase_{kind}_at"],
        S[f"erase_{kind}"],
        S[f"export_{kind}_at"],
        S[f"export_{kind}"],
    )
    for kind in ("impressions", "clicks")
)


class _Part(msgspec.Struct, frozen=True):
    """What one statement reads of a month: the pages from `first` to before `after`, or so many of `places`."""

    start: datetime
    end: datetime
    places: list[Any] | None
    first: int
    after: int


class Erasure:
    """Erases or exports what the raw rows say about a person. `pages` and `few` bound each statement."""

    def __init__(self, database: Database, *, pages: int = PAGES, few: int = FEW) -> None:
        self._database = database
        self._pages = pages
        self._few = few

    async def erase(self, tenant_id: int, subjects: list[str]) -> Mapping[str, int]:
        """Returns the number of rows cleared, by table. Each statement is a transaction of its own."""
        cleared: Counter[str] = Counter({table.name: 0 for table in _TABLES})
        for table in _TABLES:
            async for part in self._parts(table, tenant_id):
                cleared[table.name] += await self._erase(table, tenant_id, subjects, part)
        return dict(cleared)

    async def _erase(self, table: _Table, tenant_id: int, subjects: list[str], part: _Part) -> int:
        """A statement that is cut at its time limit is repeated with half as much, from where it stopped."""
        about = (tenant_id, subjects, part.start, part.end)
        places = part.places

        async def portion(place: tuple[int], limit: int) -> tuple[int, tuple[int] | None]:
            end = min(place[0] + limit, part.after)
            async with self._database.worker() as tx:
                if places is not None:
                    rows = await tx.execute(table.erase_at, *about, places[place[0] : end])
                else:
                    rows = await tx.execute(table.erase, *about, (place[0], 0), (end, 0))
            return rows, (end,) if end < part.after else None

        return await work(portion, (part.first,), part.after - part.first)

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """At most so many rows of each table, of the oldest months."""
        return {table.name: await self._export(table, tenant_id, subject, most) for table in _TABLES}

    async def _export(self, table: _Table, tenant_id: int, subject: str, most: int) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = []
        async for part in self._parts(table, tenant_id):
            about = (tenant_id, [subject], part.start, part.end)
            async with self._database.worker() as tx:
                if part.places is not None:
                    rows = await tx.fetch(table.export_at, *about, part.places)
                else:
                    rows = await tx.fetch(table.export, *about, (part.first, 0), (part.after, 0), most - len(result))
            result += [dict(row) for row in rows]
            if len(result) >= most:
                break
        return sorted(result[:most], key=lambda row: row["occurred_at"])

    async def _parts(self, table: _Table, tenant_id: int) -> AsyncIterator[_Part]:
        """All parts of all months. No transaction is open while a part is in use."""
        async with self._database.worker() as tx:
            months = [row["month"] for row in await tx.fetch(S.months_of, [table.name])]
        for month in months:
            start, end = _bounds(month)
            async with self._database.worker() as tx:
                places = [row["ctid"] for row in await tx.fetch(table.places, tenant_id, start, end, self._few)]
            if len(places) < self._few:
                if places:
                    yield _Part(start, end, places, 0, len(places))
                continue
            first = 0
            while first < await self._size(table, month):  # rows may have been added since the last look
                yield _Part(start, end, None, first, first + self._pages)
                first += self._pages

    async def _size(self, table: _Table, month: date) -> int:
        """Pages of a month; 0 if retention has dropped it meanwhile."""
        async with self._database.worker() as tx:
            return int(await tx.fetchval(S.pages_of_month, table.name, month) or 0)


def _bounds(month: date) -> tuple[datetime, datetime]:
    after = (month + timedelta(days=32)).replace(day=1)
    return datetime.combine(month, time(), UTC), datetime.combine(after, time(), UTC)
