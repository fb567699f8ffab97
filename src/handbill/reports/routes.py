"""Reports over HTTP: for each ad campaign, what it cost and what of it arrived."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter, SkipValidation

from handbill.reports.model import SpendReport, SpendRow
from handbill.reports.service import ReportsService, as_csv
from handbill.tenants.model import Principal

Reports = NamedDependency[SkipValidation[ReportsService]]
Who = NamedDependency[SkipValidation[Principal]]
From = Annotated[date, QueryParameter(name="from", description="The first day.")]
To = Annotated[date, QueryParameter(name="to", description="The day after the last one.")]
Zone = Annotated[str | None, QueryParameter(max_length=64, description="Whose days; the ad accounts' if not given.")]
AsOf = Annotated[date | None, QueryParameter(description="Spend as it was believed at the end of that UTC day.")]

_REPORT: dict[str, Any] = {
    "rows": [
        {
            "campaign_id": "0190163d-8694-739b-aea5-966c26f8ad91",
            "name": "Spring",
            "currency": "EUR",
            "spend": "102.36",
            "platform_clicks": 235,
            "platform_purchases": 4,
            "banner_clicks": None,
            "event_clicks": 188,
            "event_people": 171,
            "event_purchases": 3,
            "counted_clicks": 188,
            "cost_per_counted_click": "0.544468",
            "claim": "1.250000",
            "purchase_claim": "1.333333",
            "shared": False,
        }
    ],
    "zone": "Europe/Paris",
    "exact_zone": True,
    "events": "counted",
}
_CSV = (
    "campaign_id,name,currency,spend,platform_clicks,platform_purchases,banner_clicks,event_clicks,event_people,"
    "event_purchases,counted_clicks,cost_per_counted_click,claim,purchase_claim,shared\r\n"
    "0190163d-8694-739b-aea5-966c26f8ad91,Spring,EUR,102.36,235,4,,188,171,3,188,0.544468,1.250000,1.333333,False\r\n"
)


class ReportRoutes(Controller):
    path = "/admin/reports"
    tags = ("Reports",)

    @get("/spend", operation_id="spendReport", opt={"scope": "stats:read", "example": _REPORT})
    async def spend(
        self, reports: Reports, principal: Who, start: From, end: To, zone: Zone = None, as_of: AsOf = None
    ) -> SpendReport:
        """Spend beside Handbill's own counts: cost per counted click, and the platform's claim against our count."""
        return await reports.spend(principal.tenant_id, start, end, zone, as_of)

    @get(
        "/spend/csv", operation_id="spendReportCsv", media_type="text/csv", opt={"scope": "stats:read", "example": _CSV}
    )
    async def table(
        self, reports: Reports, principal: Who, start: From, end: To, zone: Zone = None, as_of: AsOf = None
    ) -> Response[bytes]:
        """The same as CSV, safe to open in a spreadsheet."""
        found = await reports.spend(principal.tenant_id, start, end, zone, as_of)
        named = {"Content-Disposition": 'attachment; filename="spend.csv"'}
        return Response(as_csv(SpendRow, found.rows), media_type="text/csv", headers=named)


handlers = [ReportRoutes]
