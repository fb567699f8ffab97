"""The stats' routes: series, totals, CSV, and the state of the days."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter, SkipValidation
from msgspec import Meta

from handbill.banners import examples
from handbill.banners.service import BannersService
from handbill.banners.stats import as_csv
from handbill.banners.stats_model import (
    LONGEST_PAGE,
    MOST_VALUES,
    VALUE_LENGTH,
    Dimension,
    Interval,
    StatsAnswer,
    StatsQuery,
)
from handbill.kit.errors import Fault, Invalid
from handbill.kit.moments import MAX_DAY, MIN_DAY
from handbill.kit.read_waits import LONGEST_WAIT_S, ReadWaits, WaitFor, headers_of, read_after, state_and
from handbill.tenants.model import Principal

Banners = NamedDependency[SkipValidation[BannersService]]
Who = NamedDependency[SkipValidation[Principal]]
From = Annotated[date, QueryParameter(name="from", description="The first day, in the zone.")]
Day = Annotated[date, QueryParameter(description="The day to recount, in UTC.")]
To = Annotated[date, QueryParameter(name="to", description="The day after the last one.")]
Ids = Annotated[list[UUID] | None, QueryParameter(max_items=200)]
By = Annotated[list[Dimension] | None, QueryParameter(name="by", max_items=7, description="One row for each of these.")]
Text = Annotated[str, Meta(min_length=1, max_length=VALUE_LENGTH)]
Texts = Annotated[
    list[Text] | None, QueryParameter(max_items=MOST_VALUES, description="Only events that say one of these.")
]
Pages = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=LONGEST_PAGE)]] | None,
    QueryParameter(max_items=MOST_VALUES, description="Only events of these pages, without query and fragment."),
]
Zone = Annotated[str | None, QueryParameter(max_length=64, description="Whose days; the tenant's own if not given.")]
Wait = Annotated[
    float | None,
    QueryParameter(
        ge=0, le=LONGEST_WAIT_S,
        description="Seconds to wait until everything accepted before is in the answer, at most 5. See `complete`.",
    ),
]  # fmt: skip
Waits = NamedDependency[SkipValidation[ReadWaits]]
Asker = Request[Any, Any, Any]
People = Annotated[bool, QueryParameter(description="Also count different people, by person, over the whole range.")]

_CSV = (
    "at,impressions,clicks,views,dismissals,marked_impressions,marked_clicks,marked_views,ctr,banner_id,placement_id,"
    "campaign_id,ctr_low,ctr_high,variant,country,device,page,banner_name,placement_name,campaign_name\r\n"
    "2026-03-01T00:00:00+00:00,1200,36,800,40,12,1,0,0.03,,,,0.021747,0.041252,b,,,,,,\r\n"
)


class StatsRoutes(Controller):
    path = "/admin/stats/banners"
    tags = ("Stats",)

    @get(operation_id="bannerStats", opt={"scope": "stats:read", "example": examples.STATS})
    async def read(
        self,
        request: Asker,
        banners: Banners,
        read_waits: Waits,
        principal: Who,
        start: From,
        end: To,
        interval: FromQuery[Interval] = "day",
        by: By = None,
        banner_id: Ids = None,
        placement_id: Ids = None,
        campaign_id: Ids = None,
        variant: Texts = None,
        country: Texts = None,
        device: Texts = None,
        page: Pages = None,
        zone: Zone = None,
        uniques: People = False,
        wait: Wait = None,
    ) -> StatsAnswer:
        """Impressions, clicks, views and dismissals over time, by any dimension, with their sum and their freshness.

        By banner, placement and campaign it is read from the counters; a question about variant, country, device or
        page is answered from the events in ClickHouse, and refused (503) while that is away."""
        ids, values = (banner_id, placement_id, campaign_id), (variant, country, device, page)
        query = _query(start, end, interval, by, ids, zone, values, uniques)
        asked = WaitFor(principal.tenant_id, wait, query.until)
        return await read_after(read_waits, request, asked, lambda: banners.read_stats(principal.tenant_id, query))

    @get("/csv", operation_id="bannerStatsCsv", media_type="text/csv", opt={"scope": "stats:read", "example": _CSV})
    async def table(
        self,
        request: Asker,
        banners: Banners,
        read_waits: Waits,
        principal: Who,
        start: From,
        end: To,
        interval: FromQuery[Interval] = "day",
        by: By = None,
        banner_id: Ids = None,
        placement_id: Ids = None,
        campaign_id: Ids = None,
        variant: Texts = None,
        country: Texts = None,
        device: Texts = None,
        page: Pages = None,
        zone: Zone = None,
        wait: Wait = None,
    ) -> Response[bytes]:
        """The same rows as CSV."""
        ids, values = (banner_id, placement_id, campaign_id), (variant, country, device, page)
        query = _query(start, end, interval, by, ids, zone, values)
        asked = WaitFor(principal.tenant_id, wait, query.until)
        state, answer = await state_and(
            read_waits, request, asked, lambda: banners.read_stats(principal.tenant_id, query)
        )  # fmt: skip
        named = {"Content-Disposition": 'attachment; filename="banner-stats.csv"', **headers_of(state)}
        return Response(as_csv(answer), media_type="text/csv", headers=named)

    @post(
        "/rollup",
        operation_id="rollupDay",
        status_code=200,
        opt={"scope": "stats:write", "example": {"combinations": 3, "corrected": 0, "skipped": None}},
    )
    async def rollup(self, banners: Banners, principal: Who, day: Day) -> dict[str, Any]:
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
    values: tuple[list[str] | None, list[str] | None, list[str] | None, list[str] | None],
    uniques: bool = False,
) -> StatsQuery:
    banner, placement, campaign = (tuple(each or ()) for each in ids)
    texts = (tuple(each or ()) for each in values)
    return StatsQuery(start, end, interval, tuple(by or ()), banner, placement, campaign, zone, uniques, *texts)
