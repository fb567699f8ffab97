"""Parked events and their ways back: sent again, stopped at the first that is still bad, dropped in sight, healed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from handbill.events.dead import CAREFUL, CIRCUIT, HEALED_TRIES
from handbill.events.model import Impression, Row
from handbill.events.service import Chosen, OnFailure
from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.breaker import Breaker, BreakerPolicy, CircuitOpen
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Invalid
from tests.kit.loop import Loop, loop

WAITING = Sql("select count(*) from events.parked where tenant_id = $1 and replayed_at is null", "waiting")
ROWS = Sql("select count(*) from banners.banner_impressions where tenant_id = $1", "rows")
AGE = Sql("update events.parked set parked_at = parked_at - $2::interval where tenant_id = $1", "age")
AUDITED = Sql("select action, actor, after from tenants.audit_log where tenant_id = $1 order by audit_id", "audited")


class Gate:
    """A sink with a fault that can be mended: while it stands, rows of its page are refused by the database."""

    def __init__(self) -> None:
        self.shut = True

    async def prepare(self, rows: list[Row]) -> None:
        """Nothing must be there."""

    async def write(self, tx: Tx, rows: list[Row], lane: int) -> None:
        if self.shut and any(getattr(row.event, "page", None) == "bad" for row in rows):
            raise PostgresError("a check that is wrong", sqlstate="23514", constraint="ck", statement="gate")

    async def project(self, survivors: list[Row], refused: list[Row]) -> None:
        """Nothing in Redis."""


@asynccontextmanager
async def parked(database: Database, redis: Redis, tenant: int, bad: int) -> AsyncIterator[tuple[Loop, Gate]]:
    """A loop in which so many events were parked beside good ones."""
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        gate = Gate()
        consumer = await house.consumer(start=False)
        consumer._commit._sinks = (*consumer._commit._sinks, gate)
        await consumer.start()
        mixed = [
            Impression(tenant, f"e{n}", now, now, shop.banners[0], page="bad" if n < bad else "good")
            for n in range(bad * 3)
        ]
        await house.events.accept(mixed)
        await house.drained()
        assert await count(database, WAITING, tenant) == bad
        yield house, gate


async def count(database: Database, statement: Sql, tenant: int) -> int:
    async with database.worker() as tx:
        return int(await tx.fetchval(statement, tenant))


async def test_mended_and_replayed_they_are_counted_once(database: Database, redis: Redis, tenant: int) -> None:
    async with parked(database, redis, tenant, 12) as (house, gate):
        dead, mine = house.events.dead, Chosen(tenant)
        assert (await dead.replay(mine, dry_run=True)).matched == 12
        assert await count(database, WAITING, tenant) == 12
        gate.shut = False
        done = await dead.replay(mine)
        assert (done.matched, done.sent, done.failed, done.stopped) == (12, 12, 0, False)
        await house.drained()
        assert await count(database, ROWS, tenant) == 36
        assert (await dead.replay(mine)).matched == 0


async def test_a_stop_leaves_the_rest_alone(database: Database, redis: Redis, tenant: int) -> None:
    async with parked(database, redis, tenant, CAREFUL + 5) as (house, gate):
        done = await house.events.dead.replay(Chosen(tenant), on_failure=OnFailure.STOP)
        assert (done.sent, done.failed, done.stopped) == (CAREFUL, CAREFUL, True)
        assert await count(database, WAITING, tenant) == CAREFUL + 5, "parked again, and those behind never moved"
        gate.shut = False
        done = await house.events.dead.replay(Chosen(tenant), on_failure=OnFailure.STOP)
        assert (done.sent, done.failed, done.stopped) == (CAREFUL + 5, 0, False)
        assert await count(database, ROWS, tenant) == (CAREFUL + 5) * 3


async def test_failures_open_the_circuit_for_everybody(database: Database, redis: Redis, tenant: int) -> None:
    async with parked(database, redis, tenant, 3) as (house, gate):
        policy = BreakerPolicy(failures=2, open_s=300)
        dead = house.events.dead
        dead._breaker = Breaker(redis, policy, house.keys)
        other = Breaker(redis, policy, house.keys)
        for _ in range(2):
            assert (await dead.replay(Chosen(tenant), on_failure=OnFailure.STOP)).stopped
        with pytest.raises(CircuitOpen):
            await dead.replay(Chosen(tenant))
        with pytest.raises(CircuitOpen):
            await other.enter(CIRCUIT)
        assert await count(database, WAITING, tenant) == 3
        gate.shut = False
        await other.succeeded(CIRCUIT)
        assert (await dead.replay(Chosen(tenant))).sent == 3


async def test_the_clock_heals_and_gives_up_after_three(database: Database, redis: Redis, tenant: int) -> None:
    async with parked(database, redis, tenant, 4) as (house, gate):
        dead = house.events.dead
        assert await healed(database, house, tenant, age=False) == 0, "it was parked a moment ago"
        for _ in range(HEALED_TRIES):
            assert await healed(database, house, tenant) == 4
        assert await healed(database, house, tenant) == 0, "it came back too often: a person must look"
        gate.shut = False
        assert (await dead.replay(Chosen(tenant))).sent == 4
        await house.drained()
        assert await count(database, ROWS, tenant) == 12


async def healed(database: Database, house: Loop, tenant: int, *, age: bool = True) -> int:
    """How many of this tenant's the clock sent again; other tests' leftovers are not ours to count."""
    if age:
        async with database.worker() as tx:
            await tx.execute(AGE, tenant, timedelta(minutes=6))
    async with database.worker() as tx:
        ids = set(await house.events.dead._reader.healable(tx, timedelta(minutes=5), HEALED_TRIES, 10_000))
    async with database.tenant(tenant) as tx:
        mine = [row.id for row in await house.events.dead._reader.parked(tx, tenant, None, False, None, 100)]
    chosen = tuple(each for each in mine if each in ids)
    if not chosen:
        return 0
    return (await house.events.dead.replay(Chosen(None, ids=chosen), on_failure=OnFailure.STOP)).sent


async def test_too_old_needs_force_and_dropping_needs_a_choice(database: Database, redis: Redis, tenant: int) -> None:
    async with parked(database, redis, tenant, 3) as (house, gate):
        gate.shut = False
        dead = house.events.dead
        dead._audit = house.tenants.audit
        async with database.worker() as tx:
            await tx.execute(AGE, tenant, timedelta(days=36))
        done = await dead.replay(Chosen(tenant))
        assert (done.matched, done.sent, done.too_old) == (3, 0, 3)
        with pytest.raises(Invalid, match="Say which"):
            await dead.drop(Chosen(tenant), actor="ada")
        async with database.tenant(tenant) as tx:
            first = (await dead._reader.parked(tx, tenant, None, False, None, 1))[0]
        assert (await dead.drop(Chosen(tenant, ids=(first.id,)), actor="ada")).dropped == 1
        assert (await dead.replay(Chosen(tenant), force=True, actor="ada")).sent == 2
        async with database.worker() as tx:
            told = [row["action"] for row in await tx.fetch(AUDITED, tenant) if row["actor"] == "ada"]
        assert told == ["parked.drop", "parked.replay"]


async def test_another_tenants_are_never_touched(database: Database, redis: Redis, make_tenant: object) -> None:
    one, other = await make_tenant(), await make_tenant()  # type: ignore[operator]
    async with parked(database, redis, one, 2) as (house, _):
        assert (await house.events.dead.replay(Chosen(other))).matched == 0
        assert (await house.events.dead.drop(Chosen(other, "REJECTED"), actor="eve")).dropped == 0
        assert await count(database, WAITING, one) == 2
        assert isinstance(house.clock, SystemClock)
