"""The outbox and its relay: recorded with the change, relayed in turn, followed until the job is over."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from handbill.infra.postgres import Database, PostgresError
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs import store
from handbill.jobs.model import JobOptions, NewJob
from handbill.jobs.outbox.producer import handled_once
from handbill.jobs.records import Entry
from handbill.kit.errors import Invalid
from tests.store.outbox_bench import Bench, Tokens, a_bench


@pytest.fixture
async def bench(database: Database, redis: Redis, unique: Callable[[str], str]) -> AsyncIterator[Bench]:
    async with a_bench(database, redis, unique("outbox")) as bench:
        yield bench


async def test_work_is_recorded_with_the_change_or_not_at_all(bench: Bench, tenant: int) -> None:
    async def change_and_fail() -> None:
        async with bench.database.tenant(tenant) as tx:
            await bench.outbox.put(tx, bench.name, "work", {"n": 0, "t": tenant}, tenant_id=tenant)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await change_and_fail()
    assert await bench.statuses() == {}
    async with bench.database.tenant(tenant) as tx:
        outbox_id = await bench.outbox.put(tx, bench.name, "work", {"n": 1, "t": tenant}, tenant_id=tenant)
    assert (await bench.relay().serve(bench.name)).relayed == 1
    job = await bench.queue.get(str(outbox_id))
    assert job is not None
    assert (job.data, job.tenant_id, job.outbox_id) == ({"n": 1, "t": tenant}, tenant, str(outbox_id))
    assert await bench.statuses() == {"relayed": 1}


async def test_bad_options_are_refused_in_the_producers_transaction(bench: Bench, tenant: int) -> None:
    async with bench.database.tenant(tenant) as tx:
        with pytest.raises(Invalid):
            await bench.outbox.put(tx, bench.name, "work", {}, tenant_id=tenant, opts=JobOptions(attempts=0))


async def test_a_tenant_sees_and_writes_only_its_own_rows(bench: Bench, tenant: int) -> None:
    async def write_a_system_row() -> None:
        async with bench.database.tenant(tenant) as tx:
            await bench.outbox.put(tx, bench.name, "work", {}, tenant_id=None)

    with pytest.raises(PostgresError):
        await write_a_system_row()
    await bench.put(None, 1)
    async with bench.database.tenant(tenant) as tx:
        assert await store.cancel_pending(tx, bench.name, None) == 0
    assert await bench.statuses() == {"pending": 1}


async def test_small_tenants_stand_beside_a_noisy_one(bench: Bench) -> None:
    """10,000 of one tenant, then 20 tenants with one each: all 20 go in the first cycle, and nothing lies idle."""
    await bench.put(1, 10_000)
    for tenant in range(2, 22):
        await bench.put(tenant, 1)
    pace = await bench.relay().serve(bench.name)
    assert pace.relayed == 500
    line = await bench.waiting()
    assert {tenant for tenant, _ in line[:21]} == set(range(1, 22)), "one of each before anybody's second"
    assert [n for tenant, n in line if tenant == 1] == list(range(480)), "first in, first out inside a tenant"


async def test_twelve_noisy_tenants_and_a_flood_of_the_systems_own(bench: Bench) -> None:
    for tenant in range(1, 13):
        await bench.put(tenant, 200)
    await bench.put(None, 2_000)
    await bench.put(99, 3)
    relay = bench.relay()
    await relay.serve(bench.name)
    first = Counter(tenant for tenant, _ in await bench.waiting())
    assert first[99] == 3
    assert max(first.values()) - min(count for tenant, count in first.items() if tenant != 99) <= 2
    assert sum(first.values()) == 500


async def test_a_lone_tenant_gets_everything(bench: Bench) -> None:
    await bench.put(7, 800)
    assert (await bench.relay().serve(bench.name)).relayed == 500


async def test_two_relays_share_one_busy_tenant(bench: Bench) -> None:
    """While one holds its rows, the other takes the next ones; together they take each row once."""
    await bench.put(7, 1_000)
    other = bench.relay(per_cycle=300)
    async with bench.database.worker() as tx:
        held = await store.take_pending(tx, bench.name, [7], [500], 1.0, 1)
        assert len(held) == 500
        assert (await other.serve(bench.name)).relayed == 300
        raise_later = [row.id for row in held]
        await store.requeue_rows(tx, raise_later)
    assert (await bench.statuses()) == {"relayed": 300, "pending": 700}


async def test_two_relays_at_once_relay_each_row_once(bench: Bench) -> None:
    await bench.put(7, 900)
    await bench.put(None, 300)
    paces = await asyncio.gather(*[bench.relay().serve(bench.name) for _ in range(2)])
    line = await bench.waiting()
    assert len(line) == len(set(line)) == sum(pace.relayed for pace in paces)
    assert min(pace.relayed for pace in paces) > 0


async def test_many_tenants_pending_take_turns(bench: Bench) -> None:
    """More tenants than fit into a cycle: after enough cycles each has had exactly one before anybody has two."""
    tenants = 300
    async with bench.database.worker() as tx:
        entries = [Entry(bench.name, "work", {"n": n, "t": t}, t) for n in range(2) for t in range(1, tenants + 1)]
        await bench.outbox.put_many(tx, entries)
    relay = bench.relay(per_cycle=60, lanes=60, slots=10_000)
    for _ in range(5):
        assert (await relay.serve(bench.name)).relayed == 60
    assert Counter(Counter(t for t, _ in await bench.waiting()).values()) == {1: tenants}


async def test_the_waiting_list_stays_short_and_only_those_with_tokens_enter(bench: Bench) -> None:
    await bench.put(1, 50)
    await bench.put(2, 50)
    relay = bench.relay(slots=5, allowances=Tokens({1: 3, 2: 100}))
    await relay.serve(bench.name)
    assert Counter(t for t, _ in await bench.waiting()) == {1: 3, 2: 7}, "twice the slots, and no more of 1 than it has"
    pace = await relay.serve(bench.name)
    assert (pace.relayed, pace.hungry) == (0, True)


async def test_a_tenant_enters_no_faster_than_its_tokens_come(bench: Bench) -> None:
    """By the real limits: 10 a second after a burst of 10, looked at one second ahead."""
    await bench.put(1, 400)
    await bench.put(2, 3)
    relay = bench.relay(allowances=bench.queues.limits)
    for _ in range(3):
        await relay.serve(bench.name)
    admitted = Counter(t for t, _ in await bench.waiting())
    assert admitted[2] == 3
    assert admitted[1] == 20, "what waits already counts against what may come"


async def test_work_for_later_waits_in_the_outbox(bench: Bench) -> None:
    await bench.put(1, 1, opts=JobOptions(delay_ms=3_600_000))
    await bench.put(1, 1)
    pace = await bench.relay().serve(bench.name)
    assert pace.relayed == 1
    assert await bench.statuses() == {"relayed": 1, "pending": 1}
    await bench.put(2, 1, opts=JobOptions(delay_ms=900))
    await bench.relay().serve(bench.name)
    assert (await bench.queue.counts()).delayed + (await bench.queue.counts()).waiting == 2


async def test_one_job_for_one_own_id_while_it_is_under_way(bench: Bench) -> None:
    await bench.put(1, 3, job_id="sync:1")
    await bench.relay().serve(bench.name)
    assert len(await bench.waiting()) == 1
    assert await bench.statuses() == {"relayed": 1}


async def test_a_finished_job_that_is_only_kept_does_not_stand_in_the_way(bench: Bench) -> None:
    await bench.queue.add("work", {"n": -1, "t": 1}, opts=JobOptions(job_id="sync:1"))
    key = bench.queue.keys.job("sync.1")
    await bench.redis.many(
        [
            ("HSET", key, "finishedOn", "1"),
            ("LREM", bench.queue.keys["wait"], 0, "sync.1"),
            ("ZADD", bench.queue.keys["completed"], 1, "sync.1"),
        ]
    )
    await bench.put(1, 1, job_id="sync:1")
    await bench.relay().serve(bench.name)
    assert await bench.waiting() == [(1, 0)]


async def test_a_row_that_cannot_become_a_job_is_parked_alone(bench: Bench) -> None:
    ids = await bench.put(1, 3)
    spoil = Sql("update jobs.outbox_events set opts = $2::jsonb where id = $1", "spoil", "tests", "test")
    async with bench.database.worker() as tx:
        await tx.execute(spoil, ids[1], '{"attempts": "many"}')
    await bench.relay().serve(bench.name)
    assert [n for _, n in await bench.waiting()] == [0, 2]
    [letter] = await bench.letters()
    assert (letter.job_id, letter.source) == (str(ids[1]), "relay")
    assert await bench.statuses() == {"relayed": 2}


async def test_before_a_flood_of_other_programs_ours_still_get_their_turn(bench: Bench) -> None:
    await bench.queue.add_many([NewJob("foreign", {"n": n, "t": None}) for n in range(300)])
    await bench.put(1, 5)
    await bench.put(2, 5)
    await bench.relay(slots=5).serve(bench.name)
    line = await bench.waiting()
    assert line[:4] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert len(line) == 310


async def test_an_effect_is_done_once(bench: Bench, tenant: int) -> None:
    outbox_id = uuid.uuid4()
    async with bench.database.tenant(tenant) as tx:
        assert await handled_once(tx, outbox_id) is True
    async with bench.database.tenant(tenant) as tx:
        assert await handled_once(tx, str(outbox_id)) is False
