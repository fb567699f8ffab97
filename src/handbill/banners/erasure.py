"""Forget who it was: impressions and clicks stay counted, without a name. Safe to repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database

S = sqlfiles.load("handbill.banners")
_EXPORTS = {"banners.banner_impressions": S.export_impressions, "banners.banner_clicks": S.export_clicks}
_TABLES = {"banners.banner_impressions": S.erase_impressions, "banners.banner_clicks": S.erase_clicks}


class Erasure:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def erase(self, tenant_id: int, subjects: list[str]) -> Mapping[str, int]:
        """Month by month: no index leads to a person here, and a statement over all of history would hold too long."""
        cleared: Counter[str] = Counter(dict.fromkeys(_TABLES, 0))
        async with self._database.worker() as tx:
            months = [row["month"] for row in await tx.fetch(S.months_of, list(_TABLES))]
        for month in months:
            start, end = _bounds(month)
            for table, statement in _TABLES.items():
                async with self._database.worker() as tx:
                    cleared[table] += await tx.execute(statement, tenant_id, subjects, start, end)
        return dict(cleared)

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """Month by month as well, until there is as much as was asked for."""
        found: dict[str, list[dict[str, Any]]] = {table: [] for table in _EXPORTS}
        async with self._database.worker() as tx:
            months = [row["month"] for row in await tx.fetch(S.months_of, list(_TABLES))]
        for month in months:
            start, end = _bounds(month)
            for table, statement in _EXPORTS.items():
                async with self._database.worker() as tx:
                    left = most - len(found[table])
                    rows = await tx.fetch(statement, tenant_id, subject, start, end, left) if left > 0 else []
                found[table] += [dict(row) for row in rows]
        return found


def _bounds(month: date) -> tuple[datetime, datetime]:
    after = (month + timedelta(days=32)).replace(day=1)
    return datetime.combine(month, time(), UTC), datetime.combine(after, time(), UTC)
