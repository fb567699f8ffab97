"""The stats' routes: series, totals, CSV, and the state of the days."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter, SkipValidation

from handbill.banners import examples
from handbill.banners.service import BannersService
from handbill.banners.stats import Dimension, Interval, StatsAnswer, StatsQuery, as_csv
from handbill.kit.errors import Fault, Invalid
from handbill.kit.moments import MAX_DAY, MIN_DAY
from handbill.tenants.model import Principal

Banners = NamedDependency[SkipValidation[BannersService]]
Who = NamedDependency[SkipValidation[Principal]]
From = Annotated[date, QueryParameter(name="from", description="The first day, in the zone.")]
To = Annotated[date, QueryParameter(name="to", description="The day after the last one.")]
Ids = Annotated[list[UUID] | None, QueryParameter(max_items=200)]
By = Annotated[list[Dimension] | None, QueryParameter(name="by", max_items=3, description="One row for each of these.")]
Zone = Annotated[str | None, QueryParameter(max_length=64, description="Whose days; the tenant's own if not given.")]
People = Annotated[bool, QueryParameter(description="Also count different people, by person, over the whole range.")]

_CSV = (
    "at,impressions,clicks,views,dismissals,marked_impressions,marked_clicks,marked_views,ctr,banner_id,placement_id,"
    "campaign_id\r\n2026-03-01T00:00:00+00:00,1200,36,800,40,12,1,0,0.03,,,\r\n"
)


class StatsRoutes(Controller):
    path = "/admin/stats/banners"
    tags = ("Stats",)

    @get(operation_id="bannerStats", opt={"scope": "stats:read", "example": examples.STATS})
    async def read(
        self,
        banners: Banners,
        principal: Who,
        start: From,
        end: To,
        interval: FromQuery[Interval] = "day",
        by: By = None,
        banner_id: Ids = None,
        placement_id: Ids = None,
        campaign_id: Ids = None,
        zone: Zone = None,
        uniques: People = False,
    ) -> StatsAnswer:
        """Impressions, clicks, views and dismissals over time, by any dimension, with their sum and their freshness."""
        query = _query(start, end, interval, by, (banner_id, placement_id, campaign_id), zone, uniques)
        return await banners.read_stats(principal.tenant_id, query)

    @get("/csv", operation_id="bannerStatsCsv", media_type="text/csv", opt={"scope": "stats:read", "example": _CSV})
    async def table(
        self,
        banners: Banners,
        principal: Who,
        start: From,
        end: To,
        interval: FromQuery[Interval] = "day",
        by: By = None,
        banner_id: Ids = None,
        placement_id: Ids = None,
        campaign_id: Ids = None,
        zone: Zone = None,
    ) -> Response[bytes]:
        """The same rows as CSV."""
        query = _query(start, end, interval, by, (banner_id, placement_id, campaign_id), zone)
        answer = await banners.read_stats(principal.tenant_id, query)
        named = {"Content-Disposition": 'attachment; filename="banner-stats.csv"'}
        return Response(as_csv(answer), media_type="text/csv", headers=named)

    @post(
        "/rollup",
        operation_id="rollupDay",
        status_code=200,
        opt={"scope": "stats:write", "example": {"combinations": 3, "corrected": 0, "skipped": None}},
    )
    async def rollup(self, banners: Banners, principal: Who, day: FromQuery[date]) -> dict[str, Any]:
        """Recount one UTC day of this tenant from its raw rows. Running it again is always safe.

        `skipped` is `UNFINISHED` where a large day takes longer than this request may: send it again to go on."""
        if not MIN_DAY <= day <= MAX_DAY:
            raise Invalid("Nothing was recounted.", faults=[Fault("day", f"must be between {MIN_DAY} and {MAX_DAY}")])
        rolled = await banners.rollup.tenant_day(principal.tenant_id, day)
        return {"combinations": rolled.combinations, "corrected": rolled.corrected, "skipped": rolled.skipped}


def _query(
    start: date,
    end: date,
    interval: Interval,
    by: list[Dimension] | None,
    ids: tuple[list[UUID] | None, list[UUID] | None, list[UUID] | None],
    zone: str | None,
    uniques: bool = False,
) -> StatsQuery:
    banner, placement, campaign = (tuple(each or ()) for each in ids)
    return StatsQuery(start, end, interval, tuple(by or ()), banner, placement, campaign, zone, uniques)
