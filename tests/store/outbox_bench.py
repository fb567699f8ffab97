"""What the tests of outbox and dead letters share: one queue of its own with everything around it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs import store
from handbill.jobs.dead.ledger import Ledger
from handbill.jobs.dead.sweeper import Sweeper
from handbill.jobs.model import Job
from handbill.jobs.outbox.admission import Admission
from handbill.jobs.outbox.producer import Outbox, handled_once
from handbill.jobs.outbox.relay import Relay, RelayPolicy
from handbill.jobs.queue import Queues
from handbill.jobs.records import DeadLetter, Entry, Filter

_CLEAR = Sql("delete from jobs.outbox_events where queue = $1", "clear", "tests", "test")
_FORGET = Sql("delete from jobs.event_cursors where queue = $1", "forget", "tests", "test")
_STATUSES = Sql("select status from jobs.outbox_events where queue = $1", "statuses", "tests", "test")


class Plenty:
    """No tenant is limited."""

    async def peek(self, queue: str, tenants: Sequence[int | None], horizon_ms: int) -> list[int]:
        return [10**6] * len(tenants)


class Tokens:
    """So many tokens for each tenant, and none for those not named."""

    def __init__(self, tokens: dict[int | None, int]) -> None:
        self.tokens = tokens

    async def peek(self, queue: str, tenants: Sequence[int | None], horizon_ms: int) -> list[int]:
        return [self.tokens.get(tenant, 0) for tenant in tenants]


class Bench:
    """One queue of its own, with everything around it."""

    def __init__(self, database: Database, redis: Redis, queue: str) -> None:
        self.database, self.redis, self.name = database, redis, queue
        self.queues = Queues(redis)
        self.queue = self.queues.queue(queue)
        self.outbox = Outbox(redis)

    def relay(self, *, slots: int = 250, allowances: Any = None, **policy: Any) -> Relay:
        admission = Admission(self.redis, allowances or Plenty())
        return Relay(
            self.database, self.redis, self.queues, admission, slots=lambda _: slots, policy=RelayPolicy(**policy)
        )

    async def put(self, tenant: int | None, count: int, **more: Any) -> list[uuid.UUID]:
        entries = [Entry(self.name, "work", {"n": n, "t": tenant}, tenant, **more) for n in range(count)]
        async with self.database.worker() as tx:
            return await self.outbox.put_many(tx, entries)

    async def waiting(self) -> list[tuple[Any, int]]:
        """Tenant and number of each waiting job, the next to run first."""
        return [(job.data["t"], job.data["n"]) for job in await self.queue.list("waiting", 0, 20_000)]

    async def statuses(self) -> Counter[str]:
        async with self.database.worker() as tx:
            return Counter(row["status"] for row in await tx.fetch(_STATUSES, self.name))

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.database, self.redis)

    def sweeper(self, grace_s: float = 0.0) -> Sweeper:
        return Sweeper(self.database, self.redis, self.ledger, grace_s=grace_s)

    async def letters(self, **wanted: Any) -> list[DeadLetter]:
        async with self.database.worker() as tx:
            return await store.list_dead(tx, Filter(queue=self.name, **wanted), None, 1000)

    async def effect(self, job: Job) -> bool:
        """What a good handler does: the effect and the mark of it in one transaction. True when it was done now."""
        assert job.outbox_id is not None
        async with self.database.worker() as tx:
            return await handled_once(tx, job.outbox_id, tenant_id=job.tenant_id)

    async def finish(self, job: Job, state: str, reason: str = "it broke") -> None:
        """End a waiting job as another program's worker would, by BullMQ's own keys and events."""
        keys, at = self.queue.keys, await self.redis.time_ms()
        fields = ["finishedOn", str(at)] + (["failedReason", reason, "atm", "3"] if state == "failed" else [])
        said = ["failedReason", reason] if state == "failed" else ["returnvalue", "null"]
        await self.redis.many(
            [
                ("LREM", keys["wait"], 0, job.wire_id),
                ("HSET", keys.job(job.wire_id), *fields),
                ("ZADD", keys[state], at, job.wire_id),
                ("XADD", keys["events"], "*", "event", state, "jobId", job.wire_id, *said, "prev", "active"),
            ]
        )

    async def forget(self) -> None:
        """Redis loses this queue, whole."""
        keys = await self.redis.call("KEYS", self.queue.keys.base + "*")
        if keys:
            await self.redis.call("DEL", *keys)


@asynccontextmanager
async def a_bench(database: Database, redis: Redis, queue: str) -> AsyncIterator[Bench]:
    """Its rows go at the end: the relay and the ledger of another test in this process would find them."""
    bench = Bench(database, redis, queue)
    yield bench
    async with database.worker() as tx:
        await tx.execute(_CLEAR, queue)
        await tx.execute(_FORGET, queue)
    await bench.forget()
