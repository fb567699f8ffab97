"""Engines that die under load: what was accepted is kept, what is behind is caught up, and the caps hold meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handbill.caps.service import moves_of
from handbill.events import lanes as lane_runs
from handbill.events.model import Event, Impression, View, key
from handbill.events.policy import ConsumerPolicy
from handbill.infra import migrations
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy
from handbill.kit.telemetry import metrics
from handbill.tenants.model import NewTenant
from tests.conftest import MakeTenant, OwnEngine
from tests.kit import ledger
from tests.kit.loop import Loop, loop
from tests.kit.waiting import eventually

POLICY = ConsumerPolicy(batch_events=300, batch_wait_ms=1, lease_s=1.5)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Redis]:
    redis = Redis(url, timeout=30)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.stop()


async def kill(engine: object) -> None:
    """SIGKILL, and wait until it is gone."""
    os.kill(engine.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    await engine.wait()  # type: ignore[attr-defined]


async def view(house: Loop, event: View) -> None:
    """As the edge takes a view in: the cap moves in the same round trip."""
    moves = moves_of(key("view", event.id), event.at, event.banner)
    await house.events.accept([event], house.caps.move_commands(event.tenant, event.user or "", moves))


async def insist(house: Loop, events: list[Event]) -> int:
    """A client that repeats until it is answered; how often it had to."""
    again = 0

    async def answered() -> bool:
        nonlocal again
        try:
            await house.events.accept(events)
        except Busy:
            again += 1
            return False
        return True

    await eventually(answered, what="accepted at last")
    return again


async def test_postgres_dies_with_a_backlog(own_postgres: OwnEngine, redis: Redis, short_tmp: Path) -> None:
    """Events are taken in while it is down; the caps hold by Redis alone; afterwards all of it is counted."""
    home = short_tmp / "pg" / "killed"
    engine = await own_postgres(at=home, durable=False)
    port = int(engine.url.rpartition(":")[2].partition("/")[0])
    await migrations.migrate(engine.url)
    database = Database(derive(engine.url), worker_size=6)
    await database.start()
    dice = random.Random(1)
    try:
        async with loop(database, redis, main=2) as house:
            made = await house.tenants.create_tenant(NewTenant(name="Test", slug="test"), actor="test")
            tenant = made.tenant_id
            shop = await house.shop(tenant, x_times=2)
            banner = house.catalogue.tenant(tenant).banners[0]
            await house.consumer(POLICY)
            book = ledger.Ledger()
            now = house.clock.now_ms()
            sent = ledger.events(dice, [shop], 3_000, now)
            book.note([*sent, *sent[:500]])
            for start in range(0, 600, 100):
                await house.events.accept(sent[start : start + 100])
            await kill(engine)
            for start in range(600, 3_000, 100):
                await house.events.accept(sent[start : start + 100])
            await house.events.accept(sent[:500])
            seen = [View(tenant, f"down{n}", now - n, now, banner.id, user="grace") for n in range(2)]
            for event in seen:
                assert await house.allowed(tenant, "grace", banner, now)
                await view(house, event)
            assert not await house.allowed(tenant, "grace", banner, now)
            book.note(seen)
            await own_postgres(at=home, port=port, durable=False)
            await eventually(lambda: healthy(database), what="PostgreSQL is back")
            await house.drained()
            await ledger.check(database, book)
            assert not await house.allowed(tenant, "grace", banner, now)
            assert not await house.events.parked(tenant, reason=None, replayed=True, after=None, limit=1)
    finally:
        await database.stop()


async def healthy(database: Database) -> bool:
    try:
        await database.health()
    except Busy:
        return False
    return True


async def test_redis_is_killed_in_the_middle_of_the_load(
    database: Database, own_redis: OwnEngine, short_tmp: Path, tenant: int
) -> None:
    """Whoever was answered is kept; whoever was not repeats; nothing counts twice."""
    home = short_tmp / "redis" / "killed"
    engine = await own_redis(at=home)
    port = int(engine.url.rpartition(":")[2].partition("/")[0])
    dice = random.Random(2)
    async with opened(engine.url) as redis, loop(database, redis, main=2) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(dice, [shop], 1_200, house.clock.now_ms())
        book = ledger.Ledger()
        book.note(sent)
        await house.consumer(POLICY)
        parts = [sent[start : start + 20] for start in range(0, len(sent), 20)]
        doors = asyncio.Semaphore(6)
        halfway = asyncio.Event()
        told = 0

        async def send(part: list[Event]) -> None:
            nonlocal told
            async with doors:
                await insist(house, part)
                told += 1
                if told == len(parts) // 2:
                    halfway.set()

        sending = asyncio.gather(*(send(list(part)) for part in parts))
        await halfway.wait()
        await kill(engine)
        await own_redis(at=home, port=port)
        await sending
        await house.drained()
        await ledger.check(database, book, copies=False)


async def test_redis_wiped_after_the_drain_loses_nothing(database: Database, own_redis: OwnEngine, tenant: int) -> None:
    engine = await own_redis(durable=False)
    async with opened(engine.url) as redis, loop(database, redis, main=2) as house:
        shop = await house.shop(tenant, x_times=2)
        banner = house.catalogue.tenant(tenant).banners[0]
        now = house.clock.now_ms()
        sent = ledger.events(random.Random(3), [shop], 200, now)
        sent += [View(tenant, f"v{n}", now - n, now, banner.id, user="ada") for n in range(2)]
        book = ledger.Ledger()
        book.note(sent)
        await house.consumer(POLICY)
        await house.events.accept(sent)
        await house.drained()
        await redis.call("FLUSHALL")
        assert not await house.allowed(tenant, "ada", banner, now)  # PostgreSQL is asked
        assert await house.caps.ensure("again")
        assert not await house.allowed(tenant, "ada", banner, now)
        more = ledger.events(random.Random(4), [shop], 200, now, word="more")
        book.note(more)
        await house.events.accept(more)
        await house.drained()
        await ledger.check(database, book)


async def test_entries_lost_with_redis_are_reported_as_a_gap(
    database: Database, own_redis: OwnEngine, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_runs, "_TRIM_EVERY_S", 0.0)
    engine = await own_redis(durable=False)
    async with opened(engine.url) as redis, loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        kept = [Impression(tenant, f"kept{n}", now, now, shop.banners[0]) for n in range(10)]
        lost = [Impression(tenant, f"lost{n}", now, now, shop.banners[0]) for n in range(10)]
        after = [Impression(tenant, f"after{n}", now, now, shop.banners[0]) for n in range(10)]
        book = ledger.Ledger()
        book.note([*kept, *after])
        first = await house.consumer(POLICY)
        await house.events.accept(kept)
        await house.drained()
        await first.stop()
        house.consumers.remove(first)
        await house.events.accept(lost)
        await redis.call("FLUSHALL")
        await house.events.accept(after)
        before = metrics.JOURNAL_GAPS._value.get()
        await house.consumer(POLICY)
        # Before `drained`, which asks the same journal: a gap is told once to whoever asks first.
        await eventually(lambda: metrics.JOURNAL_GAPS._value.get() > before, what="the gap is told")
        await house.drained()
        await ledger.check(database, book)


async def test_a_worker_that_stops_finishes_its_batch_and_hands_over(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant = await make_tenant()
    async with loop(database, redis, main=2) as house:
        shop = await house.shop(tenant)
        book = ledger.Ledger()
        dice = random.Random(6)
        for turn in range(4):
            consumer = await house.consumer(ConsumerPolicy(batch_events=10, batch_wait_ms=1))
            sent = ledger.events(dice, [shop], 80, house.clock.now_ms(), word=f"t{turn}-")
            book.note(sent)
            await house.events.accept(sent)
            await eventually(consumer.lanes, what="it works")
            await consumer.stop()
            house.consumers.remove(consumer)
            assert not consumer.lanes()
        await house.consumer()
        await house.drained()
        await ledger.check(database, book)
