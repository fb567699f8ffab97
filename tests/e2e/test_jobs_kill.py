"""Real worker processes under SIGKILL, and one whose handler blocks its loop."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from handbill.infra.redis import Redis
from handbill.jobs.model import JobOptions, NewJob
from handbill.jobs.queue import Queue, Queues
from tests.kit.engines import Engines
from tests.kit.processes import Process, program
from tests.kit.waiting import eventually

CONCURRENCY = 8


def worker(
    engines: Engines, queue: Queue, *, lock_ms: int, stalled_ms: int, concurrency: int = CONCURRENCY
) -> AbstractAsyncContextManager[Process]:
    words = [engines.redis_url, queue.name, str(concurrency), str(lock_ms), str(stalled_ms)]
    return program(sys.executable, "-m", "tests.e2e.jobs_worker_process", *words)


async def executions(redis: Redis, queue: Queue) -> list[int]:
    flat = await redis.call("HGETALL", f"{queue.name}:ran")
    return [int(count) for count in flat[1::2]]


async def test_killed_workers_lose_nothing(redis: Redis, engines: Engines, unique: Callable[[str], str]) -> None:
    """Random SIGKILLs: completed = added, executions <= added + kills x concurrency."""
    draws = random.Random(20_260_619)
    queue = Queues(redis).queue(unique("kill"))
    total, kills = 800, 5
    await queue.add_many([NewJob("count", draws.randint(0, 15), JobOptions(attempts=kills + 2)) for _ in range(total)])
    how = {"lock_ms": 6_000, "stalled_ms": 300}
    async with AsyncExitStack() as stack:
        alive = [await stack.enter_async_context(worker(engines, queue, **how)) for _ in range(2)]
        for kill in range(1, kills + 1):
            victim = alive.pop(draws.randrange(2))
            await victim.says("ready")

            async def enough(goal: int = kill * total // (kills + 2)) -> bool:
                return sum(await executions(redis, queue)) >= goal

            await eventually(enough)
            victim.kill()
            await victim.exit()
            alive.append(await stack.enter_async_context(worker(engines, queue, **how)))

        async def finished() -> bool:
            counts = await queue.counts()
            return counts.active == 0 and counts.pending == 0

        await eventually(finished, timeout=90)
        for process in alive:
            await process.says("ready")
            assert await process.stop() == 0
    assert (await queue.metrics("completed")).total == total
    counts = await queue.counts()
    assert (counts.failed, counts.active, counts.pending) == (0, 0, 0)
    ran = await executions(redis, queue)
    assert len(ran) == total
    assert total <= sum(ran) <= total + kills * CONCURRENCY


async def test_a_handler_that_blocks_its_loop_runs_once(
    redis: Redis, engines: Engines, unique: Callable[[str], str]
) -> None:
    """Three times the lock without a turn of the loop, and a second worker that sweeps all the while."""
    queue = Queues(redis).queue(unique("block"))
    async with (
        worker(engines, queue, lock_ms=5_000, stalled_ms=200, concurrency=1) as blocked,
        worker(engines, queue, lock_ms=5_000, stalled_ms=200, concurrency=1) as other,
    ):
        await blocked.says("ready")
        await other.says("ready")
        added = await queue.add("block", 15_000, opts=JobOptions(attempts=3))

        async def completed() -> bool:
            return await queue.state(added.id) == "completed"

        await eventually(completed)
        assert await blocked.stop() == 0
        assert await other.stop() == 0
    job = await queue.get(added.id)
    assert job is not None
    assert (job.attempts_made, job.stalls) == (1, 0)
    assert await executions(redis, queue) == [1]
