"""Reading the ad stats: series, sellpages, drift, and why a figure is what it is."""

from __future__ import annotations

from datetime import date
from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter, SkipValidation

from handbill.adstats import examples
from handbill.adstats.model import Level
from handbill.adstats.reading import Dimension, Drift, Explained, SellpageAnswer, StatsAnswer, StatsQuery, StatsRow
from handbill.adstats.service import AdstatsService
from handbill.adstats.table import as_csv
from handbill.tenants.model import Principal

Adstats = NamedDependency[SkipValidation[AdstatsService]]
Who = NamedDependency[SkipValidation[Principal]]
From = Annotated[date, QueryParameter(name="from", description="The first day, in the accounts' zone.")]
Day = Annotated[date, QueryParameter(description="The day, in the account's zone.")]
To = Annotated[date, QueryParameter(name="to", description="The day after the last one.")]
Ids = Annotated[list[UUID] | None, QueryParameter(max_items=200, description="With all that stands below them.")]
Pages = Annotated[list[UUID] | None, QueryParameter(max_items=200)]
By = Annotated[list[Dimension] | None, QueryParameter(name="by", max_items=3, description="One row for each of these.")]
Zone = Annotated[
    str | None,
    QueryParameter(max_length=64, description="Whose days you mean; `exact_zone` says if the accounts keep it."),
]
AsOf = Annotated[date | None, QueryParameter(description="As it was believed at the end of that UTC day.")]


class AdStatsRoutes(Controller):
    path = "/admin/stats/ads"
    tags = ("Ad stats",)

    @get(operation_id="adStats", opt={"scope": "stats:read", "example": examples.STATS})
    async def read(
        self,
        adstats: Adstats,
        principal: Who,
        start: From,
        end: To,
        level: FromQuery[Level] = "CAMPAIGN",
        by: By = None,
        entity_id: Ids = None,
        sellpage_id: Pages = None,
        connection_id: FromQuery[UUID | None] = None,
        zone: Zone = None,
        as_of: AsOf = None,
    ) -> StatsAnswer:
        """Spend and what it brought, at one level; sums by currency. Every level adds up to the same."""
        ids = (entity_id, sellpage_id)
        return await adstats.reading.stats(
            principal.tenant_id, _query(start, end, level, by, ids, connection_id, zone, as_of)
        )

    @get("/csv", operation_id="adStatsCsv", media_type="text/csv", opt={"scope": "stats:read", "example": examples.CSV})
    async def table(
        self,
        adstats: Adstats,
        principal: Who,
        start: From,
        end: To,
        level: FromQuery[Level] = "CAMPAIGN",
        by: By = None,
        entity_id: Ids = None,
        sellpage_id: Pages = None,
        connection_id: FromQuery[UUID | None] = None,
        zone: Zone = None,
        as_of: AsOf = None,
    ) -> Response[bytes]:
        """The same rows as CSV, safe to open in a spreadsheet."""
        ids = (entity_id, sellpage_id)
        answer = await adstats.reading.stats(
            principal.tenant_id, _query(start, end, level, by, ids, connection_id, zone, as_of)
        )
        named = {"Content-Disposition": 'attachment; filename="ad-stats.csv"'}
        return Response(as_csv(StatsRow, answer.rows), media_type="text/csv", headers=named)

    @get("/sellpages", operation_id="sellpageStats", opt={"scope": "stats:read", "example": examples.SELLPAGES})
    async def sellpages(
        self,
        adstats: Adstats,
        principal: Who,
        start: From,
        end: To,
        by_day: FromQuery[bool] = True,
        sellpage_id: Pages = None,
    ) -> SellpageAnswer:
        """The campaigns' figures by the sellpage they lead to; a row without one is of campaigns that lead nowhere."""
        return await adstats.reading.sellpages(principal.tenant_id, start, end, by_day, sellpage_id or [])

    @get("/drift", operation_id="adStatsDrift", opt={"scope": "stats:read", "example": examples.DRIFT})
    async def drift(
        self, adstats: Adstats, principal: Who, start: From, end: To, level: FromQuery[Level] = "CAMPAIGN"
    ) -> list[Drift]:
        """How far each day moved since it was over: the platform's restatements, day by day."""
        return await adstats.reading.drift(principal.tenant_id, start, end, level)

    @get(
        "/explain/{entity_id:uuid}",
        operation_id="explainAdStats",
        opt={"scope": "stats:read", "example": examples.EXPLAINED},
    )
    async def explain(self, adstats: Adstats, principal: Who, entity_id: FromPath[UUID], day: Day) -> Explained:
        """Why a day is what it is: each answer of the platform, each belief, and what adding them up would say."""
        return await adstats.explain(principal.tenant_id, entity_id, day)


def _query(
    start: date,
    end: date,
    level: Level,
    by: list[Dimension] | None,
    ids: tuple[list[UUID] | None, list[UUID] | None],
    connection: UUID | None,
    zone: str | None,
    as_of: date | None,
) -> StatsQuery:
    return StatsQuery(
        start, end, level, tuple(by or ("day",)), tuple(ids[0] or ()), tuple(ids[1] or ()), connection, zone, as_of
    )
