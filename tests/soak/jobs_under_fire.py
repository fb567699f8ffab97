"""Outbox, relay, ledger and workers for minutes, while real relay processes are killed and Redis' clients are cut.

At the end every recorded piece of work has had its effect once, every row is settled, and no tenant was starved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.jobs.model import Backoff, Job, JobOptions
from handbill.jobs.outbox.producer import Outbox, handled_once
from handbill.jobs.queue import Queues
from handbill.jobs.records import Entry
from handbill.jobs.service import JobsService
from handbill.jobs.worker import JobContext, JobWorker
from tests.kit.audit import RecordedAudit
from tests.kit.processes import process
from tests.kit.waiting import eventually
from tests.soak.context import Context

QUEUE = "banners"  # no rate limit: the fire is the point here, not the pace
TENANTS = 50


class Fire:
    """The state of one run: what was recorded, what was done, and what was broken on purpose."""

    def __init__(self, ctx: Context, database: Database, redis: Redis) -> None:
        self.ctx, self.database, self.redis = ctx, database, redis
        self.outbox = Outbox(redis)
        self.recorded: set[str] = set()
        self.effects: Counter[str] = Counter()
        self.runs = 0
        self.kills = 0
        self.cuts = 0

    async def handle(self, job: Job, context: JobContext) -> None:
        self.runs += 1
        if self.runs % 97 == 0:
            raise RuntimeError("a passing trouble")
        assert job.outbox_id is not None
        async with self.database.worker() as tx:
            first = await handled_once(tx, job.outbox_id, tenant_id=job.tenant_id)
        if first:
            self.effects[job.outbox_id] += 1

    async def produce(self) -> None:
        """Bursts of a noisy tenant and of the system between the drops of the small ones."""
        opts = JobOptions(attempts=20, backoff=Backoff("fixed", delay_ms=20))
        draw = self.ctx.random
        while self.ctx.time_left() > 0:
            who: list[int | None] = [draw.randrange(2, TENANTS) for _ in range(5)]
            who += [1] * draw.choice((0, 0, 300)) + [None] * draw.choice((0, 50))
            entries = [Entry(QUEUE, "work", {"t": tenant}, tenant, opts=opts) for tenant in who]
            async with self.database.worker() as tx:
                ids = await self.outbox.put_many(tx, entries)
            self.recorded.update(str(id) for id in ids)
            await asyncio.sleep(0.1)

    async def cut(self) -> None:
        """Every few seconds all normal connections of Redis are cut."""
        while self.ctx.time_left() > 0:
            await asyncio.sleep(self.ctx.random.uniform(3, 8))
            async with self.redis.connection() as own:
                self.cuts += int(await own.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))

    async def relays(self, env: dict[str, str]) -> None:
        """A relay process at a time, killed after a while without warning."""
        while self.ctx.time_left() > 0:
            async with process("worker", "--only", "relay,cron", env=env) as relay:
                await relay.log(event="worker-ready")
                await asyncio.sleep(self.ctx.random.uniform(1, 5))
                relay.kill()
                await relay.exit()
                self.kills += 1


async def run(ctx: Context) -> dict[str, Any]:
    ctx.settings.update(queue=QUEUE, tenants=TENANTS, concurrency=20)
    async with ctx.stack(settings={"HANDBILL_JOBS__SWEEP_GRACE_S": "5"}) as built:
        database, redis = Database(derive(built.postgres_url)), Redis(built.redis_url, timeout=10)
        await database.start()
        await redis.start()
        fire = Fire(ctx, database, redis)
        worker = JobWorker(Queues(redis), QUEUE, {"work": fire.handle}, concurrency=20, lock_ms=5_000, stalled_ms=2_000)
        await worker.start()
        try:
            await asyncio.gather(fire.produce(), fire.cut(), fire.relays(built.env()))
            ctx.say(f"{len(fire.recorded)} recorded, {fire.kills} kills, {fire.cuts} connections cut; working off")
            service = JobsService(database, redis, audit=RecordedAudit())
            async with process("worker", "--only", "relay,cron", env=built.env()):
                await eventually(lambda: len(fire.effects) == len(fire.recorded), timeout=600, what="every effect")
                await eventually(lambda: _settled(service), timeout=300, what="every row settled")
        finally:
            await worker.stop()
            await redis.stop()
            await database.stop()
    assert set(fire.effects) == fire.recorded
    assert set(fire.effects.values()) == {1}
    return {
        "recorded": len(fire.recorded),
        "effects": sum(fire.effects.values()),
        "runs": fire.runs,
        "relay_kills": fire.kills,
        "connections_cut": fire.cuts,
    }


async def _settled(service: JobsService) -> bool:
    found = [one for one in await service.overview() if one.queue == QUEUE]
    return all(one.pending == 0 and one.jobs.pending == 0 and one.jobs.active == 0 for one in found)
