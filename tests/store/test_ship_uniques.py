"""Different people of banner stats: by person, with the filters of the counts, and null while nobody can say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from handbill.banners.stats import StatsQuery
from handbill.banners.uniques import AWAY, Uniques
from handbill.events.history import History
from handbill.events.model import Click, Event, Impression, View
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.clock import from_ms
from handbill.people.model import person_id
from handbill.people.overrides import COLUMNS, TABLE
from tests.conftest import MakeTenant
from tests.kit.engines import Engines
from tests.kit.loop import loop
from tests.kit.shipping import hasty, shipped, shipping, stored

DAY_MS = 86_400_000


async def test_people_are_counted_once_whatever_they_are_called(
    engines: Engines, database: Database, redis: Redis, clickhouse: ClickHouse, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis, main=1, event_store=EventStoreReader(clickhouse, Bounds())) as house:
        shop, next_door = await house.shop(tenant), await house.shop(other)
        now = house.clock.now_ms()
        one, two = shop.banners[:2]
        events: list[Event] = [
            *(Impression(tenant, f"i{n}", now - n, now, one, user=f"u{n % 4}") for n in range(12)),
            Impression(tenant, "bot", now, now, one, user="crawler", marks=("bot",)),
            Impression(tenant, "two", now, now, two, user="u9"),
            Impression(tenant, "old", now - 3 * DAY_MS, now, one, user="u8"),
            Click(tenant, "c", now, now, one, user="u0"),
            Click(tenant, "c2", now, now, one, session="browser"),
            View(tenant, "v", now, now, one, user="u1"),
            View(tenant, "short", now, now, one, user="u2", counted=False),
            Impression(other, "i", now, now, next_door.banners[0], user="u7"),
        ]
        await house.consumer(shipping=shipping(database, clickhouse, house.journal))
        await house.events.accept([event for event in events if event.tenant == tenant])
        await house.events.accept([event for event in events if event.tenant == other])
        await house.drained()
        await shipped(house)
        stats = house.banners.stats
        today = datetime.fromtimestamp(now / 1000, UTC).date()
        query = StatsQuery(today - timedelta(days=1), today + timedelta(days=1), "total", uniques=True)
        found = (await stats.read(tenant, query)).uniques
        assert found is not None
        assert (found.impressions, found.clicks, found.views, found.note) == (5, 2, 1, None)

        # The browser turns out to be u0, and u1 to be u2: two people fewer.
        merged = [
            (tenant, "browser", person_id(tenant, "u0"), 2, 0),
            (tenant, "u1", person_id(tenant, "u2"), 2, 0),
            (other, "u7", person_id(other, "u0"), 2, 0),
        ]
        await clickhouse.insert(TABLE, COLUMNS, merged)
        found = (await stats.read(tenant, query)).uniques
        assert found is not None
        assert (found.impressions, found.clicks, found.views) == (4, 1, 1)
        public = {banner.id: banner.public_id for banner in house.catalogue.tenant(tenant).banners}
        narrow = StatsQuery(query.start, query.end, "total", banners=(public[two],), uniques=True)
        found = (await stats.read(tenant, narrow)).uniques
        assert found is not None
        assert (found.impressions, found.clicks, found.views) == (1, 0, 0)

        nobody = hasty(engines, "http://127.0.0.1:9")
        await nobody.start()
        stats._uniques = Uniques(EventStoreReader(nobody, Bounds()))
        answer = await stats.read(tenant, query)
        await nobody.stop()
        assert answer.uniques is not None
        assert (answer.uniques.impressions, answer.uniques.note) == (None, AWAY)
        assert answer.totals.impressions == 13


async def test_history_goes_by_month_and_class(
    database: Database, redis: Redis, clickhouse: ClickHouse, make_tenant: MakeTenant
) -> None:
    """A tenant that keeps a month loses it whole; a neighbour that keeps everything loses nothing."""
    short, long = await make_tenant(), await make_tenant()
    await migrate_clickhouse(clickhouse)

    async def classes(tenants: object) -> dict[int, int]:
        return {short: 7}

    async with loop(database, redis, main=1) as house:
        made = shipping(database, clickhouse, house.journal, classes=classes)
        await house.consumer(shipping=made)
        now = house.clock.now_ms()
        for tenant in (short, long):
            shop = await house.shop(tenant)
            await house.events.accept([Impression(tenant, "i", now, now, shop.banners[0], user="u")])
        await house.drained()
        await shipped(house)
        history = History(clickhouse, house.clock)
        await history.drop(from_ms(now))
        assert len(await stored(clickhouse, short)) == len(await stored(clickhouse, long)) == 1
        gone = await history.drop(from_ms(now + 62 * DAY_MS))
        assert f"(7,{from_ms(now):%Y%m})" in gone
        assert await stored(clickhouse, short) == []
        assert len(await stored(clickhouse, long)) == 1
