"""A worker's life: outcomes, retries, interruption, close, and what other programs see of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from handbill.infra.redis import Redis
from handbill.jobs.model import Backoff, Deduplication, Job, JobOptions, NewJob, RetryLater, Unrecoverable
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.worker import CpuTask, JobContext, cpu_bound
from handbill.jobs.worker.calls import Calls
from handbill.kit.errors import Busy
from tests.kit.waiting import eventually, soon
from tests.kit.working import AT_ONCE, reaches, working


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("work"))


async def test_every_job_runs_once_and_the_stream_tells_its_story(queue: Queue) -> None:
    ran: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> int:
        ran[job.data] += 1
        return int(job.data) * 2

    added = await queue.add_many([NewJob("n", i) for i in range(200)])
    async with working(queue, handler):
        await eventually(lambda: len(ran) == 200)
        job = await reaches(queue, added[-1].id, "completed")
    assert set(ran.values()) == {1}
    assert job.result == 398
    counts = await queue.counts()
    assert (counts.active, counts.waiting, counts.completed) == (0, 0, 100), "kept as the queue's defaults say"
    story = [
        fields[fields.index(b"event") + 1].decode()
        for _, fields in await queue.redis.call("XRANGE", queue.keys["events"], "-", "+")
        if b"jobId" in fields and fields[fields.index(b"jobId") + 1] == added[-1].id.encode()
    ]
    assert story == ["added", "waiting", "active", "completed"]


async def test_attempts_are_used_up_with_their_delays_and_tracebacks(queue: Queue) -> None:
    told: list[tuple[str, str, str]] = []
    attempts: list[int] = []

    async def handler(job: Job, ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"attempt {ctx.attempt}")

    def failed(job: Job, reason: str, trace: str) -> None:
        told.append((job.id, reason, trace))

    opts = JobOptions(attempts=3, backoff=Backoff("list", delays_ms=(0, 20)))
    added = await queue.add("n", 1, opts=opts)
    async with working(queue, handler, on_failed=failed):
        job = await reaches(queue, added.id, "failed")
        await eventually(lambda: bool(told))
    assert attempts == [1, 2, 3]
    assert (job.attempts_made, job.failed_reason, len(job.traceback)) == (3, "attempt 3", 3)
    assert [(one, why) for one, why, _ in told] == [(added.id, "attempt 3")]
    assert "ValueError: attempt 3" in told[0][2]


async def test_verdicts_of_a_handler(queue: Queue) -> None:
    seen: Counter[str] = Counter()

    async def handler(job: Job, ctx: JobContext) -> str:
        seen[job.name] += 1
        assert ctx.attempt == 1, "none of these uses up an attempt before it ends"
        if job.name == "never":
            raise Unrecoverable("it cannot work")
        if seen[job.name] == 1 and job.name == "later":
            raise RetryLater(5, "not yet")
        if seen[job.name] == 1 and job.name == "busy":
            raise Busy("the engine is away", retry_after=0.005)
        return "done"

    added = {name: await queue.add(name, 1) for name in ("never", "later", "busy")}
    async with working(queue, handler):
        never = await reaches(queue, added["never"].id, "failed")
        later = await reaches(queue, added["later"].id, "completed")
        busy = await reaches(queue, added["busy"].id, "completed")
    assert (never.failed_reason, never.attempts_made, seen["never"]) == ("it cannot work", 1, 1)
    assert (later.attempts_made, seen["later"]) == (1, 2)
    assert (busy.attempts_made, seen["busy"]) == (1, 2)


async def test_a_job_nobody_can_handle_fails_and_stops_nobody(queue: Queue) -> None:
    async def handler(job: Job, _: JobContext) -> None: ...

    odd, fine = await queue.add_many([NewJob("odd", 1, JobOptions(attempts=1)), NewJob("known", 2)])
    async with working(queue, {"known": handler}, concurrency=1):
        job = await reaches(queue, odd.id, "failed")
        await reaches(queue, fine.id, "completed")
    assert "no handler" in (job.failed_reason or "")


async def test_a_job_is_stopped_at_its_timeout(queue: Queue) -> None:
    async def handler(job: Job, ctx: JobContext) -> None:
        assert ctx.remaining() is not None
        await asyncio.Event().wait()

    added = await queue.add("n", 1, opts=JobOptions(timeout_ms=50, attempts=2, backoff=AT_ONCE))
    async with working(queue, handler):
        job = await reaches(queue, added.id, "failed")
    assert (job.failed_reason, job.attempts_made) == ("timed out after 50 ms", 2)


async def test_an_operator_can_abort_a_running_job_from_another_process(queue: Queue) -> None:
    started = asyncio.Event()

    async def handler(job: Job, ctx: JobContext) -> None:
        started.set()
        await asyncio.Event().wait()

    added = await queue.add("n", 1)
    async with working(queue, handler, lock_ms=600):
        await soon(started.wait())
        await queue.abort(added.id, "wrong file")
        job = await reaches(queue, added.id, "failed")
    assert job.failed_reason == "wrong file"
    assert (await queue.counts()).active == 0


async def test_dedup_until_finished_lets_the_next_one_in(queue: Queue) -> None:
    gate = asyncio.Event()

    async def handler(job: Job, _: JobContext) -> None:
        await gate.wait()

    opts = JobOptions(deduplication=Deduplication("day"))
    first = await queue.add("n", 1, opts=opts)
    async with working(queue, handler):
        await reaches(queue, first.id, "active")
        assert not (await queue.add("n", 2, opts=opts)).added, "still running"
        gate.set()
        await reaches(queue, first.id, "completed")
        assert (await queue.add("n", 3, opts=opts)).added


async def test_delays_end_by_redis_time_and_in_order(queue: Queue) -> None:
    starts: list[tuple[int, int, int]] = []

    async def handler(job: Job, _: JobContext) -> None:
        assert job.processed_on is not None
        starts.append((job.data, job.timestamp + job.data, job.processed_on))

    async with working(queue, handler, concurrency=1):
        await queue.add_many([NewJob("n", ms, JobOptions(delay_ms=ms)) for ms in (350, 50, 200)])
        await eventually(lambda: len(starts) == 3)
    assert [delay for delay, _, _ in starts] == [50, 200, 350]
    assert all(started >= due for _, due, started in starts), "never early"


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(queue: Queue) -> None:
    ran: list[int] = []

    async def handler(job: Job, _: JobContext) -> None:
        ran.append(job.data)

    await queue.pause()
    await queue.add("n", 1)
    async with working(queue, handler) as worker:
        probe = Calls(queue, "probe", name="p", slots=1, lock_ms=1_000, limit=queue.defaults.limit)
        assert (await probe.claim("t")).job is None
        assert worker.ready.is_set()
        assert ran == []
        await queue.resume()
        await eventually(lambda: ran == [1])


def square(task: CpuTask) -> list[Any]:
    return [task.data**2, task.attempt, os.getpid()]


def die(task: CpuTask) -> None:
    os._exit(3)


def spin(task: CpuTask) -> None:
    while True:
        time.sleep(0.01)  # sleeps: the handler under test never ends by itself


async def test_cpu_bound_handlers_run_in_processes_of_their_own(queue: Queue) -> None:
    handlers = {"square": cpu_bound(square), "die": cpu_bound(die), "spin": cpu_bound(spin)}
    fine, dead, slow = await queue.add_many(
        [
            NewJob("square", 12),
            NewJob("die", 1, JobOptions(attempts=1)),
            NewJob("spin", 1, JobOptions(attempts=1, timeout_ms=300)),
        ]
    )
    async with working(queue, handlers, concurrency=3):
        good = await reaches(queue, fine.id, "completed")
        bad = await reaches(queue, dead.id, "failed")
        cut = await reaches(queue, slow.id, "failed")
        more = await queue.add("square", 5)
        assert (await reaches(queue, more.id, "completed")).result[0] == 25
    assert good.result[:2] == [144, 1]
    assert good.result[2] != os.getpid()
    assert "process" in (bad.failed_reason or "")
    assert cut.failed_reason == "timed out after 300 ms"
