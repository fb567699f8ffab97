"""The pipeline with real engines: each event counted once, poison alone, the cap confirmed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from handbill.banners.sink import S as BANNERS
from handbill.events.model import Click, Event, Impression, View
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.kit.loop import loop

STATS = Sql(
    "select sum(impressions)::int, sum(clicks)::int, sum(views)::int, sum(dismissals)::int from banners.banner_stats"
    " where tenant_id = $1",
    "test_stats",
)
assert BANNERS


def impression(tenant: int, banner: int, at: int, event_id: str | None = None, **more: object) -> Event:
    return Impression(tenant, event_id or uuid.uuid4().hex, at, at, banner, **more)  # type: ignore[arg-type]


async def test_events_are_counted_once_whatever_is_repeated(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        banner = await house.banner(tenant)
        number = house.catalogue.tenant(tenant).banners[0].id
        now = house.clock.now_ms()
        events: list[Event] = [impression(tenant, number, now, f"i{n}", user=f"u{n % 7}") for n in range(50)]
        events += [Click(tenant, f"c{n}", now, now, number, user=f"u{n}", destination="/x") for n in range(20)]
        events += [View(tenant, f"v{n}", now, now, number, user=f"u{n}", dismissed=n % 2 == 0) for n in range(10)]
        await house.events.accept(events)
        await house.events.accept(events[::-1])
        await house.consumer()
        await house.drained()
        await house.events.accept(events[::3])
        await house.drained()
        async with database.tenant(tenant) as tx:
            assert tuple(await tx.fetchrow(STATS, tenant) or ()) == (50, 20, 10, 5)
        drops = await house.events.drops(tenant, banner.created_at.date(), banner.created_at.date().replace(year=2100))
        assert sum(drop.events for drop in drops) == 80 + len(events[::3])
        assert {drop.reason for drop in drops} == {"DUPLICATE"}


async def test_a_poison_row_is_parked_alone(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        await house.banner(tenant)
        number = house.catalogue.tenant(tenant).banners[0].id
        now = house.clock.now_ms()
        good: Sequence[Event] = [impression(tenant, number, now, f"g{n}", user="same") for n in range(40)]
        bad: Sequence[Event] = [impression(tenant, number, now, "bad", user="same", page="zero\0byte")]
        await house.events.accept([*good[:20], *bad, *good[20:]])
        await house.consumer()
        await house.drained()
        async with database.tenant(tenant) as tx:
            assert (await tx.fetchrow(STATS, tenant) or (0,))[0] == 40
        parked = await house.events.parked(tenant, reason=None, replayed=False, after=None, limit=10)
        assert [(row.event_id, row.reason) for row in parked] == [("bad", "REJECTED")]
        assert (await house.events.explain(tenant, "bad")).outcome == "parked"
        assert (await house.events.explain(tenant, "g3")).outcome == "counted"


async def test_two_views_close_the_cap_and_the_commit_confirms_it(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        await house.banner(tenant, x_times=2)
        banner = house.catalogue.tenant(tenant).banners[0]
        now = house.clock.now_ms()
        assert await house.allowed(tenant, "ada", banner, now)
        await house.events.accept([View(tenant, f"v{n}", now, now, banner.id, user="ada") for n in range(2)])
        await house.consumer()
        await house.drained()
        assert not await house.allowed(tenant, "ada", banner, now)
        later = now + 24 * 3_600_000
        assert not await house.allowed(tenant, "ada", banner, later - 1)
        assert await house.allowed(tenant, "ada", banner, later)
