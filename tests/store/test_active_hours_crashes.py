"""Death at every point of counting and of writing profiles: each event counts once, profiles are those of the rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from handbill.active_hours.gather import gather
from handbill.active_hours.model import HOUR_MS, Profile, profile_of
from handbill.active_hours.service import SETTLE_AFTER
from handbill.active_hours.sink import ActiveHoursSink
from handbill.banners.model import DecidingPatch
from handbill.events.model import CapturedEvent, Row, key
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.segments.projection import ACTIVE_HOURS, ProjectionKeys, opened
from handbill.segments.service import SegmentsService
from tests.kit.clocks import FakeClock
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop, own_lanes
from tests.store.test_people_loop import a_victim, taken_over

COUNTS = Sql("select week, counts from active_hours.activity where tenant_id = $1", "test_counts")
DAY_MS = 24 * HOUR_MS


async def switch_on(house: Loop, tenant: int) -> None:
    patch = DecidingPatch(smart_scheduling=True)
    await house.banners.editor.change_deciding(tenant, patch, version=None, actor="test")
    await house.catalogue.refresh()


def expected(events: list[CapturedEvent]) -> dict[int, list[int]]:
    """Each event once, by week."""
    unique = {event.id: event for event in events}.values()
    rows = [Row(0, key("capture", event.id), event, b"") for event in unique]
    return {week: list(activity.counts) for (_, _, week), activity in gather(rows, lambda tenant: True).items()}


async def test_death_at_every_point_of_counting_counts_each_event_once(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    sent: list[CapturedEvent] = []
    async with loop(database, redis, lanes=own_lanes(1)) as house, a_victim(engines, house) as victim:
        await switch_on(house, tenant)
        now, lane, end = house.clock.now_ms(), house.lanes.lane_for(tenant, "ann"), ""

        async def prepared() -> None:
            nonlocal end
            fresh = [
                CapturedEvent(tenant, f"e{n}", now - n * 7 * HOUR_MS % (30 * DAY_MS), now, "seen", "ann", "own")
                for n in range(len(sent), len(sent) + 3)
            ]
            sent.extend(fresh)
            await house.events.accept([*fresh, fresh[0], *sent[:1]])
            end = (await house.redis.call("HGET", house.keys.tagged("journal", lane, "meta"), "last")).decode()

        async def attempt() -> None:
            await victim.consume(end, ActiveHoursSink(lambda tenant: True, house.clock))

        async def check(at: int, name: str) -> None:
            await taken_over(house)
            async with database.worker() as tx:
                counted = {row["week"]: row["counts"] for row in await tx.fetch(COUNTS, tenant)}
            assert counted == expected(sent), f"death {at} at {name}"
            await prepared()

        await prepared()
        assert await enumerate_points(attempt, check, only="after:", what="counting hours") > 20


@asynccontextmanager
async def a_keeper(engines: Engines, house: Loop) -> AsyncIterator[SegmentsService]:
    """With lines of its own to the engines, which may die anywhere."""
    database = Database(derive(engines.postgres_url), worker_size=4, acquire_timeout_ms=30_000)
    redis = Redis(engines.redis_url, timeout=30)
    await database.start()
    await redis.start()
    service = SegmentsService(database, redis, house.tenants, house.clock, keys=house.keys)
    try:
        yield service
    finally:
        await service.stop()
        await redis.stop()
        await database.stop()


async def test_death_at_every_point_of_writing_profiles_leaves_none_behind(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    sent: list[CapturedEvent] = []
    async with loop(database, redis, lanes=own_lanes(1), clock=clock) as house, a_keeper(engines, house) as victim:
        await house.consumer()
        await switch_on(house, tenant)
        place = ProjectionKeys(house.keys).value(tenant, "ann")

        async def prepared() -> None:
            """Ten more evenings, and their marks are due."""
            for number in range(len(sent), len(sent) + 10):
                at = clock.now_ms() // DAY_MS * DAY_MS - (number % 30 + 1) * DAY_MS + (20 + number % 3) * HOUR_MS
                sent.append(CapturedEvent(tenant, f"e{number}", at, at, "seen", "ann", "own"))
            await house.events.accept(list(sent[-10:]))
            await house.drained()
            clock.advance(seconds=SETTLE_AFTER.total_seconds() + 1)

        async def attempt() -> None:
            await victim.keeper.step(tenant)

        async def check(at: int, name: str) -> None:
            while await house.segments.keeper.step(tenant):
                continue
            rows = [Row(0, key("capture", event.id), event, b"") for event in sent]
            wanted = profile_of(gather(rows, lambda tenant: True).values(), "UTC")
            found: Profile | None = opened(await redis.call("GET", place), (ACTIVE_HOURS,)).get(ACTIVE_HOURS)
            assert found == wanted, f"death {at} at {name}"
            await prepared()

        await prepared()
        assert await enumerate_points(attempt, check, what="writing profiles") > 10
