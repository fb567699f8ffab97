"""Tokens and shares per tenant, by order and count and by Redis' own clock; nothing here measures the wall."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from handbill.infra.redis import Redis
from handbill.jobs.defaults import Limit
from handbill.jobs.model import Job, JobOptions, NewJob
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.worker import JobWorker
from handbill.jobs.worker.calls import Calls, Claimed
from handbill.kit.errors import Invalid
from tests.kit.waiting import eventually

SLOW = Limit(rate=0.001, burst=3)
FREE = Limit(rate=0, burst=1)


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("limits"))


def calls(queue: Queue, *, slots: int = 100, limit: Limit = SLOW, worker: str = "w") -> Calls:
    return Calls(queue, worker, name="test", slots=slots, lock_ms=60_000, limit=limit)


async def claim_all(door: Calls, most: int = 1_000) -> tuple[list[Job], Claimed]:
    found: list[Job] = []
    while True:
        claimed = await door.claim(door.token())
        if claimed.job is None or len(found) >= most:
            return found, claimed
        found.append(claimed.job)


async def test_a_burst_starts_and_the_rest_is_passed_over_unfetched(queue: Queue) -> None:
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(10)])
    await queue.add_many([NewJob("n", i, tenant_id=2) for i in range(2)])
    await queue.add_many([NewJob("n", i) for i in range(2)])
    jobs, last = await claim_all(calls(queue))
    assert [(job.tenant_id, job.data) for job in jobs] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (None, 0), (None, 1)]
    assert [job.data for job in await queue.list("waiting")] == [3, 4, 5, 6, 7, 8, 9], "in their order, untouched"
    assert all(job.attempts_started == 0 for job in await queue.list("waiting"))
    assert 0 < last.wait_ms <= 1_000_000, "the worker is told when the next token comes"


async def test_tokens_come_back_by_redis_time(queue: Queue) -> None:
    """GCRA against Redis' clock: in any span the starts are at most the burst plus the span times the rate."""
    rate, burst = 200.0, 4
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(24)])
    door = calls(queue, limit=Limit(rate=rate, burst=burst))
    starts: list[int] = []
    while len(starts) < 24:
        claimed = await door.claim(door.token())
        if claimed.job is not None:
            assert claimed.job.processed_on is not None
            starts.append(claimed.job.processed_on)
        else:
            await asyncio.sleep(claimed.wait_ms / 1000)
    for first in range(24):
        for last in range(first, 24):
            span_ms = starts[last] - starts[first] + 2  # both ends were cut to whole milliseconds
            assert last - first + 1 <= burst + span_ms * rate / 1000 + 1e-6


async def test_limits_of_a_tenant_win_over_the_queues(queue: Queue, redis: Redis) -> None:
    tenants = [int(queue.name[-6:], 16) * 10 + n for n in range(3)]  # rows for every queue must not meet other tests
    limits = queue.queues.limits
    await limits.set(tenants[0], Limit(rate=0.001, burst=1), queue=queue.name)
    await limits.set(tenants[0], Limit(rate=0.001, burst=9))
    await limits.set(tenants[1], Limit(rate=0.001, burst=5))
    for tenant in tenants:
        await queue.add_many([NewJob("n", i, tenant_id=tenant) for i in range(10)])
    jobs, _ = await claim_all(calls(queue))
    counted = Counter(job.tenant_id for job in jobs)
    assert [counted[tenant] for tenant in tenants] == [1, 5, 3]
    assert (await limits.get(tenants[0], queue.name)).burst == 1
    await limits.clear(tenants[0], queue=queue.name)
    assert (await limits.get(tenants[0], queue.name)).burst == 9
    with pytest.raises(Invalid):
        await limits.set(1, Limit(rate=-1, burst=0, weight=0))


async def test_peek_tells_what_could_start_and_takes_nothing(queue: Queue) -> None:
    limits = queue.queues.limits
    tenant = int(queue.name[-6:], 16)
    await limits.set(tenant, Limit(rate=10, burst=5), queue=queue.name)
    for _ in range(2):
        assert await limits.peek(queue.name, [tenant, None], 0) == [5, 1_000_000]
        assert await limits.peek(queue.name, [tenant], 1_000) == [15]
    await limits.set(tenant, Limit(rate=0.001, burst=5), queue=queue.name)
    await queue.add_many([NewJob("n", i, tenant_id=tenant) for i in range(4)])
    await claim_all(calls(queue))
    assert await limits.peek(queue.name, [tenant], 0) == [1]


async def test_half_the_slots_for_one_while_another_waits(queue: Queue) -> None:
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(20)])
    await queue.add_many([NewJob("n", i, tenant_id=2) for i in range(20)])
    door = calls(queue, slots=10, limit=FREE)
    jobs = [(await door.claim(door.token())).job for _ in range(10)]
    assert Counter(job.tenant_id for job in jobs if job) == {1: 5, 2: 5}


async def test_a_lone_tenant_gets_every_slot(queue: Queue) -> None:
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(20)])
    jobs, _ = await claim_all(calls(queue, slots=10, limit=FREE), most=10)
    assert Counter(job.tenant_id for job in jobs) == {1: 10}


async def test_a_weight_gives_a_larger_share(queue: Queue) -> None:
    tenant = int(queue.name[-6:], 16)
    await queue.queues.limits.set(tenant, Limit(rate=0, burst=1, weight=4), queue=queue.name)
    await queue.add_many([NewJob("n", i, tenant_id=tenant) for i in range(20)])
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(20)])
    door = calls(queue, slots=10, limit=FREE)
    jobs = [(await door.claim(door.token())).job for _ in range(10)]
    assert Counter(job.tenant_id for job in jobs if job) == {tenant: 8, 1: 2}


async def test_the_lane_of_jobs_without_tenant_has_a_share_too(queue: Queue) -> None:
    await queue.add_many([NewJob("n", i) for i in range(100)])
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(20)])
    door = calls(queue, slots=10, limit=FREE)
    jobs = [(await door.claim(door.token())).job for _ in range(10)]
    assert Counter(job.tenant_id for job in jobs if job) == {None: 5, 1: 5}


async def test_shares_hold_when_many_lanes_end_in_one_breath(queue: Queue) -> None:
    """Ten jobs end in one pipeline: each claim must see what the ones before it in the same write have taken."""
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(30)])
    await queue.add_many([NewJob("n", i, tenant_id=2) for i in range(30)])
    door = calls(queue, slots=10, limit=FREE)
    lanes = [await door.claim(door.token()) for _ in range(10)]
    for _ in range(3):
        done = await asyncio.gather(
            *(door.finish(lane.job, lane.token, door.token(), value=b"1", failed=False) for lane in lanes if lane.job)
        )
        lanes = [one.next for one in done]
        assert Counter(lane.job.tenant_id for lane in lanes if lane.job) == {1: 5, 2: 5}


async def test_a_queue_that_may_run_one_job_goes_on_when_it_ends(queue: Queue) -> None:
    """BullMQ's own limit of running jobs in a whole queue: the job that ends makes room for the next."""
    await queue.redis.call("HSET", queue.keys["meta"], "concurrency", 1)
    await queue.add_many([NewJob("n", i, tenant_id=i) for i in range(3)])
    door = calls(queue, slots=10)
    lane = await door.claim(door.token())
    assert (await door.claim(door.token())).job is None
    for _ in range(2):
        assert lane.job is not None
        lane = (await door.finish(lane.job, lane.token, door.token(), value=b"1", failed=False)).next
    assert lane.job is not None
    assert lane.job.data == 2


async def test_prioritised_jobs_need_tokens_too_and_keep_their_order(queue: Queue) -> None:
    await queue.add_many([NewJob("n", p, JobOptions(priority=p), tenant_id=1) for p in (5, 1, 3, 2, 4)])
    await queue.add_many([NewJob("n", 9, JobOptions(priority=9), tenant_id=2)])
    jobs, _ = await claim_all(calls(queue))
    assert [(job.tenant_id, job.data) for job in jobs] == [(1, 1), (1, 2), (1, 3), (2, 9)]


async def test_a_due_delayed_job_needs_its_token(queue: Queue) -> None:
    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(3)])
    door = calls(queue)
    assert len((await claim_all(door))[0]) == 3
    added = await queue.add("n", 4, opts=JobOptions(delay_ms=1), tenant_id=1)
    await eventually(lambda: _past(queue, added.id))
    assert (await claim_all(door))[0] == []
    assert await queue.state(added.id) == "waiting"


async def _past(queue: Queue, job_id: str) -> bool:
    job = await queue.get(job_id)
    assert job is not None
    return await queue.redis.time_ms() > job.timestamp + 2


async def test_a_job_whose_hash_is_gone_stops_nobody(queue: Queue) -> None:
    added = await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(3)])
    await queue.redis.call("DEL", queue.keys.job(added[0].id))
    jobs, _ = await claim_all(calls(queue))
    assert [job.data for job in jobs] == [1, 2]
    assert (await queue.counts()).active == 2


async def test_a_worker_keeps_to_the_limit_and_serves_the_small_tenant(queue: Queue) -> None:
    """A flood of one tenant in front, with its tokens spent: the small tenant's jobs run all the same."""
    ran: list[tuple[int | None, Any]] = []

    async def handler(job: Job, _: object) -> None:
        ran.append((job.tenant_id, job.data))

    await queue.add_many([NewJob("n", i, tenant_id=1) for i in range(100)])
    worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=4, limit=SLOW, lock_ms=60_000)
    await worker.start()
    try:
        await eventually(lambda: len(ran) == 3)
        await queue.queues.limits.set(2, FREE, queue=queue.name)
        await queue.add_many([NewJob("n", i, tenant_id=2) for i in range(5)])
        await eventually(lambda: len(ran) >= 8)
    finally:
        await worker.stop()
    assert sorted(ran) == [(1, 0), (1, 1), (1, 2), *((2, i) for i in range(5))]
    assert (await queue.counts()).active == 0
    assert (await queue.counts()).waiting == 97
