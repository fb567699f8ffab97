"""Erasing a person: names go from every month of raw rows, counts stay, others keep theirs."""

from __future__ import annotations

from handbill.events.model import Click, Event, Impression, View
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.kit import person_requests
from tests.kit.loop import loop

DAY_MS = 86_400_000
NAMED = Sql(
    "select count(*) filter (where user_id = 'ann' or session_id = 'ann')::int as ann,"
    " count(*) filter (where user_id = 'bob')::int as bob, count(*)::int as rows from ("
    " select tenant_id, user_id, session_id from banners.banner_impressions union all"
    " select tenant_id, user_id, session_id from banners.banner_clicks union all"
    " select tenant_id, user_id, session_id from caps.user_views) e where tenant_id = $1",
    "named",
)
SHOWN = Sql("select sum(impressions + clicks + views)::int from banners.banner_stats where tenant_id = $1", "shown")


async def test_a_person_is_forgotten_and_stays_counted(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        await house.banner(tenant)
        banner = house.catalogue.tenant(tenant).banners[0].id
        now = house.clock.now_ms()
        sent: list[Event] = []
        for n in range(30):
            who = ("ann", "bob", None)[n % 3]
            at = now - n * DAY_MS  # two months
            session = "ann" if n % 6 == 2 else f"s{n}"
            sent.append(Impression(tenant, f"i{n}", at, now, banner, user=who, session=session))
            sent.append(Click(tenant, f"c{n}", at, now, banner, user=who, session=session, destination="/d"))
            sent.append(View(tenant, f"v{n}", at, now, banner, user=who or "cid", session=f"s{n}"))
        await house.events.accept(sent)
        await house.consumer()
        await house.drained()

        erasures = house.tenants.erasures
        erasures.join_whole("caps", house.caps.erase, house.caps.export)
        erasures.join_whole("banners", house.banners.erasure.erase, house.banners.erasure.export)
        told = await person_requests.export(house.tenants, tenant, "ann", actor="test")
        rows = {table: len(found) for tables in told.rooms.values() for table, found in tables.items()}
        assert rows == {
            "caps.user_views": 10, "caps.users": 1, "banners.banner_impressions": 15, "banners.banner_clicks": 15,
        }  # fmt: skip
        assert told.cut == []
        done = await person_requests.erase(house.tenants, tenant, "ann", actor="test")
        assert done.status == "done"
        assert done.report["banners"] == {"banners.banner_impressions": 15, "banners.banner_clicks": 15}
        assert done.report["caps"]["caps.user_views"] == 10
        emptied = await person_requests.export(house.tenants, tenant, "ann", actor="test")
        assert not any(found for tables in emptied.rooms.values() for found in tables.values())
        again = await person_requests.erase(house.tenants, tenant, "ann", actor="test")
        assert set(again.report["banners"].values()) == {0}
        async with database.worker() as tx:
            left = await tx.fetchrow(NAMED, tenant)
            assert left is not None
            assert tuple(left) == (0, 30, 90)
            assert await tx.fetchval(SHOWN, tenant) == 90
