"""A queue as producers and operators use it, on a real Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from handbill.infra.redis import Redis
from handbill.jobs.model import Deduplication, JobOptions, NewJob
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.worker import JobWorker
from handbill.kit.errors import Conflict, Invalid, NotFound
from tests.kit.waiting import eventually


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("queue"))


async def test_the_answer_says_added_or_already_there(queue: Queue) -> None:
    opts = JobOptions(job_id="sync:seller:7.5")
    first = await queue.add("sync", {"a": 1}, opts=opts)
    second = await queue.add("sync", {"a": 2}, opts=opts)
    assert (first.id, first.added) == ("sync:seller:7.5", True)
    assert (second.id, second.added) == ("sync:seller:7.5", False)
    job = await queue.get("sync:seller:7.5")
    assert job is not None
    assert job.data == {"a": 1}
    assert job.wire_id == "sync.seller.7%2E5"
    assert await queue.redis.call("EXISTS", queue.keys.job("sync.seller.7%2E5")) == 1


async def test_deduplication_names_the_job_that_is_there(queue: Queue) -> None:
    opts = JobOptions(deduplication=Deduplication("once"))
    first = await queue.add("n", 1, opts=opts)
    second = await queue.add("n", 2, opts=opts)
    timed = JobOptions(deduplication=Deduplication("timed", ttl_ms=600_000), job_id="own")
    third, fourth = await queue.add_many([NewJob("n", 3, timed), NewJob("n", 4, timed)])
    assert second == type(second)(first.id, False)
    assert third.added
    assert not fourth.added
    assert (await queue.counts()).waiting == 2


async def test_a_batch_keeps_its_order_and_each_job_goes_where_it_belongs(queue: Queue) -> None:
    jobs = [NewJob("n", i) for i in range(2_500)]
    jobs += [NewJob("n", "later", JobOptions(delay_ms=3_600_000)), NewJob("n", "first", JobOptions(priority=2))]
    jobs += [NewJob("n", "front", JobOptions(lifo=True))]
    added = await queue.add_many(jobs)
    assert all(one.added for one in added)
    counts = await queue.counts()
    assert (counts.waiting, counts.delayed, counts.prioritized) == (2_501, 1, 1)
    assert [job.data for job in await queue.list("waiting", 0, 2)] == ["front", 0, 1]
    assert [job.data for job in await queue.list("delayed")] == ["later"]
    assert await queue.state(added[2_500].id) == "delayed"
    assert await queue.state(added[2_501].id) == "prioritized"
    assert await queue.state("nowhere") == "unknown"


async def test_times_are_those_of_redis(queue: Queue) -> None:
    before = await queue.redis.time_ms()
    added = await queue.add("n", 1, opts=JobOptions(delay_ms=10_000))
    after = await queue.redis.time_ms()
    job = await queue.get(added.id)
    assert job is not None
    assert before <= job.timestamp <= after
    score = float(await queue.redis.call("ZSCORE", queue.keys["delayed"], added.id))
    assert int(score / 0x1000) == job.timestamp + 10_000


async def test_pause_resume_drain_promote_remove(queue: Queue) -> None:
    later = await queue.add("n", 1, opts=JobOptions(delay_ms=3_600_000))
    now = await queue.add("n", 2)
    await queue.pause()
    assert (await queue.counts()).paused
    await queue.resume()
    assert not (await queue.counts()).paused
    await queue.promote(later.id)
    assert await queue.state(later.id) == "waiting"
    await queue.remove(now.id)
    assert await queue.get(now.id) is None
    with pytest.raises(NotFound):
        await queue.remove(now.id)
    with pytest.raises(Conflict):
        await queue.promote(later.id)
    await queue.add("n", 3, opts=JobOptions(delay_ms=3_600_000))
    await queue.drain()
    assert (await queue.counts()).pending == 1
    await queue.drain(delayed=True)
    assert (await queue.counts()).pending == 0


async def test_logs_progress_retry_and_metrics(queue: Queue) -> None:
    async def handler(job, ctx):  # type: ignore[no-untyped-def]
        await ctx.progress({"rows": 7})
        await ctx.log("half way")
        if job.attempts_started == 1:
            raise ValueError("no luck")
        return {"ok": True}

    added = await queue.add("n", 1, opts=JobOptions(attempts=1, job_id="the:job"))
    worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=1)
    await worker.start()
    try:
        await eventually(lambda: _in(queue, added.id, "failed"))
        job = await queue.get(added.id)
        assert job is not None
        assert (job.failed_reason, job.progress, job.attempts_made) == ("no luck", {"rows": 7}, 1)
        assert "ValueError: no luck" in job.traceback[0]
        assert await queue.logs(added.id) == ["half way"]
        await queue.redis.call("HINCRBY", queue.keys.job(job.wire_id), "ats", 5)
        await queue.retry(added.id, fresh=False)
        await eventually(lambda: _in(queue, added.id, "completed"))
        again = await queue.get(added.id)
        assert again is not None
        assert again.result == {"ok": True}
        assert (await queue.metrics("completed")).total == 1
        assert (await queue.metrics("failed")).total == 1
        with pytest.raises(NotFound):
            await queue.retry("nothing")
    finally:
        await worker.stop()


async def _in(queue: Queue, job_id: str, state: str) -> bool:
    return await queue.state(job_id) == state


async def test_obliterate_asks_for_a_pause_and_leaves_nothing(queue: Queue) -> None:
    await queue.add_many([NewJob("n", i, tenant_id=3) for i in range(10)])
    with pytest.raises(Conflict, match="not paused"):
        await queue.obliterate()
    await queue.pause()
    await queue.obliterate()
    assert not [key async for key in _keys(queue)]


async def _keys(queue: Queue):  # type: ignore[no-untyped-def]
    cursor = b"0"
    while True:
        cursor, keys = await queue.redis.call("SCAN", cursor, "MATCH", f"{queue.keys.base}*", "COUNT", 1000)
        for key in keys:
            yield key
        if cursor == b"0":
            return


async def test_what_cannot_be_a_queue_or_a_job_is_refused(queue: Queue) -> None:
    with pytest.raises(Invalid):
        queue.queues.queue("a:b")
    with pytest.raises(Invalid):
        await queue.add("n", 1, opts=JobOptions(job_id="42"))
    assert queue.name not in await queue.queues.names()
    await queue.add("n", 1)
    assert queue.name in await queue.queues.names()


async def test_scripts_are_loaded_again_when_redis_forgot_them(queue: Queue) -> None:
    await queue.add("n", 1)
    await queue.redis.call("SCRIPT", "FLUSH")
    assert [one.added for one in await queue.add_many([NewJob("n", 2), NewJob("n", 3)])] == [True, True]
    assert [job.data for job in await queue.list("waiting")] == [1, 2, 3]
