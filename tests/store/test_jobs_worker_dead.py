"""A dead worker is noticed long before its locks end; one that lives is not robbed, and one that wakes is fenced."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from handbill.infra.redis import Redis
from handbill.jobs import scripts
from handbill.jobs.model import Job, JobOptions
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.worker import JobContext, JobWorker, calls, renewal
from handbill.jobs.worker.calls import Calls
from handbill.jobs.worker.renewal import Holdings, Renewal
from tests.kit.waiting import eventually

LONG_MS = 600_000
"""Locks and sweeps that no test waits for."""


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("work"))


def door(queue: Queue, worker_id: str) -> Calls:
    return Calls(queue, worker_id, name=worker_id, slots=4, lock_ms=LONG_MS, limit=queue.defaults.limit)


async def beat(queue: Queue, worker_id: str, ms: int) -> None:
    script = queue.redis.script(scripts.own("beat"))
    await script(keys=(queue.keys.workers, queue.keys.alive(worker_id)), args=[worker_id, ms])


async def test_jobs_of_a_dead_worker_run_again_once(queue: Queue) -> None:
    for place in range(6):
        await queue.add("n", place, opts=JobOptions(attempts=3))
    dead = door(queue, "dead")
    await beat(queue, "dead", 200)  # and never again
    held = [(await dead.claim(dead.token())) for _ in range(3)]
    assert all(one.job is not None for one in held)
    ran: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        ran[job.data] += 1

    worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=2, lock_ms=LONG_MS, stalled_ms=LONG_MS)
    await worker.start()
    try:
        await eventually(lambda: len(ran) == 6, what="jobs of the dead worker")
    finally:
        await worker.stop()
    assert set(ran.values()) == {1}
    assert (await queue.counts()).active == 0
    job = held[0].job
    assert job is not None
    late = await dead.finish(job, held[0].token, None, value=b"1", failed=False)
    assert late.verdict < 0, "it wakes up and is fenced"
    assert not await queue.redis.call("HGETALL", queue.keys.workers), "nobody is looked after any more"


async def test_a_worker_that_lives_keeps_its_jobs(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CONFIRM_MS", 100)
    await queue.add("n", 1, opts=JobOptions(attempts=3))
    slow, other = door(queue, "slow"), door(queue, "other")
    await beat(queue, "slow", LONG_MS)
    token = slow.token()
    claimed = await slow.claim(token)
    assert claimed.job is not None
    for _ in range(20):
        assert await other.release_dead() == []
        await asyncio.sleep(0.01)  # sleeps: Redis' clock must go on
    await queue.redis.call("DEL", queue.keys.alive("slow"))  # Redis was away for a while
    assert await other.release_dead() == [], "silent at one look only"
    await beat(queue, "slow", LONG_MS)
    await asyncio.sleep(0.15)  # sleeps: longer than a silence may be
    assert await other.release_dead() == []
    assert (await slow.finish(claimed.job, token, None, value=b"1", failed=False)).verdict == 0


async def test_only_a_worker_with_jobs_says_that_it_lives(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "ALIVE_MS", 600)
    go_on, ran = asyncio.Event(), Counter[int]()

    async def handler(job: Job, _: JobContext) -> None:
        await go_on.wait()
        ran[job.data] += 1

    async def announced() -> int:
        return int(await queue.redis.call("HLEN", queue.keys.workers))

    worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=2, lock_ms=LONG_MS, stalled_ms=LONG_MS)
    await worker.start()
    try:
        for turn in range(2):
            assert await announced() == 0
            await queue.add("n", turn)
            await eventually(announced, what="it has a job")
            go_on.set()
            await eventually(lambda: _is(announced(), 0), what="it has none")
            go_on.clear()
    finally:
        await worker.stop()
    assert ran == {0: 1, 1: 1}


async def test_whose_word_is_refused_still_keeps_its_locks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await queue.redis.call("SET", queue.keys.workers, "no hash")
    renewed, enough = Counter[str](), asyncio.Event()
    loop = asyncio.get_running_loop()
    renew = Renewal._renew

    async def counted(self: Renewal, connection: Any, member: Holdings, held: Any) -> Any:
        found = await renew(self, connection, member, held)
        renewed["done"] += 1
        if renewed["done"] >= 3:
            loop.call_soon_threadsafe(enough.set)
        return found

    monkeypatch.setattr(Renewal, "_renew", counted)
    ran: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        await enough.wait()
        ran[job.data] += 1

    worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=1, lock_ms=3_000, stalled_ms=LONG_MS)
    await worker.start()
    try:
        await queue.add("n", 7)
        await eventually(lambda: ran[7] == 1, what="a job longer than its lock")
    finally:
        await worker.stop()
        await queue.redis.call("DEL", queue.keys.workers)
    assert ran == {7: 1}


async def _is(value: Awaitable[int], wanted: int) -> bool:
    return await value == wanted


async def test_a_job_without_a_worker_of_ours_is_left_to_its_lock(queue: Queue) -> None:
    """Node's workers say nothing, and those of an earlier release neither."""
    await queue.add("n", 1)
    silent = door(queue, "silent")
    assert (await silent.claim(silent.token())).job is not None
    for _ in range(3):
        assert await door(queue, "other").release_dead() == []
    assert (await queue.counts()).active == 1
