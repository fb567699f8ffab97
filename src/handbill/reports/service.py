"""Spend beside our own counts: what a click that really came has cost, and how far the platform's claim holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from uuid import UUID

from handbill.adstats.service import AdstatsService, Campaign, StatsAnswer, StatsQuery, StatsRow, as_csv, ratio
from handbill.banners.service import BannersService
from handbill.banners.service import StatsQuery as BannerStatsQuery
from handbill.kit.errors import Busy
from handbill.reports.model import EventsState, SpendReport, SpendRow, Touch, TouchCounts

__all__ = ["ReportsService", "as_csv"]


class ReportsService:
    def __init__(self, adstats: AdstatsService, banners: BannersService, touches: TouchCounts) -> None:
        self._adstats = adstats
        self._banners = banners
        self._touches = touches

    async def spend(
        self, tenant: int, start: date, end: date, zone: str | None = None, as_of: date | None = None
    ) -> SpendReport:
        """Every campaign with figures in the range. Without a zone: the accounts' own, if they share one."""
        spent = await self._adstats.reading.stats(
            tenant, StatsQuery(start, end, "CAMPAIGN", ("entity",), zone=zone, as_of=as_of)
        )
        ids = [row.entity_id for row in spent.rows if row.entity_id is not None]
        known = {one.entity_id: one for one in await self._adstats.campaigns(tenant, ids)}
        where = zone or (spent.zones[0] if spent.zones else "UTC")
        clicks = await self._banner_clicks(tenant, start, end, where, list(known.values()))
        touches, state = await self._touched(tenant, start, end, where, list(known.values()))
        named = Counter(key for one in known.values() for key in (one.utm_campaign, one.banner_campaign_id) if key)
        rows = [_row(row, known[row.entity_id], clicks, touches, named) for row in spent.rows if row.entity_id in known]
        return SpendReport(rows, where, _exact(spent, where), state)

    async def _banner_clicks(
        self, tenant: int, start: date, end: date, zone: str, campaigns: list[Campaign]
    ) -> dict[UUID, int]:
        tied = tuple({one.banner_campaign_id for one in campaigns if one.banner_campaign_id is not None})
        if not tied:
            return {}
        query = BannerStatsQuery(start, end, "total", ("campaign",), campaigns=tied, zone=zone)
        answer = await self._banners.read_stats(tenant, query)
        found = dict.fromkeys(tied, 0)
        found |= {row.campaign_id: row.clicks for row in answer.rows if row.campaign_id is not None}
        return found

    async def _touched(
        self, tenant: int, start: date, end: date, zone: str, campaigns: list[Campaign]
    ) -> tuple[dict[str, Touch] | None, EventsState]:
        """Failing open: without the event store the report is shorter, and says so."""
        wanted = sorted({one.utm_campaign for one in campaigns if one.utm_campaign})
        try:
            found = await self._touches.by_utm(tenant, start, end, zone, wanted)
        except Busy:
            return None, "away"
        return {**{name: Touch(name, 0, 0, 0) for name in wanted}, **{one.utm: one for one in found}}, "counted"


def _row(
    row: StatsRow,
    campaign: Campaign,
    clicks: dict[UUID, int],
    touches: dict[str, Touch] | None,
    named: Mapping[str | UUID, int],
) -> SpendRow:
    """`named`: how many campaigns of the report are counted by that utm or banner campaign."""
    tied = clicks.get(campaign.banner_campaign_id) if campaign.banner_campaign_id is not None else None
    touch = touches.get(campaign.utm_campaign) if touches is not None and campaign.utm_campaign else None
    counted, by = (touch.clicks, campaign.utm_campaign) if touch is not None else (tied, campaign.banner_campaign_id)
    shared = by is not None and named[by] > 1
    return SpendRow(
        campaign.entity_id,
        campaign.name,
        row.currency,
        row.spend,
        row.link_clicks,
        row.purchases,
        tied,
        touch.clicks if touch else None,
        touch.people if touch else None,
        touch.purchases if touch else None,
        counted,
        _by(row.spend, None if shared else counted),
        _by(row.link_clicks, None if shared else counted),
        _by(row.purchases, touch.purchases if touch and not shared else None),
        shared,
    )


def _by(part: Decimal | int, whole: int | None) -> Decimal | None:
    """None where there is nothing to divide by: infinitely dear is no figure."""
    return ratio(part, whole) if whole else None


def _exact(spent: StatsAnswer, zone: str) -> bool:
    return all(one == zone for one in spent.zones)
