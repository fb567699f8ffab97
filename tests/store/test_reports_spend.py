"""Spend beside our own counts: banner clicks, and clicks that arrived by utm and click id."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from handbill.adstats.model import EntityPatch
from handbill.adstats.service import ratio
from handbill.banners.service import StatsQuery as BannerStatsQuery
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy
from handbill.reports.model import Touch
from handbill.reports.service import ReportsService
from handbill.reports.touches import Touches
from tests.kit.adstats import FakeClock, a_shop, service, synced

DAY = date(2026, 3, 1)
NEXT = DAY + timedelta(days=1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Banners:
    """As much of the banners' service as a report asks for: so many clicks for each campaign."""

    def __init__(self, clicks: dict[UUID, int]) -> None:
        self.clicks = clicks

    async def read_stats(self, tenant: int, query: BannerStatsQuery) -> Any:
        told = {campaign: clicks for campaign, clicks in self.clicks.items() if campaign in query.campaigns}
        rows = [SimpleNamespace(campaign_id=campaign, clicks=clicks) for campaign, clicks in told.items()]
        return SimpleNamespace(rows=rows)


class Away:
    async def by_utm(self, tenant: int, start: date, end: date, zone: str, wanted: list[str]) -> list[Touch]:
        raise Busy("away")


class Counted:
    async def by_utm(self, tenant: int, start: date, end: date, zone: str, wanted: list[str]) -> list[Touch]:
        return [Touch(utm, 7, 5, 2) for utm in wanted]


async def test_cost_per_counted_click_and_the_claim(
    database: Database,
    redis: Redis,
    clickhouse: ClickHouse,
    tenant: int,
    make_tenant: Callable[..., Awaitable[int]],
) -> None:
    await migrate_clickhouse(clickhouse)
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((), (), ()))
    banner_campaign = uuid.uuid4()
    by_utm, by_banner, by_nothing = (entity.entity_id for entity in shop.entities)
    tied = EntityPatch(banner_campaign_id=banner_campaign)
    for entity, patch in ((by_utm, EntityPatch(utm_campaign="spring sale")), (by_banner, tied)):
        await adstats.editor.change_entity(tenant, entity, patch, version=None, actor="test")
    await synced(adstats, shop, DAY)

    def event(
        name: str, who: str, at: datetime = NOON, owner: int = tenant, url: str = "", properties: str = "{}"
    ) -> Any:
        return (owner, at, at, name, uuid.uuid4().hex, uuid.uuid4().bytes, who, f"s-{who}", properties, url, "handbill")

    def nobodys(url: str) -> Any:
        event_id = uuid.uuid4().hex
        name, who = "$banner_impression", f"event:{event_id}"
        return (tenant, NOON, NOON, name, event_id, uuid.uuid4().bytes, who, "", "{}", url, "banners")

    tagged = "https://shop.example/?utm_campaign=spring%20sale"
    rows = [
        event("$pageview", "ann", url=f"{tagged}&fbclid=one"),
        event("$pageview", "ann", url=f"{tagged}&fbclid=one"),  # the same click, a second page
        event("$pageview", "ann", url=f"{tagged}&fbclid=two"),
        event("scroll", "ann", properties='{"utm_campaign": "spring sale"}'),  # of the same visit: no click of its own
        event("$pageview", "bob", properties='{"utm_campaign": "spring sale"}'),
        event("scroll", "bob", url="https://shop.example/?utm_campaign=spring+sale"),
        event("purchase", "bob", properties='{"utm_campaign": "spring sale"}'),
        event("$pageview", "eve", url="https://shop.example/?utm_campaign=other"),
        event("$pageview", "old", NOON - timedelta(days=1), url=tagged),
        event("$pageview", "foe", owner=await make_tenant(), url=tagged),
        nobodys(tagged),
        nobodys(f"{tagged}&fbclid=two"),  # a click that is known already
    ]
    columns = (
        "tenant_id", "at", "received", "event", "event_id", "event_key", "distinct_id", "session_id", "properties",
        "url", "source",
    )  # fmt: skip
    await clickhouse.insert("events", columns, rows, token=uuid.uuid4().hex)
    touches = Touches(clickhouse)
    assert await touches.by_utm(tenant, DAY, NEXT, "UTC", ["spring sale"]) == [Touch("spring sale", 3, 2, 1)]

    banners: Any = Banners({banner_campaign: 40, uuid.uuid4(): 9})
    report = await ReportsService(adstats, banners, touches).spend(tenant, DAY, NEXT)
    found = {row.campaign_id: row for row in report.rows}
    assert (report.events, report.zone, report.exact_zone) == ("counted", "UTC", True)
    first = found[by_utm]
    assert (first.event_clicks, first.event_people, first.event_purchases, first.counted_clicks) == (3, 2, 1, 3)
    assert first.cost_per_counted_click == ratio(first.spend, 3)
    assert first.claim == ratio(first.platform_clicks, 3)
    second = found[by_banner]
    assert (second.banner_clicks, second.event_clicks, second.counted_clicks) == (40, None, 40)
    assert second.claim == ratio(Decimal(second.platform_clicks), 40)
    assert (found[by_nothing].counted_clicks, found[by_nothing].cost_per_counted_click) == (None, None)

    shorter = await ReportsService(adstats, banners, Away()).spend(tenant, DAY, NEXT)
    assert shorter.events == "away"
    assert {row.event_clicks for row in shorter.rows} == {None}
    assert sum(row.spend for row in shorter.rows) == sum(row.spend for row in report.rows)


async def test_campaigns_that_are_counted_by_the_same_name_divide_by_nothing(
    database: Database, redis: Redis, tenant: int
) -> None:
    adstats = service(database, redis, FakeClock())
    shop = await a_shop(adstats, database, tenant, tree=((), (), (), ()))
    banner_campaign = uuid.uuid4()
    twin, other, lone, tied = (entity.entity_id for entity in shop.entities)
    patches = {
        twin: EntityPatch(utm_campaign="spring"),
        other: EntityPatch(utm_campaign="spring"),
        lone: EntityPatch(utm_campaign="autumn", banner_campaign_id=banner_campaign),
        tied: EntityPatch(banner_campaign_id=banner_campaign),
    }
    for entity, patch in patches.items():
        await adstats.editor.change_entity(tenant, entity, patch, version=None, actor="test")
    await synced(adstats, shop, DAY)
    banners: Any = Banners({banner_campaign: 40})
    report = await ReportsService(adstats, banners, Counted()).spend(tenant, DAY, NEXT)
    found = {row.campaign_id: row for row in report.rows}
    assert {row.campaign_id for row in report.rows if row.shared} == {twin, other, tied}
    for row in (found[twin], found[other]):
        assert (row.counted_clicks, row.cost_per_counted_click, row.claim, row.purchase_claim) == (7, None, None, None)
    assert (found[tied].counted_clicks, found[tied].cost_per_counted_click) == (40, None)
    assert found[lone].cost_per_counted_click == ratio(found[lone].spend, 7)
    # while the event store is away it is counted by its banners, as another is
    away = await ReportsService(adstats, banners, Away()).spend(tenant, DAY, NEXT)
    assert {row.campaign_id for row in away.rows if row.shared} == {lone, tied}
