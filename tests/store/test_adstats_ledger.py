"""Laws 1, 2 and 9 for ad figures: death at every point, weeks of restatement, and what was believed on each day."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from handbill.adstats import store
from handbill.adstats.dispatch import PARTS_AT_ONCE
from handbill.adstats.model import LEVELS, Figures
from handbill.adstats.providers.mock import LATE_DAYS, Manners, told
from handbill.adstats.providers.port import Account, Question
from handbill.adstats.reading import StatsQuery
from handbill.adstats.service import AdstatsService
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from tests.kit.adstats import FakeClock, Shop, a_shop, service, state, synced
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.waiting import eventually
from tests.store.test_outbox_crash import departed

MakeTenant = Callable[..., Awaitable[int]]
Beliefs = dict[tuple[date, UUID], tuple[Any, ...]]
DAY = timedelta(days=1)


def truth(shop: Shop, day: date, now: datetime | None, zone: str) -> dict[UUID, Figures]:
    account = Account(shop.accounts[0], "1000", "USD", zone)
    found: dict[UUID, Figures] = {}
    for level in LEVELS:
        rows = told(Question(shop.seller, account, level, shop.entities, day, day), day, now)
        found |= {row.entity_id: row.figures for row in rows}
    return found


async def believed(adstats: AdstatsService, tenant: int, first: date, last: date, as_of: date | None = None) -> Beliefs:
    found: Beliefs = {}
    for level in LEVELS:
        query = StatsQuery(first, last + DAY, level, ("day", "entity"), as_of=as_of)
        for row in (await adstats.reading.stats(tenant, query)).rows:
            assert row.day is not None
            assert row.entity_id is not None
            found[row.day, row.entity_id] = tuple(getattr(row, name) for name in Figures.__struct_fields__)
    return found


async def test_four_weeks_of_restatement_end_in_the_truth_and_every_days_belief_is_kept(
    database: Database, redis: Redis, tenant: int
) -> None:
    """Once a day the whole look-back is read, in a zone far from ours, while purchases are still being found."""
    zone = "America/Los_Angeles"
    clock = FakeClock(datetime(2026, 3, 1, 20, 0, tzinfo=UTC))
    adstats = service(database, redis, clock, manners=Manners(running=True))
    shop = await a_shop(adstats, database, tenant, tree=((1, 1), ()), zone=zone)
    first = clock.now().date()
    days = LATE_DAYS + 4
    kept: dict[date, Beliefs] = {}
    for _ in range(days):
        today = clock.now().date()
        await synced(adstats, shop, max(first, today - LATE_DAYS * DAY), today)
        if today.day % 5 == 0:  # a second look on some days: only the last belief of a day is kept
            clock.advance(hours=2)
            await synced(adstats, shop, today)
            clock.advance(hours=-2)
        kept[today] = await believed(adstats, tenant, first, today)
        clock.advance(days=1)
    last = max(kept)
    final = await believed(adstats, tenant, first, last)
    for day in (first + number * DAY for number in range(4)):  # these are 28 days old at the last sync
        assert {key[1]: value for key, value in final.items() if key[0] == day} == {
            entity: figures.values() for entity, figures in truth(shop, day, None, zone).items()
        }
    for as_of, snapshot in kept.items():
        assert await believed(adstats, tenant, first, as_of, as_of) == snapshot
    drift = await adstats.reading.drift(tenant, first, first + DAY, "CAMPAIGN")
    assert len(drift) == 1
    assert drift[0].purchase_value > drift[0].first_purchase_value
    # there a day ends on the next one of UTC: the hours that were still to come are no restatement
    assert drift[0].first_spend == drift[0].spend
    assert (drift[0].first_on, drift[0].last_on) == (first + DAY, first + LATE_DAYS * DAY)
    # a rebuild from the raw rows believes what we believe
    before = await state(database, tenant)
    await adstats.syncing.rebuild(tenant, first, last)
    assert await state(database, tenant) == before


@asynccontextmanager
async def a_process(engines: Engines, clock: FakeClock, prefix: str = "") -> AsyncIterator[AdstatsService]:
    """Adapters of its own: a process that dies takes them along."""
    name = f"dying-{uuid.uuid4().hex}"
    database = Database(derive(f"{engines.postgres_url}?application_name={name}"), app_size=1, worker_size=1)
    redis = Redis(engines.redis_url, timeout=30)
    await database.start()
    await redis.start()
    try:
        yield service(database, redis, clock, prefix=prefix or None)
    finally:
        await redis.stop()
        await database.stop()
        await eventually(lambda: departed(engines, name), what="PostgreSQL has let go of the dead process")


async def test_death_at_every_point_of_a_sync_leaves_what_one_sync_leaves(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((1,), ()))
    await synced(adstats, shop, clock.now().date())  # the month is there
    today = clock.now().date()
    turn = [0]

    def day() -> date:
        return today - turn[0] * DAY

    async def attempt() -> None:
        turn[0] += 1
        async with a_process(engines, clock) as dying:
            await dying.syncing.run(tenant, shop.job(day(), day(), "CAMPAIGN"))

    async def check(number: int, name: str) -> None:
        half = await believed(adstats, tenant, day(), day())
        wanted = {(day(), entity): one.values() for entity, one in truth(shop, day(), None, "UTC").items()}
        assert half.items() <= wanted.items(), f"half a sync can be seen after {name}"
        await synced(adstats, shop, day())
        assert await believed(adstats, tenant, day(), day()) == wanted
        pages = await adstats.reading.sellpages(tenant, day(), day() + DAY, True, ())
        campaigns = [wanted[day(), entity.entity_id] for entity in shop.of("CAMPAIGN")]
        assert sum(row.spend for row in pages.rows) == sum(values[0] for values in campaigns)

    points = await enumerate_points(attempt, check, what="a sync", only="pg")
    assert points > 15
    ledger = (await state(database, tenant))[1]
    assert len(ledger) == (turn[0] + 1) * len(shop.entities)  # one belief a day, however often it was said


async def test_a_backfill_that_was_begun_is_ended_whoever_died_beginning_it(
    engines: Engines, database: Database, redis: Redis, tenant: int, unique: Callable[[str], str]
) -> None:
    clock = FakeClock()
    prefix = unique("bull")
    adstats = service(database, redis, clock, prefix=prefix)
    shop = await a_shop(adstats, database, tenant, tree=((1,),))
    first = clock.now().date() - 60 * DAY
    turn = [0]

    async def attempt() -> None:
        turn[0] += 1
        day = first + turn[0] * DAY
        async with a_process(engines, clock, prefix) as dying:
            await dying.dispatch.backfill(tenant, day, day, actor="test")

    async def check(number: int, name: str) -> None:
        """Half a backfill is none: it has all its parts, or it is not there."""
        assert all(one.parts == len(LEVELS) for one in (await adstats.dispatch.backfills(tenant, None, 100)).items)

    assert await enumerate_points(attempt, check, what="a backfill's beginning") > 10
    begun = (await adstats.dispatch.backfills(tenant, None, 100)).items
    assert 0 < len(begun) < turn[0]
    told = await adstats.dispatch.tick(tenant)  # whatever the dead had put into the queue, the next parts are in it now
    async with database.worker() as tx:
        waiting = await store.waiting_parts(tx, 1_000, tenant)
    assert {job.job_id for _, job in waiting[:PARTS_AT_ONCE]} <= set(told.jobIds)
    assert len(waiting) == len(LEVELS) * len(begun)
    for _, job in waiting:
        assert (await adstats.syncing.run(tenant, job)).parts == 1
    assert {one.state for one in (await adstats.dispatch.backfills(tenant, None, 100)).items} == {"done"}
    query = StatsQuery(first, clock.now().date(), "AD", ("day",))
    assert len((await adstats.reading.stats(shop.tenant, query)).rows) == len(begun)
