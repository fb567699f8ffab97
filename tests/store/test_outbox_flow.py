"""The whole way: recorded, woken, relayed, run by a worker, settled; or failed, buried, redriven, done."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.chores import CronChore, GaugeChore, LedgerChore, RelayChore, SweepChore
from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.gauges import Gauges
from handbill.jobs.model import Backoff, Job, JobOptions, Unrecoverable
from handbill.jobs.outbox.relay import RelayPolicy
from handbill.jobs.records import Filter
from handbill.jobs.service import JobsService
from handbill.jobs.worker import JobContext, JobWorker
from handbill.kit.telemetry import metrics
from tests.kit.audit import RecordedAudit
from tests.kit.waiting import eventually, soon
from tests.store.outbox_bench import Bench, a_bench


@pytest.fixture
async def bench(database: Database, redis: Redis, unique: Callable[[str], str]) -> AsyncIterator[Bench]:
    async with a_bench(database, redis, unique("flow")) as bench:
        yield bench


PATIENT = JobOptions(attempts=50, backoff=Backoff("fixed", delay_ms=50))
"""A handler that finds the database busy on a slow machine is tried again soon, not in a minute."""


@asynccontextmanager
async def running(*chores: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for chore in chores:
            await chore.start()
            stack.push_async_callback(chore.stop)
            await soon(chore.ready.wait())
        yield


async def test_recorded_work_is_run_once_and_settled(bench: Bench) -> None:
    """The poll is an hour long: only the wake-up after the commit can start the relay in time."""
    service = JobsService(
        bench.database, bench.redis, audit=RecordedAudit(), relay=RelayPolicy(poll_s=3600), slots=lambda _: 10
    )
    effects: Counter[str] = Counter()

    async def handle(job: Job, context: JobContext) -> None:
        if await bench.effect(job):
            effects[str(job.outbox_id)] += 1

    async def names() -> list[str]:
        return [bench.name]

    worker = JobWorker(bench.queues, bench.name, {"work": handle}, concurrency=4)
    relay = RelayChore(service.relay, bench.redis)
    ledger = LedgerChore(service.ledger, bench.redis, names, block_s=0.2)
    async with running(worker, relay, ledger):
        ids = await bench.put(None, 60, opts=PATIENT)
        ids += await bench.put(7, 5, opts=PATIENT)
        await eventually(lambda: len(effects) == 65)
        await eventually(lambda: _empty(bench))
    assert effects == {str(id): 1 for id in ids}


async def _empty(bench: Bench) -> bool:
    return not await bench.statuses()


async def test_a_job_that_fails_for_good_comes_back_by_redrive(bench: Bench, tenant: int) -> None:
    service = JobsService(bench.database, bench.redis, audit=RecordedAudit(), slots=lambda _: 10)
    broken = True
    effects: Counter[str] = Counter()

    async def handle(job: Job, context: JobContext) -> None:
        if broken:
            raise Unrecoverable("the other side is down")
        if await bench.effect(job):
            effects[str(job.outbox_id)] += 1

    async def names() -> list[str]:
        return [bench.name]

    worker = JobWorker(bench.queues, bench.name, {"work": handle}, concurrency=2)
    ledger = LedgerChore(service.ledger, bench.redis, names, block_s=0.2)
    async with running(worker, RelayChore(service.relay, bench.redis), ledger):
        ids = await bench.put(tenant, 2, opts=JobOptions(attempts=3, backoff=Backoff("fixed", delay_ms=1)))
        await eventually(lambda: _dead(bench, 2))
        broken = False
        assert await service.dead.redrive(Filter(tenant_id=tenant, queue=bench.name), actor="test") == 2
        await eventually(lambda: len(effects) == 2)
        await eventually(lambda: _empty(bench))
    assert set(effects) == {str(id) for id in ids}
    assert {letter.status for letter in await bench.letters()} == {"redriven"}


async def _dead(bench: Bench, count: int) -> bool:
    letters = await bench.letters(status="dead")
    return len(letters) == count and all("the other side is down" in letter.reason for letter in letters)


async def test_the_sweep_and_the_gauges_go_round(bench: Bench) -> None:
    service = JobsService(bench.database, bench.redis, audit=RecordedAudit(), sweep_grace_s=0)

    async def names() -> list[str]:
        return [bench.name]

    await bench.put(5, 3)
    await bench.put(None, 2)
    await bench.relay(per_cycle=1).serve(bench.name)
    await bench.forget()
    sweep = SweepChore(service.sweeper, service.ledger, names)
    gauges = GaugeChore(Gauges(bench.database, service.queues, names))
    async with running(sweep, gauges):
        assert await bench.statuses() == {"pending": 5}
        pending = {
            sample.labels["tenant"]: sample.value
            for family in metrics.OUTBOX_PENDING.collect()
            for sample in family.samples
            if sample.labels["queue"] == bench.name
        }
    assert pending == {"5": 3, "system": 2}


async def test_a_schedule_that_redis_forgot_is_put_back(bench: Bench) -> None:
    schedulers = Schedulers(bench.queues)
    wanted = [Schedule(id="nightly", queue=bench.name, name="work", cron="0 3 * * *")]
    for _ in range(2):
        async with running(CronChore(schedulers, wanted)):
            assert [one.id for one in await schedulers.list(bench.name)] == ["nightly"]
        await bench.forget()
