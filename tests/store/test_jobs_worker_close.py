"""The worker at its edges: close, hand back, stall, two workers, a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from handbill.infra.redis import Redis
from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.defaults import Limit
from handbill.jobs.model import Job, JobOptions, NewJob
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.worker import JobContext, JobWorker
from handbill.jobs.worker.calls import Calls
from tests.kit.cluster import one_node_cluster
from tests.kit.waiting import eventually
from tests.kit.working import AT_ONCE, reaches, working


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("work"))


@pytest.mark.parametrize("concurrency", [1, 10, 50])
async def test_close_leaves_nothing_active(queue: Queue, concurrency: int) -> None:
    """Stop in the midst of a flood, several times over: every job is waiting or done, none is lost or run twice."""
    total = 600
    ran: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        await asyncio.sleep(0)
        ran[job.data] += 1

    await queue.add_many([NewJob("n", i) for i in range(total)])
    for trial in range(1, 6):
        worker = JobWorker(queue.queues, queue.name, {"*": handler}, concurrency=concurrency)
        await worker.start()
        await eventually(lambda goal=trial * total // 8: sum(ran.values()) >= goal)
        await worker.stop()
        counts = await queue.counts()
        assert counts.active == 0
        assert sum(ran.values()) == total - counts.waiting
    assert set(ran.values()) <= {1}
    assert not await queue.redis.call("SMEMBERS", queue.keys["stalled"])


async def test_close_hands_back_what_does_not_end_in_time(queue: Queue) -> None:
    started: Counter[int] = Counter()
    patient = False

    async def handler(job: Job, _: JobContext) -> None:
        started[job.data] += 1
        if not patient:
            await asyncio.Event().wait()

    added = await queue.add_many([NewJob("n", i, JobOptions(priority=i % 2)) for i in range(4)])
    async with working(queue, handler, grace_s=0.05):
        await eventually(lambda: len(started) == 4)
    counts = await queue.counts()
    assert (counts.active, counts.waiting + counts.prioritized) == (0, 4)
    for one in added:
        job = await queue.get(one.id)
        assert job is not None
        assert job.attempts_made == 0, "an interruption of ours uses up no attempt"
    patient = True
    async with working(queue, handler):
        for one in added:
            await reaches(queue, one.id, "completed")


async def test_two_workers_never_run_one_job_at_once(queue: Queue) -> None:
    inside: Counter[int] = Counter()
    worst = 0
    ran: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        nonlocal worst
        inside[job.data] += 1
        worst = max(worst, inside[job.data])
        await asyncio.sleep(0.001)  # sleeps: the work of the handler under test
        inside[job.data] -= 1
        ran[job.data] += 1

    await queue.add_many([NewJob("n", i) for i in range(300)])
    async with working(queue, handler, name="a"), working(queue, handler, name="b"), working(queue, handler, name="c"):
        await eventually(lambda: sum(ran.values()) >= 300)
        names = [name.decode() for name in await _client_names(queue)]
    assert worst == 1
    assert set(ran.values()) == {1}
    assert {f"{queue.keys.client_name()}:w:{one}" for one in "abc"} <= set(names)


async def _client_names(queue: Queue) -> list[bytes]:
    clients = await queue.redis.call("CLIENT", "LIST")
    return [word[5:] for line in clients.splitlines() for word in line.split() if word.startswith(b"name=")]


async def test_a_stall_uses_up_one_of_the_jobs_own_attempts(queue: Queue) -> None:
    """A worker that claimed and vanished, as often as the job has attempts: the last stall fails it, none before."""
    told: list[str] = []

    async def handler(job: Job, _: JobContext) -> None:
        raise AssertionError("it has no attempt left")

    added = await queue.add("n", 1, opts=JobOptions(attempts=3))
    ghost = Calls(queue, "ghost", name="ghost", slots=1, lock_ms=1, limit=queue.defaults.limit)
    for stall in (1, 2, 3):
        claimed = await ghost.claim(ghost.token())
        assert claimed.job is not None
        assert claimed.job.deferred_failure is None
        assert claimed.job.attempts_made == stall - 1

        async def taken_back() -> bool:
            await queue.redis.call("DEL", queue.keys["stalled-check"])
            return bool(await ghost.sweep(60_000))

        await eventually(taken_back)
    async with working(queue, handler, on_failed=lambda job, reason, trace: told.append(reason)):
        job = await reaches(queue, added.id, "failed")
        await eventually(lambda: bool(told))
    assert (job.stalls, job.attempts_made, told) == (3, 3, [job.failed_reason])
    assert "stalled" in (job.failed_reason or "")


async def test_a_handler_that_will_not_be_interrupted_does_not_spoil_its_lane(queue: Queue) -> None:
    """It swallows the interruption and returns: its result counts, and the lane goes on."""

    async def handler(job: Job, _: JobContext) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "all the same"

    added = await queue.add_many([NewJob("n", i, JobOptions(timeout_ms=30)) for i in range(3)])
    async with working(queue, handler, concurrency=1):
        for one in added:
            assert (await reaches(queue, one.id, "completed")).result == "all the same"


async def test_a_result_that_is_no_json_fails_with_that_reason(queue: Queue) -> None:
    async def handler(job: Job, _: JobContext) -> object:
        return object()

    added = await queue.add("n", 1, opts=JobOptions(attempts=1))
    async with working(queue, handler):
        job = await reaches(queue, added.id, "failed")
    assert "object" in (job.failed_reason or "")


async def test_everything_works_on_a_cluster_with_a_tagged_prefix() -> None:
    tries: Counter[int] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        tries[job.data] += 1
        if tries[job.data] == 1:
            raise ValueError("once more")

    async with one_node_cluster() as url:
        redis = Redis(url, timeout=30, cluster_allowed=True)
        await redis.start()
        queues = Queues(redis, prefix="{bull}")
        queue = queues.queue("cluster")
        opts = [JobOptions(backoff=AT_ONCE), JobOptions(priority=2, backoff=AT_ONCE), JobOptions(delay_ms=5)]
        added = await queue.add_many([NewJob("n", i, opts[i % 3], tenant_id=i % 2 or None) for i in range(9)])
        await queues.limits.set(1, Limit(rate=0, burst=1))
        await queues.limits.set(1, Limit(rate=1_000, burst=100), queue="cluster")
        await Schedulers(queues).ensure([Schedule(id="s", queue="cluster", name="n", every_ms=60_000, data=100)])
        async with working(queue, handler):
            for one in added[:2]:
                await reaches(queue, one.id, "completed")
            await eventually(lambda: set(tries) >= set(range(9)))
        await queue.pause()
        assert await queues.names() == ["cluster"]
        assert await queues.limits.peek("cluster", [1, None], 0)
        await queue.obliterate(force=True)
        await redis.stop()


async def test_a_job_that_comes_round_again_ends_its_lost_run(queue: Queue) -> None:
    """Its lock was taken from a running lane and the job claimed anew by the same worker: the first run is stopped."""
    inside, worst, ends = 0, 0, Counter[str]()

    async def handler(job: Job, ctx: JobContext) -> str:
        nonlocal inside, worst
        inside += 1
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
            worst = max(worst, inside)
            return "second"
        except asyncio.CancelledError:
            ends["cut"] += 1
            raise
        finally:
            inside -= 1

    added = await queue.add("n", 1, opts=JobOptions(attempts=3))
    async with working(queue, handler, concurrency=2, lock_ms=60_000):
        await reaches(queue, added.id, "active")
        await eventually(lambda: inside == 1)

        async def swept() -> bool:
            ghost = Calls(queue, "ghost", name="g", slots=1, lock_ms=1, limit=queue.defaults.limit)
            await queue.redis.call("DEL", f"{queue.keys.job(added.id)}:lock", queue.keys["stalled-check"])
            return bool(await ghost.sweep(1))

        await eventually(swept)
        job = await reaches(queue, added.id, "completed")
    assert (job.result, ends["cut"], job.attempts_made) == ("second", 1, 2)
