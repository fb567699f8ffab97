"""Recounts of days that are too large or cannot be recounted: in parts, in turns, and without delaying others."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import asyncpg
import pytest

from handbill.banners.rollup import PARTS, UNFINISHED, RecountPolicy, Rolled, Rollup, S
from handbill.events.model import Click, Event, Impression
from handbill.infra.postgres import Database, PostgresError, PostgresStopped
from handbill.infra.redis import Redis
from handbill.kit.clock import from_ms
from handbill.kit.ids import Ids
from tests.conftest import MakeTenant
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.store.test_count_days import MARKS, counted, days, later

HOUR_MS = 3_600_000
SLOW = PostgresStopped("the statement took longer than its time limit", sqlstate="57014")
REFUSED = PostgresError("no", sqlstate="22012", constraint=None, statement="differences")


def events_of(tenant: int, banner: int, midnight_ms: int, now_ms: int) -> list[Event]:
    """Every two hours an impression and two fast clicks, one of them on each side of the hour."""
    found: list[Event] = []
    for hour in range(1, 24, 2):
        at = midnight_ms + hour * HOUR_MS
        found.append(Impression(tenant, f"i{hour}", at - 60_000, now_ms, banner, session="ada"))
        for name, moment in (("a", at - 300), ("b", at + 300)):
            found.append(Click(tenant, f"{name}{hour}", moment, now_ms, banner, session="ada", destination="/"))
    return found


async def spoil(engines: Engines, tenant: int) -> None:
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        await owner.execute(
            "update banners.banner_stats set impressions = impressions + 5 where tenant_id = $1", tenant
        )
        await owner.execute("delete from banners.event_marks where tenant_id = $1", tenant)
    finally:
        await owner.close()


async def differences(database: Database, rollup: Rollup, tenant: int, day: date) -> int:
    start = datetime.fromisoformat(f"{day.isoformat()}T00:00:00+00:00")
    async with database.worker() as tx:
        return len(await rollup._differences(tx, tenant, start, start + timedelta(days=1)))


async def marks(database: Database, tenant: int) -> list[tuple[str, str]]:
    async with database.worker() as tx:
        return [tuple(row) for row in await tx.fetch(MARKS, tenant)]


async def past_day(house: Loop, tenant: int) -> date:
    """Three days ago has events of this tenant; it is dirty since an hour."""
    shop = await house.shop(tenant, banners=1)
    now_ms = house.clock.now_ms()
    midnight_ms = now_ms - now_ms % (24 * HOUR_MS) - 3 * 24 * HOUR_MS
    await counted(house, events_of(tenant, shop.banners[0], midnight_ms, now_ms))
    return from_ms(midnight_ms).date()


class SlowRollup(Rollup):
    """Every recount of more than `fits` reaches its time limit."""

    fits = timedelta(hours=1)
    parts = 0

    async def _recount(self, tenant: int, day: date, since: datetime, until: datetime) -> int | None:
        if until - since > self.fits:
            raise SLOW
        self.parts += 1
        return await super()._recount(tenant, day, since, until)


async def test_a_day_that_takes_too_long_is_recounted_in_parts_with_the_same_result(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        day = await past_day(house, tenant)
        whole = await house.banners.rollup.tenant_day(tenant, day)
        expected = await marks(database, tenant)
        assert len(expected) == 12, "each second click is too fast"
        await spoil(engines, tenant)
        await later(engines, tenant)
        rollup = SlowRollup(database, house.clock, Ids())
        rolled = await rollup.tenant_day(tenant, day)
        assert (rolled.combinations, rolled.skipped) == (whole.combinations, None)
        assert rolled.corrected > 0
        assert rollup.parts == 48, "hours of the day, and of the day after for the marks"
        assert await differences(database, rollup, tenant, day) == 0
        assert await marks(database, tenant) == expected
        assert (await days(database, tenant))[day] == (False, True, False)


async def test_a_large_day_gives_its_turn_to_others_and_goes_on_later(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        day = await past_day(house, tenant)
        await spoil(engines, tenant)
        await later(engines, tenant)
        rollup = SlowRollup(database, house.clock, Ids(), RecountPolicy(turn_s=0))
        for number in range(1, 48):
            assert (await rollup.tenant_day(tenant, day)).skipped == UNFINISHED
            assert rollup.parts == number
        assert (await days(database, tenant))[day] == (True, False, False)
        assert (await rollup.tenant_day(tenant, day)).skipped is None
        assert await differences(database, rollup, tenant, day) == 0
        assert (await days(database, tenant))[day] == (False, True, False)


async def test_an_event_that_lands_behind_the_place_of_a_recount_leaves_its_day_dirty(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        day = await past_day(house, tenant)
        await later(engines, tenant)
        rollup = SlowRollup(database, house.clock, Ids(), RecountPolicy(turn_s=0))
        assert (await rollup.tenant_day(tenant, day)).skipped == UNFINISHED
        rollup._open[tenant, day].began -= timedelta(hours=1)  # it has been under way for long
        owner = await asyncpg.connect(engines.postgres_url)
        await owner.execute(
            "update banners.stat_days set dirty_since = now() - interval '10 minutes' where tenant_id = $1", tenant
        )
        await owner.close()
        while (await rollup.tenant_day(tenant, day)).skipped == UNFINISHED:
            pass
        assert (await days(database, tenant))[day] == (True, True, False)


async def test_a_part_that_cannot_get_smaller_fails_and_keeps_what_was_done(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        day = await past_day(house, tenant)
        rollup = SlowRollup(database, house.clock, Ids())
        rollup.fits = timedelta(0)
        with pytest.raises(PostgresStopped):
            await rollup.tenant_day(tenant, day)
        assert rollup._parts[tenant] == PARTS[-1]
        rollup.fits = PARTS[-1]
        assert (await rollup.tenant_day(tenant, day)).skipped is None


class RefusedRollup(Rollup):
    refused = 0

    async def tenant_day(self, tenant: int, day: date) -> Rolled:
        if tenant == self.refused:
            raise REFUSED
        return await super().tenant_day(tenant, day)


async def test_a_day_that_cannot_be_recounted_delays_no_other_day_and_no_other_tenant(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    async with loop(database, redis) as house:
        poisoned, tenant = sorted([await make_tenant(), await make_tenant()])
        for each in (poisoned, tenant):
            day = await past_day(house, each)
            await later(engines, each)
        rollup = RefusedRollup(database, house.clock, Ids())
        rollup.refused = poisoned
        rolled = await rollup.dirty(most=10_000)
        assert tenant in {item.tenant_id for item in rolled}
        assert poisoned not in {item.tenant_id for item in rolled}
        assert (poisoned, day) in rollup._dirty.paused()
        async with database.worker() as tx:
            rows = await tx.fetch(S.dirty_days, timedelta(0), 10_000, [poisoned], [day])
        assert (poisoned, day) not in {(row["tenant_id"], row["day"]) for row in rows}, "it takes nobody's place"


async def test_the_nightly_rollup_goes_on_behind_a_tenant_that_fails_and_leaves_its_day_to_the_sweep(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    async with loop(database, redis) as house:
        poisoned, tenant = sorted([await make_tenant(), await make_tenant()])
        for each in (poisoned, tenant):
            day = await past_day(house, each)
        owner = await asyncpg.connect(engines.postgres_url)
        await owner.execute("update banners.stat_days set dirty_since = null where tenant_id = $1", poisoned)
        await owner.close()
        rollup = RefusedRollup(database, house.clock, Ids())
        rollup.refused = poisoned
        rolled = await rollup.day(day, "test")
        assert tenant in {item.tenant_id for item in rolled}
        assert (await days(database, poisoned))[day] == (True, False, False)
        again = await Rollup(database, house.clock, Ids()).dirty(rest=timedelta(0), most=10_000)
        assert poisoned in {item.tenant_id for item in again}
        assert (await days(database, poisoned))[day] == (False, True, False)
