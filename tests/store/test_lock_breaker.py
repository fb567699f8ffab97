"""The shared lock, the circuit breaker and the leader, against real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.breaker import Breaker, BreakerPolicy, CircuitOpen
from handbill.jobs.leader import LeaderChore
from handbill.jobs.lock import Locks
from handbill.kit.errors import Busy, Conflict
from tests.kit.waiting import eventually, soon

Unique = Callable[[str], str]


async def test_one_holds_the_lock_and_fences_grow(redis: Redis, unique: Unique) -> None:
    locks, name = Locks(redis), unique("lock")
    async with locks.hold(name) as first:
        with pytest.raises(Busy):
            await locks._wait(name, 30_000, 0.0)
    async with locks.hold(name) as second:
        assert second.fence > first.fence
    await redis.call("DEL", f"hb:lock:{{{name}}}:fence")  # a wiped Redis must not turn the numbers back
    async with locks.hold(name) as third:
        assert third.fence > second.fence


async def test_an_expired_holder_neither_renews_nor_releases_the_next_ones_lock(redis: Redis, unique: Unique) -> None:
    locks, name = Locks(redis), unique("lock")
    old = await locks.take(name, 30_000)
    assert old is not None
    await redis.call("DEL", f"hb:lock:{{{name}}}")  # it expired while its holder slept
    new = await locks.take(name, 30_000)
    assert new is not None
    assert not await locks.renew(old, 30_000)
    assert not await locks.release(old)
    with pytest.raises(Conflict):
        old.check()
    assert await locks.renew(new, 30_000)
    new.check()
    assert await locks.release(new)


async def test_the_holder_learns_that_its_lock_is_gone(redis: Redis, unique: Unique) -> None:
    locks, name = Locks(redis), unique("lock")
    async with locks.hold(name, ttl_ms=600) as held:
        await redis.call("SET", f"hb:lock:{{{name}}}", "somebody else")
        await soon(held.lost.wait())


async def test_waiting_for_a_lock_ends_when_it_is_free(redis: Redis, unique: Unique) -> None:
    locks, name = Locks(redis), unique("lock")
    entered = asyncio.Event()

    async def second() -> int:
        async with locks.hold(name, wait_s=60) as held:
            return held.fence

    async with locks.hold(name) as held:
        waiting = asyncio.create_task(second())
        entered.set()
    assert await soon(waiting) > held.fence


async def fail(breaker: Breaker, name: str) -> None:
    with pytest.raises(OSError, match="down"):
        async with breaker.guard(name):
            raise OSError("down")


async def test_five_failures_open_the_circuit_for_everybody(redis: Redis, unique: Unique) -> None:
    name = unique("circuit")
    here, there = Breaker(redis), Breaker(redis)
    for _ in range(5):
        await fail(here, name)
    with pytest.raises(CircuitOpen) as refused:
        await there.enter(name)
    assert 200 < (refused.value.retry_after or 0) <= 300


async def test_a_success_between_failures_closes_the_count(redis: Redis, unique: Unique) -> None:
    breaker, name = Breaker(redis), unique("circuit")
    for _ in range(3):
        for _ in range(4):
            await fail(breaker, name)
        async with breaker.guard(name):
            pass
    assert await breaker.enter(name) == "closed"


async def test_errors_that_do_not_count_say_nothing_about_the_other_side(redis: Redis, unique: Unique) -> None:
    breaker, name = Breaker(redis), unique("circuit")
    for _ in range(10):
        with pytest.raises(ValueError, match="ours"):
            async with breaker.guard(name, counts=lambda error: isinstance(error, OSError)):
                raise ValueError("ours")
    assert await breaker.enter(name) == "closed"


async def test_after_the_pause_one_caller_tries_and_decides_for_all(redis: Redis, unique: Unique) -> None:
    breaker, name = Breaker(redis, BreakerPolicy(failures=2, open_s=300, probe_s=300)), unique("circuit")
    key = f"hb:breaker:{{{name}}}"
    await fail(breaker, name)
    await fail(breaker, name)
    await redis.call("HSET", key, "open_until", "1")  # the pause is over
    assert await breaker.enter(name) == "probe"
    with pytest.raises(CircuitOpen):
        await breaker.enter(name)
    await breaker.failed(name)
    with pytest.raises(CircuitOpen):
        await breaker.enter(name)
    await redis.call("HSET", key, "open_until", "1")
    assert await breaker.enter(name) == "probe"
    await breaker.succeeded(name)
    assert await breaker.enter(name) == "closed"


async def test_without_redis_calls_go_through(unique: Unique) -> None:
    nobody = Redis("redis://127.0.0.1:1/0", timeout=1)
    await nobody.start()
    try:
        async with Breaker(nobody).guard(unique("circuit")):
            pass
    finally:
        await nobody.stop()


class Counted:
    """A chore that counts its starts and stops."""

    name = "counted"

    def __init__(self) -> None:
        self.running = 0
        self.starts = 0

    async def start(self) -> None:
        self.running += 1
        self.starts += 1

    async def stop(self) -> None:
        self.running -= 1


async def test_one_leads_and_the_next_takes_over(database: Database, unique: Unique) -> None:
    name = unique("election")
    first_work, second_work = Counted(), Counted()
    first = LeaderChore(database, [first_work], name=name, beat_s=0.05)
    second = LeaderChore(database, [second_work], name=name, beat_s=0.05)
    await first.start()
    await soon(first.leads.wait())
    await second.start()
    await soon(second.ready.wait())
    assert (first_work.running, second_work.running) == (1, 0)
    await first.stop()
    await soon(second.leads.wait())
    assert (first_work.running, second_work.running) == (0, 1)
    await second.stop()
    assert second_work.running == 0


async def test_a_leader_whose_connection_is_cut_stops_and_stands_again(database: Database, unique: Unique) -> None:
    from handbill.infra.sqlfiles import Sql
    from handbill.jobs.leader import lock_key

    name, work = unique("election"), Counted()
    leader = LeaderChore(database, [work], name=name, beat_s=0.05)
    await leader.start()
    await soon(leader.leads.wait())
    cut = Sql(
        "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'"
        " and classid = ($1::bigint >> 32)::int::oid and objid = ($1::bigint & 4294967295)::oid",
        "cut",
        "tests",
        "test",
    )
    key = lock_key(name)

    async with database.worker() as tx:
        assert len(await tx.fetch(cut, key)) == 1
    await eventually(lambda: work.starts == 2 and work.running == 1)
    await leader.stop()
    assert work.running == 0
