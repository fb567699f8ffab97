"""Days: late events make them dirty, roll-ups judge them, retention drops whole months and nothing still needed."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from itertools import count

import asyncpg
import pytest

from handbill.banners.retention import PARENTS, Retention
from handbill.banners.rollup import RAW_GONE
from handbill.events.model import Click, Event, Impression, View
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock, from_ms, to_ms
from tests.conftest import MakeTenant
from tests.kit import ledger
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop

DAYS = Sql(
    "select day, dirty_since is not null as dirty, rolled_at is not null as rolled, raw_gone_at is not null as gone"
    " from banners.stat_days where tenant_id = $1 order by day",
    "test_days",
)
MARKS = Sql(
    "select k.correlation_id, m.reason from banners.event_marks m"
    " join banners.banner_clicks k using (tenant_id, event_key) where m.tenant_id = $1 order by 1, 2",
    "test_marks",
)
PARTS = Sql("select count(*)::int from pg_class where relname = any ($1::text[])", "test_parts", "tests", "catalogue")


async def counted(house: Loop, events: list[Event]) -> None:
    await house.events.accept(events)
    if not house.consumers:
        await house.consumer()
    await house.drained()


async def days(database: Database, tenant: int) -> dict[date, tuple[bool, bool, bool]]:
    async with database.worker() as tx:
        return {row["day"]: (row["dirty"], row["rolled"], row["gone"]) for row in await tx.fetch(DAYS, tenant)}


async def later(engines: Engines, tenant: int) -> None:
    """An hour passes for these days."""
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        await owner.execute(
            "update banners.stat_days set dirty_since = dirty_since - interval '1 hour',"
            " rolled_at = rolled_at - interval '1 hour' where tenant_id = $1",
            tenant,
        )
    finally:
        await owner.close()


async def test_a_late_event_makes_its_day_dirty_until_it_is_rolled_up_again(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        at = now - 3 * 86_400_000
        past = from_ms(at).date()

        def shown(name: str, when: int) -> Impression:
            return Impression(tenant, name, when, now, shop.banners[0])

        await counted(house, [shown("now", now), shown("then", at)])
        assert (await days(database, tenant))[past] == (True, False, False)
        # The mark is young: a batch beside us may have leaned on it, so it outlives this roll-up.
        assert (await house.banners.rollup.tenant_day(tenant, past)).combinations == 1
        assert (await days(database, tenant))[past] == (True, True, False)
        await later(engines, tenant)
        rolled = await house.banners.rollup.dirty(most=10_000)
        assert (tenant, past) in {(item.tenant_id, item.day) for item in rolled}
        assert (await days(database, tenant))[past] == (False, True, False)
        await counted(house, [shown("later", at)])
        assert (await days(database, tenant))[past] == (True, True, False)
        assert all(item.corrected == 0 for item in rolled if item.tenant_id == tenant)


async def test_suspicion_is_the_same_whatever_came_first(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    """Late impressions clear clicks they explain, also those of the next morning."""
    midnight = to_ms(datetime.combine(datetime.now(UTC).date() - timedelta(days=2), datetime.min.time(), UTC))

    def sent(tenant: int, banner: int) -> list[Event]:
        received = midnight + 86_400_000
        seen = [
            Impression(tenant, "i-eve", midnight - 600_000, received, banner, session="eve"),
            Impression(tenant, "i-ada", midnight + 1_000, received, banner, user="ada"),
        ]
        clicks = [("eve", midnight + 600_000, "eve", None), ("ada1", midnight + 5_000, None, "ada"),
                  ("ada2", midnight + 5_400, None, "ada"), ("bob", midnight + 9_000, None, "bob"),
                  ("nobody", midnight + 9_500, None, None), ("edge1", midnight - 300, "mallory", None),
                  ("edge2", midnight + 300, "mallory", None)]  # fmt: skip
        return [
            *seen,
            *(Click(tenant, name, at, received, banner, session=session, user=user, destination="/")
              for name, at, session, user in clicks),
        ]  # fmt: skip

    wanted = [
        ("ada2", "too_fast"), ("bob", "no_impression"), ("edge1", "no_impression"), ("edge2", "no_impression"),
        ("edge2", "too_fast"),
    ]  # fmt: skip
    day = datetime.fromtimestamp(midnight / 1000, UTC).date()
    async with loop(database, redis) as house:
        for seed in range(4):
            tenant = await make_tenant()
            shop = await house.shop(tenant, banners=1)
            events = sent(tenant, shop.banners[0])
            random.Random(seed).shuffle(events)
            for start in range(0, len(events), 3):
                await counted(house, events[start : start + 3])
                touched = sorted({datetime.fromtimestamp(e.at / 1000, UTC).date() for e in events[start : start + 3]})
                for each in touched[:: 1 if seed % 2 else -1]:
                    await house.banners.rollup.tenant_day(tenant, each)
            async with database.worker() as tx:
                assert [tuple(row) for row in await tx.fetch(MARKS, tenant)] == wanted, f"{seed} {day}"


@pytest.fixture
def retention(database: Database) -> Retention:
    return Retention(database, SystemClock())


def parts(month: date) -> list[str]:
    return [f"{parent.partition('.')[2]}_{month:%Y%m}" for parent in PARENTS]


async def standing(database: Database, month: date) -> int:
    async with database.worker() as tx:
        return int(await tx.fetchval(PARTS, parts(month)))


async def test_months_are_dropped_whole_after_their_days_are_rolled_up(
    database: Database, redis: Redis, tenant: int, retention: Retention
) -> None:
    first, second = date(2011, 3, 1), date(2011, 4, 1)
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        old = to_ms(datetime(2011, 4, 20, tzinfo=UTC))
        sent = ledger.events(random.Random(1), [shop], 120, old, days=30)  # over the end of March
        book = ledger.Ledger()
        book.note(sent)
        await counted(house, list(sent))
        assert await standing(database, first) == await standing(database, second) == 3
        told = await retention.run()
        assert {"2011-03", "2011-04"} <= set(told.kept)
        assert not {"2011-03", "2011-04"} & set(told.dropped)
        known = list(await days(database, tenant))
        for day in known:
            await house.banners.rollup.tenant_day(tenant, day)
        await settled(database, tenant)
        told = await retention.run()
        assert {"2011-03", "2011-04"} <= set(told.dropped)
        assert await standing(database, first) == await standing(database, second) == 0
        assert set((await days(database, tenant)).values()) == {(False, True, True)}
        for day in known:
            assert (await house.banners.rollup.tenant_day(tenant, day)).skipped == RAW_GONE
        assert await ledger.counted(database, [tenant]) == book.cells
        assert "2011-03" not in (await retention.run()).dropped
        assert retention_made(await retention.run()) == 0


def retention_made(told: object) -> int:
    return told.made  # type: ignore[attr-defined,no-any-return]


async def settled(database: Database, tenant: int) -> None:
    """The two minutes are over after which a roll-up may clear a mark."""
    sql = Sql("update banners.stat_days set dirty_since = null where tenant_id = $1", "test_settled")
    async with database.worker() as tx:
        await tx.execute(sql, tenant)


async def test_death_at_every_point_of_dropping_a_month(
    database: Database, redis: Redis, tenant: int, retention: Retention
) -> None:
    """A recount that comes after the death finds all of a day's rows or its mark, never half of it."""
    rounds = count()
    month = date(2012, 5, 1)
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        book = ledger.Ledger()

        async def prepared() -> None:
            at = to_ms(datetime(2012, 5, 10, tzinfo=UTC)) + next(rounds) * 86_400_000 // 2
            sent: list[Event] = [
                Impression(tenant, f"e{at}", at, at, shop.banners[0]),
                Click(tenant, f"e{at}", at, at, shop.banners[0], destination="/"),
                View(tenant, f"e{at}", at, at, shop.banners[0], user="ada"),
            ]
            book.note(sent)
            for consumer in house.consumers:
                await consumer.stop()
            house.consumers.clear()  # the next one looks anew which months there are
            await counted(house, sent)
            for day, (_, _, gone) in (await days(database, tenant)).items():
                if not gone:
                    await house.banners.rollup.tenant_day(tenant, day)
            await settled(database, tenant)

        async def attempt() -> None:
            await retention._drop(month)

        async def check(number: int, name: str) -> None:
            for day in await days(database, tenant):
                await house.banners.rollup.tenant_day(tenant, day)
            assert await ledger.counted(database, [tenant]) == book.cells, f"death {number}: {name}"
            if await standing(database, month) == 3:
                return
            assert await standing(database, month) == 0
            await prepared()

        await prepared()
        assert await enumerate_points(attempt, check, what="dropping a month") >= 10
