"""Redis is killed, restarted, or its answers are lost, in the midst of work: nothing is lost and nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from handbill.infra.redis import Redis, RedisAway
from handbill.jobs.model import Backoff, Job, JobOptions, NewJob
from handbill.jobs.queue import Queues
from handbill.jobs.worker import JobContext, JobWorker
from handbill.jobs.worker.calls import Calls
from handbill.kit import task_health
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.processes import free_port
from tests.kit.waiting import eventually


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Redis]:
    redis = Redis(url, timeout=30)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.stop()


async def test_cut_connections_lose_nothing(redis: Redis, engines: Engines, unique: Callable[[str], str]) -> None:
    """CLIENT KILL of every connection of the worker, again and again under load."""
    total, kills = 3_000, 12
    ran: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        ran[job.data] += 1

    async with opened(engines.redis_url) as own:
        queue = Queues(own).queue(unique("cut"))
        await queue.add_many([NewJob("n", i, JobOptions(attempts=1)) for i in range(total)])
        worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=10)
        await worker.start()
        for kill in range(1, kills + 1):
            await eventually(lambda goal=kill * total // (kills + 2): sum(ran.values()) >= goal)
            await redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: len(ran) == total)

        async def empty() -> bool:
            counts = await queue.counts()
            return counts.active == 0 and counts.pending == 0

        await eventually(empty)
        await worker.stop()
        assert (await queue.counts()).failed == 0
    assert set(ran.values()) == {1}, "a lost answer is asked for again, not run again"


async def test_a_cut_connection_leaves_no_task_stuck(
    redis: Redis, engines: Engines, unique: Callable[[str], str]
) -> None:
    """The wait for jobs has no end: it is well again with the first answer, also on a queue without jobs."""
    async with opened(engines.redis_url) as own:
        queue = Queues(own).queue(unique("idle"))
        worker = JobWorker(queue.queues, queue.name, {}, concurrency=1)
        await worker.start()
        (health,) = [one for one in task_health.running() if one.name == f"{worker.name}:listen"]
        # As long ago as it takes to be stuck: what is over since then must not count.
        health.failed(RedisAway("cut"))
        health._waiting_since = health._clock.monotonic() - health.limit_s
        assert health.is_stuck()
        await redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: not health.is_stuck(), what="the listener is well again")
        await worker.stop()


async def test_a_restart_of_redis_under_load_loses_nothing(own_redis: Any, short_tmp: Path) -> None:
    """Killed with -9 and started again on the same data, twice. Locks outlive it; running jobs end in peace."""
    total, port = 2_000, free_port()
    ran: Counter[int] = Counter()
    home = short_tmp / "restarted"
    engine = await own_redis(at=home, port=port)

    async def handler(job: Job, _: JobContext) -> None:
        await asyncio.sleep(0)
        ran[job.data] += 1

    async with opened(engine.url) as redis:
        queue = Queues(redis).queue("restart")
        await queue.add_many([NewJob("n", i) for i in range(total)])
        worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=10)
        await worker.start()
        for part in (1, 2):
            await eventually(lambda goal=part * total // 4: sum(ran.values()) >= goal)
            os.kill(engine.pid, signal.SIGKILL)
            await engine.wait()
            engine = await own_redis(at=home, port=port)
        await eventually(lambda: len(ran) == total)

        async def empty() -> bool:
            with contextlib.suppress(RedisAway):
                counts = await queue.counts()
                return counts.active == 0 and counts.pending == 0
            return False

        await eventually(empty)
        await worker.stop()
        assert (await queue.counts()).failed == 0
    assert set(ran.values()) == {1}


async def test_a_lock_that_ran_out_while_redis_was_away_is_taken_again(
    redis: Redis, unique: Callable[[str], str]
) -> None:
    queue = Queues(redis).queue(unique("late"))
    added = await queue.add("n", 1)
    door = Calls(queue, "w", name="w", slots=1, lock_ms=60_000, limit=queue.defaults.limit)
    claimed = await door.claim("t1")
    assert claimed.job is not None
    await redis.call("DEL", f"{queue.keys.job(added.id)}:lock")
    settled = await door.finish(claimed.job, "t1", None, value=b"1", failed=False)
    assert settled.verdict == 0
    assert await queue.state(added.id) == "completed"


async def test_a_job_that_another_worker_has_is_not_written_over(redis: Redis, unique: Callable[[str], str]) -> None:
    queue = Queues(redis).queue(unique("stolen"))
    added = await queue.add("n", 1)
    door = Calls(queue, "w", name="w", slots=1, lock_ms=60_000, limit=queue.defaults.limit)
    claimed = await door.claim("t1")
    assert claimed.job is not None
    await redis.call("SET", f"{queue.keys.job(added.id)}:lock", "another")
    settled = await door.finish(claimed.job, "t1", None, value=b"1", failed=False)
    assert settled.verdict == -6
    assert await queue.state(added.id) == "active"


async def test_lost_answers_are_recovered(redis: Redis, unique: Callable[[str], str]) -> None:
    """Every call made twice, the second time as after a lost answer: the same jobs, each settled once."""
    queue = Queues(redis).queue(unique("again"))
    await queue.add_many([NewJob("n", i, tenant_id=i % 2 or None) for i in range(6)])
    door = Calls(queue, "w", name="w", slots=1, lock_ms=60_000, limit=queue.defaults.limit)
    token = door.token()
    first = await door.claim(token)
    again = await door.claim(token, again=True)
    assert first.job is not None
    assert again.job is not None
    assert again.job.wire_id == first.job.wire_id
    job, seen = first.job, [first.job.data]
    while True:
        onward = door.token()
        one = await door.finish(job, token, onward, value=b"1", failed=False)
        two = await door.finish(job, token, onward, value=b"1", failed=False, again=True)
        assert (one.verdict, two.verdict) == (0, 1)
        if one.next.job is None:
            assert two.next.job is None
            break
        assert two.next.job is not None
        assert two.next.job.wire_id == one.next.job.wire_id
        job, token = one.next.job, one.next.token
        seen.append(job.data)
    assert sorted(seen) == list(range(6))
    counts = await queue.counts()
    assert (counts.active, counts.completed) == (0, 6)
    assert not await redis.call("EXISTS", queue.keys.held("w"))


async def test_death_at_every_point_of_a_jobs_way(redis: Redis, engines: Engines, unique: Callable[[str], str]) -> None:
    """Add twice, claim, retry and claim, finish and claim, hand back: death at each point in turn."""
    name = ""
    ends: Counter[str] = Counter()

    async def attempt() -> None:
        nonlocal name
        name = unique("die")
        async with opened(engines.redis_url) as own:
            queue = Queues(own).queue(name)
            opts = JobOptions(job_id="the:one", attempts=9, backoff=Backoff("fixed", delay_ms=0))
            await queue.add("n", 1, opts=opts, tenant_id=1)
            await queue.add("n", 2, opts=JobOptions(job_id="other:one", attempts=9))
            door = Calls(queue, "w", name="w", slots=2, lock_ms=40, limit=queue.defaults.limit)
            token = door.token()
            claimed = await door.claim(token)
            assert claimed.job is not None
            settled = await door.delay(
                claimed.job, token, door.token(), delay_ms=0, reason="once", traces=["t"], free=False
            )
            assert settled.next.job is not None
            settled = await door.finish(settled.next.job, settled.next.token, door.token(), value=b"1", failed=False)
            assert settled.next.job is not None
            await door.hand_back(settled.next.job, settled.next.token)

    async def check(number: int, point: str) -> None:
        ran: Counter[str] = Counter()

        async def handler(job: Job, _: JobContext) -> None:
            ran[job.id] += 1

        queue = Queues(redis).queue(name)
        done = (await queue.counts()).completed
        for job_id in ("the:one", "other:one"):  # the producer comes back and says it again
            await queue.add("n", 0, opts=JobOptions(job_id=job_id, attempts=9), tenant_id=1)
        worker = JobWorker(queue.queues, name, {"n": handler}, concurrency=2, lock_ms=60_000, stalled_ms=25)
        await worker.start()

        async def all_done() -> bool:
            counts = await queue.counts()
            return counts.completed == 2 and counts.active == 0 and counts.pending == 0

        await eventually(all_done, what=f"recovery after point {number} ({point})")
        await worker.stop()
        assert sum(ran.values()) == 2 - done, f"point {number}: {point}"
        ends["recovered"] += 1

    points = await enumerate_points(attempt, check, what="a job's way", limit=60)
    assert points >= 12, "two sides of each of six calls"
    assert ends["recovered"] == points + 1
