"""Touches counted in the event store. Its statement lies in queries/: those in sql/ are PostgreSQL's."""

from __future__ import annotations

from datetime import date

from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse
from handbill.reports.model import Touch

Q = sqlfiles.queries("handbill.reports")


class Touches:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def by_utm(self, tenant: int, start: date, end: date, zone: str, wanted: list[str]) -> list[Touch]:
        if not wanted:
            return []
        params = {
            "tenant": tenant,
            "start": f"{start.isoformat()} 00:00:00",
            "end": f"{end.isoformat()} 00:00:00",
            "zone": zone,
            "wanted": wanted,
        }
        return [Touch(*row) for row in await self._clickhouse.query(Q.by_utm, params)]
