"""Laws 2, 3 and 5 with real engines: whatever the order, the split and the copies, one state, and the ledger's."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import asyncpg
import msgspec

from handbill.banners.service import STATE as BANNERS
from handbill.caps.model import Subject
from handbill.caps.service import STATE as CAPS
from handbill.events.model import BannerEvent
from handbill.events.policy import ConsumerPolicy
from handbill.events.service import STATE as EVENTS
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.infra.state import state_hash
from tests.conftest import MakeTenant
from tests.kit import ledger
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop, own_lanes

COUNTED = (
    "events.event_keys", "events.drops", "events.parked", "banners.banner_impressions", "banners.banner_clicks",
    "banners.banner_stats", "banners.stat_days", "banners.event_marks", "caps.user_views", "caps.cap_totals",
    "caps.users",
)  # fmt: skip


async def forget(engines: Engines, tenants: list[int]) -> None:
    """As if these tenants had never sent anything."""
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        for table in COUNTED:
            await owner.execute(f"delete from {table} where tenant_id = any ($1::int[])", tenants)
    finally:
        await owner.close()


async def caps_hash(house: Loop, tenants: list[int]) -> str:
    """Every packed value that these events can have made, byte by byte."""
    made = blake2b(digest_size=16)
    for tenant in tenants:
        for user in ("somebody", *(f"u{n}" for n in range(12))):
            made.update(await house.caps._store.raw(Subject(tenant, user)) + b"\0")
    return made.hexdigest()


def arranged(dice: random.Random, sent: list[BannerEvent]) -> list[list[BannerEvent]]:
    mixed = sent[:]
    dice.shuffle(mixed)
    parts: list[list[BannerEvent]] = []
    while mixed:
        size = dice.choice((1, 3, 20, 90))
        parts.append(mixed[:size])
        del mixed[:size]
    return parts


ARRANGEMENTS = ((1, 1, 5_000), (3, 4, 7), (2, 3, 40), (3, 2, 1), (1, 4, 13))
"""(consumers, main lanes, events per batch)"""


async def test_every_arrangement_gives_the_ledgers_state(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    dice = random.Random(4)
    clock = FakeClock(datetime.now(UTC))
    tenants = [await make_tenant() for _ in range(3)]
    async with loop(database, redis, clock=clock) as house:
        shops = [await house.shop(tenant, x_times=3) for tenant in tenants]
    sent = [
        msgspec.structs.replace(event, micros=dice.randrange(1_000), sequence=dice.randrange(10))
        for event in ledger.events(dice, shops, 220, clock.now_ms())
    ]
    sent += dice.choices(sent, k=60)
    sent += [
        msgspec.structs.replace(event, received=event.received + 5_000, sequence=dice.randrange(10))
        for event in dice.choices(sent, k=40)
    ]
    book = ledger.Ledger()
    book.note(sent)
    states = []
    for consumers, main, size in ARRANGEMENTS:
        await forget(engines, tenants)
        async with loop(database, redis, clock=clock, lanes=own_lanes(main)) as house:
            policy = ConsumerPolicy(batch_events=size, batch_wait_ms=1, lease_s=4)
            for _ in range(consumers):
                await house.consumer(policy)
            await asyncio.gather(*(house.events.accept(part) for part in arranged(dice, sent)))
            await house.drained()
            await ledger.check(database, book)
            async with database.worker() as tx:
                states.append((await state_hash(tx, (*EVENTS, *BANNERS, *CAPS)), await caps_hash(house, tenants)))
    for state in states[1:]:
        assert state == states[0]


async def test_differing_copies_count_once_and_are_told(database: Database, redis: Redis, tenant: int) -> None:
    dice = random.Random(9)
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(dice, [shop], 60, house.clock.now_ms())
        others = [msgspec.structs.replace(event, at=event.at - 3_600_000, page="/other") for event in sent]
        await house.consumer(ConsumerPolicy(batch_events=25, batch_wait_ms=1))
        for part in arranged(dice, sent + others):
            await house.events.accept(part)
        await house.drained()
        drops = await ledger.dropped(database, [tenant])
        assert sum(drops.values()) == len(others)
        assert {reason for _, reason in drops} <= {"DUPLICATE", "DUPLICATE_DIFFERENT"}
        async with database.worker() as tx:
            assert await tx.fetchval(ledger.KEYS, [tenant]) == len(sent)
            assert sum(row["n"] for row in await tx.fetch(ledger.ROWS, [tenant])) == len(sent)
        await no_difference(house, tenant)


async def no_difference(house: Loop, tenant: int) -> None:
    """Law 5: what a recount finds is what the live stats say."""
    today = house.clock.now().date()
    for back in range(4):
        rolled = await house.banners.rollup.tenant_day(tenant, today - timedelta(days=back))
        assert rolled.corrected == 0, rolled


AUDITED = Sql("select differences from banners.audits where tenant_id = $1 order by checked_at", "audited")


async def audited(house: Loop, tenant: int) -> int:
    """Rows that a new audit of every recent day finds wrong for this tenant; other tests' tenants do not matter."""
    async with house.database.worker() as tx:
        before = len(await tx.fetch(AUDITED, tenant))
    await house.banners.rollup.audit(sample=100_000)
    async with house.database.worker() as tx:
        return sum(row["differences"] for row in (await tx.fetch(AUDITED, tenant))[before:])


async def test_live_stats_equal_a_recount_at_all_times(database: Database, redis: Redis, tenant: int) -> None:
    """Roll-ups and audits of the same days run again and again while the events arrive."""
    dice = random.Random(11)
    async with loop(database, redis, main=3) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(dice, [shop], 1_500, house.clock.now_ms())
        sent += dice.choices(sent, k=200)
        book = ledger.Ledger()
        book.note(sent)
        for _ in range(2):
            await house.consumer(ConsumerPolicy(batch_events=50, batch_wait_ms=1, lease_s=4))
        arriving = asyncio.gather(*(house.events.accept(part) for part in arranged(dice, sent)))
        rounds = 0
        while rounds < 3 or not arriving.done():
            await no_difference(house, tenant)
            rounds += 1
            if rounds == 2:
                assert await audited(house, tenant) == 0
        await arriving
        await house.drained()
        await no_difference(house, tenant)
        await ledger.check(database, book)


async def test_a_wrong_figure_is_found_by_the_audit_and_set_right(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    dice = random.Random(12)
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(dice, [shop], 100, house.clock.now_ms(), days=1)
        book = ledger.Ledger()
        book.note(sent)
        await house.consumer()
        await house.events.accept(sent)
        await house.drained()
        owner = await asyncpg.connect(engines.postgres_url)
        spoilt = await owner.execute(
            "update banners.banner_stats set impressions = impressions + 3, clicks = 0 where tenant_id = $1", tenant
        )
        await owner.close()
        wrong = int(spoilt.rpartition(" ")[2])
        assert await audited(house, tenant) == wrong
        today = house.clock.now().date()
        rolled = [await house.banners.rollup.tenant_day(tenant, today - timedelta(days=n)) for n in range(3)]
        assert sum(item.corrected for item in rolled) == wrong
        assert await audited(house, tenant) == 0
        await ledger.check(database, book)
        await no_difference(house, tenant)


async def test_two_recounts_at_once_correct_once(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    dice = random.Random(13)
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(dice, [shop], 80, house.clock.now_ms())
        book = ledger.Ledger()
        book.note(sent)
        await house.consumer()
        await house.events.accept(sent)
        await house.drained()
        owner = await asyncpg.connect(engines.postgres_url)
        await owner.execute("delete from banners.banner_stats where tenant_id = $1", tenant)
        await owner.close()
        today = house.clock.now().date()
        past = [today - timedelta(days=n) for n in range(3)]
        await asyncio.gather(*(house.banners.rollup.tenant_day(tenant, day) for day in past * 3))
        await ledger.check(database, book)
