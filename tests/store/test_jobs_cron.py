"""Schedulers on a real Redis: one fire per slot, time zones and jitter in the slot, missed slots once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from handbill.infra.redis import Redis
from handbill.jobs.cron import Schedule, Schedulers, late_by, next_slot
from handbill.jobs.model import Job
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.worker import JobContext, JobWorker
from handbill.kit.errors import Invalid
from tests.kit.waiting import eventually

HOURLY = "0 * * * *"


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("cron"))


async def test_a_schedule_queues_its_next_slot_and_is_listed(queue: Queue) -> None:
    schedulers = Schedulers(queue.queues)
    zone = "Asia/Kathmandu"
    job_id = await schedulers.upsert(Schedule(id="roll", queue=queue.name, name="roll", cron=HOURLY, zone=zone))
    (found,) = await schedulers.list(queue.name)
    slot = next_slot(HOURLY, zone, await queue.redis.time_ms() - 60_000)
    assert found.next_ms in (slot, next_slot(HOURLY, zone, slot or 0))
    assert job_id == f"repeat:roll:{found.next_ms}"
    assert (found.id, found.name, found.cron, found.zone) == ("roll", "roll", HOURLY, zone)
    assert await queue.state(job_id) == "delayed"
    assert await schedulers.remove(queue.name, "roll")
    assert not await schedulers.remove(queue.name, "roll")
    assert (await queue.counts()).delayed == 0


async def test_jitter_moves_the_slot_by_what_everybody_computes(queue: Queue) -> None:
    schedulers = Schedulers(queue.queues)
    schedule = Schedule(id="j", queue=queue.name, name="n", cron=HOURLY, jitter_ms=600_000)
    await schedulers.upsert(schedule)
    (found,) = await schedulers.list(queue.name)
    slot = found.next_ms // 3_600_000 * 3_600_000
    assert found.next_ms == slot + late_by("j", slot, 600_000)


async def test_what_stands_as_wanted_is_left_alone(queue: Queue) -> None:
    schedulers = Schedulers(queue.queues)
    wanted = Schedule(id="s", queue=queue.name, name="n", cron=HOURLY, data={"a": [1, 2.5]}, jitter_ms=10)
    assert await schedulers.ensure([wanted]) == ["s"]
    before = await schedulers.list(queue.name)
    assert await schedulers.ensure([wanted]) == []
    assert await schedulers.list(queue.name) == before
    changed = Schedule(id="s", queue=queue.name, name="n", cron="30 * * * *", data={"a": [1, 2.5]})
    assert await schedulers.ensure([changed]) == ["s"]
    assert (await queue.counts()).delayed == 1
    await queue.redis.call("ZREM", queue.keys["delayed"], f"repeat:s:{(await schedulers.list(queue.name))[0].next_ms}")
    await queue.redis.call("DEL", queue.keys.job(f"repeat:s:{(await schedulers.list(queue.name))[0].next_ms}"))
    assert await schedulers.ensure([changed]) == ["s"], "its job is gone: it is queued again"
    assert (await queue.counts()).delayed == 1


async def test_each_slot_fires_once_however_many_workers(queue: Queue) -> None:
    fired: Counter[str] = Counter()

    async def handler(job: Job, _: JobContext) -> None:
        fired[job.id] += 1

    schedule = Schedule(id="tick", queue=queue.name, name="n", every_ms=40)
    workers = [JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=3, name=f"w{i}") for i in range(3)]
    for worker in workers:
        await worker.start()
    schedulers = Schedulers(queue.queues)
    await asyncio.gather(*(schedulers.ensure([schedule]) for _ in range(3)))
    await eventually(lambda: len(fired) >= 8)
    for worker in workers:
        await worker.stop()
    assert set(fired.values()) == {1}


async def test_a_missed_slot_fires_once_after_a_downtime(queue: Queue) -> None:
    """Slots were due while nobody worked: one fire for all of the past, then the next slot."""
    fired: list[str] = []

    async def handler(job: Job, _: JobContext) -> None:
        fired.append(job.id)

    schedulers = Schedulers(queue.queues)
    wanted = Schedule(id="daily", queue=queue.name, name="n", cron="0 0 1 1 *")
    job_id = await schedulers.upsert(wanted)
    year = int(job_id.split(":")[2])
    missed = year - 3 * 365 * 86_400_000  # as if Redis had stood since the years before
    opts = (await queue.redis.call("HGET", queue.keys.job(job_id), "opts")).replace(
        str(year).encode(), str(missed).encode()
    )
    await queue.redis.call("HSET", queue.keys.job(job_id), "opts", opts)
    await queue.redis.call("RENAME", queue.keys.job(job_id), queue.keys.job(f"repeat:daily:{missed}"))
    await queue.redis.call("ZREM", queue.keys["delayed"], job_id)
    await queue.redis.call("ZADD", queue.keys["delayed"], missed * 0x1000, f"repeat:daily:{missed}")
    await queue.redis.call("ZADD", queue.keys["repeat"], missed, "daily")
    assert await schedulers.ensure([wanted]) == [], "a boot does not forget the missed slot"
    worker = JobWorker(queue.queues, queue.name, {"n": handler}, concurrency=2)
    await worker.start()
    await eventually(lambda: bool(fired))
    await eventually(lambda: _is_next(schedulers, queue, year))
    await worker.stop()
    assert fired == [f"repeat:daily:{missed}"]
    assert await queue.state(job_id) == "delayed"


async def _is_next(schedulers: Schedulers, queue: Queue, slot: int) -> bool:
    return [one.next_ms for one in await schedulers.list(queue.name)] == [slot]


async def test_an_advance_said_twice_is_one(queue: Queue) -> None:
    schedulers = Schedulers(queue.queues)
    job_id = await schedulers.upsert(Schedule(id="s", queue=queue.name, name="n", cron=HOURLY))
    job = await queue.get(job_id)
    assert job is not None
    first = await schedulers.advance(job)
    assert first is not None
    assert await schedulers.advance(job) is None
    assert (await queue.counts()).delayed == 2


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(id="", queue="q", name="n", cron=HOURLY),
        Schedule(id="a:b", queue="q", name="n", cron=HOURLY),
        Schedule(id="a", queue="q", name="n"),
        Schedule(id="a", queue="q", name="n", cron=HOURLY, every_ms=5),
        Schedule(id="a", queue="q", name="n", every_ms=0),
        Schedule(id="a", queue="q", name="n", cron="nonsense"),
        Schedule(id="a", queue="q", name="n", cron=HOURLY, zone="Nowhere/Land"),
    ],
)
async def test_what_is_no_schedule_is_refused(redis: Redis, schedule: Schedule) -> None:
    with pytest.raises(Invalid):
        await Schedulers(Queues(redis)).upsert(schedule)
