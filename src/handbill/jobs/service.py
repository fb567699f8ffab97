"""The jobs room's face: for the wiring, the routes and the command line.

A tenant asks with its number and sees its own jobs, nobody else's; the operator asks with None and sees all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any
from uuid import UUID

from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Redis
from handbill.infra.state import StateTable
from handbill.jobs import store, views
from handbill.jobs.breaker import Breaker
from handbill.jobs.dead.ledger import Ledger
from handbill.jobs.dead.service import Audit, DeadLetters
from handbill.jobs.dead.sweeper import Sweeper
from handbill.jobs.defaults import TABLE, defaults_of
from handbill.jobs.lock import Locks
from handbill.jobs.model import STATES, Job
from handbill.jobs.outbox.admission import Admission
from handbill.jobs.outbox.producer import Outbox, handled_once
from handbill.jobs.outbox.relay import Relay, RelayPolicy
from handbill.jobs.pressure import Pressure, PressureLimits
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.records import Filter
from handbill.jobs.views import JobView, QueueView, TenantQueue
from handbill.kit import pages
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page

__all__ = ["STATE", "Filter", "JobsService", "Outbox", "RelayPolicy", "handled_once"]

STATE = (
    StateTable(
        "jobs.outbox_events",
        ("id",),
        frozenset({"status", "relayed_at", "relayed_ms", "relays", "due_at", "created_at"}),
    ),
    StateTable("jobs.handled", ("outbox_id",), frozenset({"handled_at"})),
    StateTable("jobs.dead_letters", ("id",), frozenset({"recorded_at", "redriven_at"})),
)
"""Cursors are left out: they say how far Redis was read, and move by themselves."""

LOOK_AT = 2_000
"""Jobs of other tenants that one page of a tenant's list may pass over."""
CHUNK = 200


class JobsService:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        *,
        audit: Audit,
        prefix: str = "bull",
        clock: Clock | None = None,
        ids: Ids | None = None,
        relay: RelayPolicy | None = None,
        pressure: PressureLimits | None = None,
        sweep_grace_s: float = 60.0,
        handled_days: float = 35.0,
        slots: Callable[[str], int] = lambda queue: defaults_of(queue).concurrency,
    ) -> None:
        clock = clock or SystemClock()
        self._database = database
        self._audit = audit
        self._clock = clock
        self.queues = Queues(redis, prefix=prefix, clock=clock)
        self.outbox = Outbox(redis, ids)
        self.locks = Locks(redis)
        self.breaker = Breaker(redis)
        self.pressure = Pressure(database, pressure, clock)
        self.dead = DeadLetters(database, self.queues, self.outbox, audit)
        self.ledger = Ledger(database, redis, prefix=prefix, ids=ids)
        self.sweeper = Sweeper(
            database, redis, self.ledger, prefix=prefix, grace_s=sweep_grace_s, handled_days=handled_days
        )
        admission = Admission(redis, self.queues.limits, prefix=prefix)
        self.relay = Relay(database, redis, self.queues, admission, slots=slots, policy=relay, clock=clock, ids=ids)

    # --- looking
    async def known_queues(self) -> list[str]:
        """Our own queues and those with recorded work. Redis is not searched: it may hold millions of other keys."""
        async with self._database.worker() as tx:
            recorded = set(await store.pending_queues(tx)) | await store.known_queues(tx)
        return sorted(recorded | set(TABLE))

    async def overview(self) -> list[QueueView]:
        """The operator's table: every queue, other programs' too; what waits, what stands in Redis, what is dead."""
        names = sorted({*await self.known_queues(), *await self.queues.names()})
        async with self._database.worker() as tx:
            dead = await store.open_dead_counts(tx)
            lanes = {name: await store.lanes_depth(tx, name, 1_000_000) for name in names}
        found = []
        for name in names:
            counts = await self.queues.queue(name).counts()
            pending = sum(depth for _, depth, _ in lanes[name])
            oldest = max((age for _, _, age in lanes[name]), default=0.0)
            found.append(QueueView(name, pending, oldest, counts, dead.get(name, 0)))
        return found

    async def tenant_overview(self, tenant_id: int) -> list[TenantQueue]:
        """What one tenant has waiting, by queue."""
        names = await self.known_queues()
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.tenant_pending(tx, tenant_id, names)
        return [TenantQueue(queue, depth, max(0.0, age)) for queue, depth, age in rows]

    async def job(self, queue: str, job_id: str, tenant_id: int | None) -> JobView:
        """One job, wherever it is: in the outbox or in the queue."""
        found = await self._in_queue(queue, job_id, tenant_id)
        if found is not None:
            line = self.queues.queue(queue)
            return views.from_job(found, await line.state(job_id), await line.logs(job_id, 0, 199))
        async with self._scope(tenant_id) as tx:
            row = await store.find_outbox(tx, queue, job_id, tenant_id)
        if row is None:
            raise _missing(queue, job_id)
        return views.from_row(row)

    async def list_jobs(
        self, queue: str, state: str, tenant_id: int | None, cursor: str | None, limit: int
    ) -> Page[JobView]:
        """Jobs of one state. `pending` = still in the outbox; the others are the queue's own states."""
        if state == "pending":
            return await self._pending_page(queue, tenant_id, cursor, limit)
        if state not in STATES:
            raise Invalid(
                f"There is no state {state}.",
                code="JOB_STATE_UNKNOWN",
                faults=[Fault("state", "one of pending, " + ", ".join(STATES))],
            )
        start = 0 if cursor is None else views.offset(cursor)
        items: list[JobView] = []
        end = start + LOOK_AT
        while start < end:
            jobs = await self.queues.queue(queue).list_with_gaps(state, start, start + CHUNK - 1)
            for place, job in enumerate(jobs):
                if job is not None and (tenant_id is None or job.tenant_id == tenant_id):
                    items.append(views.from_job(job, state))
                if len(items) == limit:
                    return Page(items, pages.encode(start + place + 1))
            if len(jobs) < CHUNK:
                return Page(items, None)
            start += CHUNK
        return Page(items, pages.encode(start))

    async def _pending_page(self, queue: str, tenant_id: int | None, cursor: str | None, limit: int) -> Page[JobView]:
        after: tuple[datetime, UUID] = (store.BEGINNING, UUID(int=0))
        if cursor is not None:
            after = views.row_position(cursor)
        async with self._scope(tenant_id) as tx:
            rows = await store.list_pending(tx, queue, tenant_id, after, limit + 1)
        found = pages.page(rows, limit, lambda row: (views.microseconds(row.due_at), str(row.id)))
        return Page([views.from_row(row) for row in found.items], found.next)

    # --- changing one job
    async def retry(self, queue: str, job_id: str, tenant_id: int | None, *, actor: str) -> JobView:
        """A failed or completed job runs again, with all its attempts."""
        await self._need(queue, job_id, tenant_id)
        await self._change(tenant_id, actor, "job.retry", queue, job_id, self.queues.queue(queue).retry(job_id))
        return await self.job(queue, job_id, tenant_id)

    async def promote(self, queue: str, job_id: str, tenant_id: int | None, *, actor: str) -> JobView:
        """A delayed job runs now."""
        await self._need(queue, job_id, tenant_id)
        await self._change(tenant_id, actor, "job.promote", queue, job_id, self.queues.queue(queue).promote(job_id))
        return await self.job(queue, job_id, tenant_id)

    async def remove(self, queue: str, job_id: str, tenant_id: int | None, *, actor: str) -> None:
        """Remove a job that does not run, from the outbox or from the queue."""
        async with self._scope(tenant_id) as tx:
            cancelled = await store.cancel_row(tx, queue, job_id, tenant_id)
            if cancelled:
                await self._write(tx, tenant_id, actor, "job.remove", queue, job_id)
        if not cancelled:
            await self._need(queue, job_id, tenant_id)
            await self._change(tenant_id, actor, "job.remove", queue, job_id, self.queues.queue(queue).remove(job_id))

    # --- changing a queue: the operator's work
    async def pause(self, queue: str) -> None:
        """Nothing of this queue is started. What runs ends; work goes on being recorded."""
        await self.queues.queue(queue).pause()

    async def resume(self, queue: str) -> None:
        await self.queues.queue(queue).resume()

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Remove everything that waits, in the outbox and in the queue. Returns how many."""
        line = self.queues.queue(queue)
        async with self._database.worker() as tx:
            count = await store.cancel_pending(tx, queue, None)
        gone = await self._waiting_ids(line, delayed)
        await line.drain(delayed=delayed)
        now_ms = await line.redis.time_ms()
        async with self._database.worker() as tx:
            await store.settle_jobs(tx, queue, [(job_id, now_ms) for job_id in gone])
        return count + len(gone)

    async def _waiting_ids(self, line: Queue, delayed: bool) -> list[str]:
        found: list[str] = []
        for state in ("waiting", "paused", "prioritized", *(("delayed",) if delayed else ())):
            start = 0
            while jobs := await line.list_with_gaps(state, start, start + 999):
                found += [job.id for job in jobs if job is not None]
                start += 1000
        return found

    # --- inside
    async def _in_queue(self, queue: str, job_id: str, tenant_id: int | None) -> Job | None:
        job = await self.queues.queue(queue).get(job_id)
        return job if job is not None and (tenant_id is None or job.tenant_id == tenant_id) else None

    async def _need(self, queue: str, job_id: str, tenant_id: int | None) -> Job:
        """The job, or the same answer for another tenant's job as for none at all."""
        job = await self._in_queue(queue, job_id, tenant_id)
        if job is None:
            raise _missing(queue, job_id)
        return job

    async def _change(
        self, tenant_id: int | None, actor: str, action: str, queue: str, job_id: str, verb: Coroutine[Any, Any, None]
    ) -> None:
        """The audit row is committed only if Redis did what was asked."""
        async with self._scope(tenant_id) as tx:
            try:
                await self._write(tx, tenant_id, actor, action, queue, job_id)
            except BaseException:
                verb.close()
                raise
            await verb

    async def _write(self, tx: Tx, tenant_id: int | None, actor: str, action: str, queue: str, job_id: str) -> None:
        if tenant_id is not None:
            await self._audit.write(tx, tenant_id, actor=actor, action=action, object=f"job {queue}/{job_id}")

    def _scope(self, tenant_id: int | None) -> AbstractAsyncContextManager[Tx]:
        return self._database.worker() if tenant_id is None else self._database.tenant(tenant_id)


def _missing(queue: str, job_id: str) -> NotFound:
    return NotFound(f"queue {queue} has no job {job_id}", code="JOB_NOT_FOUND")
