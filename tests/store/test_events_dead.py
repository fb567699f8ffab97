"""Parked events and their ways back: sent again, stopped at the first that is still bad, dropped in sight, healed."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from handbill.events.batch import Parked
from handbill.events.dead import CAREFUL, HEALED_TRIES, circuit_of
from handbill.events.model import CapturedEvent, Edge, EdgeKind, Impression, encode
from handbill.events.reasons import Reason
from handbill.events.service import REPLAYED_DAYS, Chosen, OnFailure
from handbill.events.store import EventStore
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.breaker import Breaker, BreakerPolicy, CircuitOpen
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Invalid
from handbill.kit.ids import Ids
from tests.conftest import MakeTenant
from tests.kit.loop import Loop, loop
from tests.kit.parked_events import ROWS, WAITING, count, parked

AGE = Sql("update events.parked set parked_at = parked_at - $2::interval where tenant_id = $1", "age")
SENT = Sql("update events.parked set replayed_at = now() - $3::interval where tenant_id = $1 and event_id = $2", "sent")
AUDITED = Sql("select action, actor, after from tenants.audit_log where tenant_id = $1 order by audit_id", "audited")


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


async def test_failures_open_the_circuit_of_one_tenant(database: Database, redis: Redis, tenant: int) -> None:
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
            await other.enter(circuit_of(tenant))
        assert await count(database, WAITING, tenant) == 3
        gate.shut = False
        await other.enter(circuit_of(tenant + 1))
        await other.succeeded(circuit_of(tenant))
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
    return await house.events.dead.heal_tenants([tenant])


async def test_bad_events_of_one_tenant_do_not_keep_anothers_from_healing(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    one, other = await make_tenant(), await make_tenant()
    async with parked(database, redis, one, CAREFUL + 5) as (house, gate):
        shop, now = await house.shop(other), house.clock.now_ms()
        dead = house.events.dead
        dead._breaker = Breaker(redis, BreakerPolicy(failures=1, open_s=300), house.keys)
        await house.events.accept([Impression(other, "x1", now, now, shop.banners[0], page="bad")])
        await house.drained()
        assert await count(database, WAITING, other) == 1
        async with database.worker() as tx:
            for tenant in (one, other):
                await tx.execute(AGE, tenant, timedelta(minutes=6))
            tenants = await dead._reader.healable_tenants(tx, timedelta(minutes=5))
        assert {one, other} <= set(tenants)
        gate.bad_tenant, gate.shut = one, True
        assert await dead.heal_tenants([one, other]) == CAREFUL + 1, "one portion of the bad ones, and the good one"
        await house.drained()
        assert (await count(database, ROWS, other), await count(database, WAITING, other)) == (1, 0)
        with pytest.raises(CircuitOpen):
            await dead.replay(Chosen(one))
        assert await dead.heal_tenants([one, other]) == 0, "an open circuit is no error of the clock"


async def test_parked_events_are_dropped_in_portions(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handbill.events.dead.DROPPED_AT_ONCE", 2)
    async with parked(database, redis, tenant, 5) as (house, _):
        dead = house.events.dead
        dead._audit = house.tenants.audit
        mine = Chosen(tenant, "REJECTED")
        assert (await dead.drop(mine, actor="ada")).dropped == 5
        assert await count(database, WAITING, tenant) == 0
        async with database.worker() as tx:
            audited = [row["action"] for row in await tx.fetch(AUDITED, tenant) if row["actor"] == "ada"]
        assert audited == ["parked.drop"] * 3, "a line for each portion"


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


async def test_an_erasure_takes_whole_ids_and_also_what_was_sent_again(
    database: Database, redis: Redis, tenant: int
) -> None:
    """The id 7 is nobody's part of "1978"; and the bytes of a replayed event name its sender like any others."""
    async with loop(database, redis, main=1) as house:
        dead, now = house.events.dead, house.clock.now_ms()
        edge = Edge(EdgeKind.IDENTIFY, "7")
        bodies = [
            encode(CapturedEvent(tenant, "e0", now, now, "view", "7", "own")),
            encode(CapturedEvent(tenant, "e1", now, now, "view", "1978", "own", b'{"n":"7"}')),
            encode(CapturedEvent(tenant, "e2", now, now, "$identify", "ada", "own", edge=edge)),
            encode(Impression(tenant, "e3", now, now, 7, user="77", session="7")),
            b'{"event":"view","distinct_id":"7"}',
            b'{"event":"view","distinct_id":"78","count":"17"}',
        ]
        rows = [Parked(tenant, "capture", f"e{n}", Reason.REJECTED, "", body) for n, body in enumerate(bodies)]
        async with database.worker() as tx:
            await EventStore().park(tx, rows, "0", Ids())
        async with database.tenant(tenant) as tx:
            first = (await dead._reader.parked(tx, tenant, None, False, None, 1))[0]
        async with database.worker() as tx:
            await dead._reader.mark_replayed(tx, [first.id])
        told = (await dead.export(tenant, "7", 10))["events.parked"]
        assert [row.get("id") is not None and row.get("distinct_id", row.get("body")) for row in told] == [
            "7", "ada", None, bodies[4].decode(),
        ]  # fmt: skip
        assert msgspec.json.encode(told)
        assert await dead.export(tenant, "7", 2) == {"events.parked": told[:2]}
        assert await dead.erase(tenant, ["7"]) == {"events.parked": 4}
        async with database.tenant(tenant) as tx:
            left = await dead._reader.parked(tx, tenant, None, True, None, 10)
        assert [row.event_id for row in left] == ["e1", "e5"]


async def test_an_id_that_no_column_takes_comes_back_under_its_stored_form(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        await house.consumer()
        shop, now = await house.shop(tenant), house.clock.now_ms()
        await house.events.accept([Impression(tenant, "e\0", now, now, shop.banners[0], page="p\0")])
        await house.drained()
        done = await house.events.dead.replay(Chosen(tenant), on_failure=OnFailure.STOP)
        assert (done.sent, done.failed, done.stopped) == (1, 1, True)
        assert await count(database, WAITING, tenant) == 1


async def test_what_only_clickhouse_lacks_is_not_sent_to_be_a_copy(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        now = house.clock.now_ms()
        body = encode(CapturedEvent(tenant, "e", now, now, "view", "ada", "own"))
        async with database.worker() as tx:
            await EventStore().park(tx, [Parked(tenant, "capture", "e", Reason.UNSHIPPED, "", body)], "0", Ids())
        done = await house.events.dead.replay(Chosen(tenant))
        assert (done.matched, done.sent, done.unshipped) == (1, 0, 1)
        assert await count(database, WAITING, tenant) == 1, "its bytes wait for a way of their own"


async def test_what_was_sent_again_long_ago_is_forgotten(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=1) as house:
        rows = [Parked(tenant, "capture", f"e{n}", Reason.REJECTED, "", b"x") for n in range(3)]
        async with database.worker() as tx:
            await EventStore().park(tx, rows, "0", Ids())
            await tx.execute(SENT, tenant, "e0", timedelta(days=REPLAYED_DAYS + 1))
            await tx.execute(SENT, tenant, "e1", timedelta(days=REPLAYED_DAYS - 1))
        await house.events.forget_replayed(house.clock.now(), most=1)
        left = await house.events.parked(tenant, reason=None, replayed=True, after=None, limit=10)
        assert [row.event_id for row in left] == ["e1", "e2"]
