"""A real relay process, killed at its own crash points in the middle of the work: each effect is there once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.model import Backoff, Job, JobOptions
from handbill.jobs.worker import JobContext, JobWorker
from tests.kit.crashes import crashing
from tests.kit.processes import process
from tests.kit.waiting import eventually
from tests.store.outbox_bench import Bench, a_bench

DEATHS = (("pg:take_pending", 4), ("redis:EVALSHA+EVALSHA", 2), ("pg:lock_rows", 2))
"""After the rows are marked, after the jobs are added, after ended rows are locked: each before the commit."""


async def test_relay_and_ledger_killed_again_and_again(
    handbill_env: dict[str, str], database: Database, redis: Redis, unique: Callable[[str], str]
) -> None:
    effects: Counter[str] = Counter()
    async with a_bench(database, redis, unique("killed")) as bench:

        async def handle(job: Job, context: JobContext) -> None:
            if await bench.effect(job):
                effects[str(job.outbox_id)] += 1

        opts = JobOptions(attempts=50, backoff=Backoff("fixed", delay_ms=50))
        ids = await bench.put(None, 120, opts=opts)
        for tenant in range(1, 6):
            ids += await bench.put(tenant, 4, opts=opts)
        worker = JobWorker(bench.queues, bench.name, {"work": handle}, concurrency=3)
        await worker.start()
        try:
            for only, at in DEATHS:
                async with crashing("worker", "--only", "relay", at=at, only=only, env=handbill_env) as relay:
                    assert await relay.exit() == -signal.SIGKILL, relay.tail()
            sweeping = handbill_env | {"HANDBILL_JOBS__SWEEP_GRACE_S": "1"}
            async with process("worker", "--only", "relay,cron", env=sweeping) as relay:
                await eventually(lambda: len(effects) == len(ids), what="every effect")
                await eventually(lambda: _settled(bench), what="every row settled")
                assert await relay.stop() == 0, relay.tail()
        finally:
            await worker.stop()
    assert effects == {str(id): 1 for id in ids}


async def _settled(bench: Bench) -> bool:
    return not await bench.statuses()
