"""Putting sync jobs into their queue: by the clock, by hand, for backfills. Of one id one job waits or runs at a time.

A job that is lost with Redis comes back by itself: the next tick sees what is due, and what a backfill still waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from uuid import UUID

from handbill.adstats import cadence, store
from handbill.adstats.editor import after, found
from handbill.adstats.model import (
    JOB,
    LEVELS,
    QUEUE,
    Backfill,
    BackfillView,
    Enqueued,
    JobState,
    Mode,
    SyncAnswer,
    SyncJob,
)
from handbill.infra.postgres import Database, Tx
from handbill.jobs.model import JobOptions, Keep, NewJob
from handbill.jobs.service import JobsService
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.tenants.service import Audit

SELLERS_AT_ONCE = 3_000
"""Rows of the scheduler's look at a time: three for each connection."""
PARTS_AT_ONCE = 6
PART_DAYS = 31
OLDEST_DAYS = 3 * 365 + 28
"""Platforms keep thirty-seven months, whatever months they are."""
LONGEST_DAYS = 800


class Dispatch:
    def __init__(self, database: Database, jobs: JobsService, audit: Audit, clock: Clock, ids: Ids, mode: Mode) -> None:
        self._database = database
        self._queues = jobs.queues
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._mode = mode

    # --- by the clock

    async def tick(self, only: int | None = None) -> SyncAnswer:
        """Everything that is due now, and the next parts of backfills. `only`: one tenant."""
        now = self._clock.now()
        place = (0, store.FIRST)
        told: list[Enqueued] = []
        while True:
            async with self._database.worker() as tx:
                dues = await store.eligible(tx, now, place, only, SELLERS_AT_ONCE)
            whole = dues
            if len(dues) == SELLERS_AT_ONCE:  # the last seller may go on on the next page: leave it for that
                whole = [due for due in dues if due.tenant_id != dues[-1].tenant_id] or dues
            told += await self._add(cadence.jobs_for(whole, now))
            if len(dues) < SELLERS_AT_ONCE:
                break
            place = (whole[-1].tenant_id, whole[-1].connection_id)
        async with self._database.worker() as tx:
            parts = await store.waiting_parts(tx, PARTS_AT_ONCE, only)
        told += await self._add(parts)
        return _answer(told)

    # --- by hand

    async def sync(self, tenant: int, day: date | None, *, actor: str) -> SyncAnswer:
        """All levels of one day; without one, of today as the seller's accounts reckon it."""
        now = self._clock.now()
        async with self._database.tenant(tenant) as tx:
            seller = await store.seller_of(tx, tenant)
            accounts = [kept.shown for kept in await store.usable_connections(tx, tenant)]
            days = [cadence.today(now, one.time_zone) for one in accounts] or [now.date()]
            if day is not None:
                self._check(day, day, max(days))
                days = [day]
                await self._whole(tx, day, day)
            await self._audit.write(
                tx, tenant, actor=actor, action="ad_stats.sync", object=f"days {min(days)} to {max(days)}"
            )
        jobs = [(tenant, SyncJob(seller, min(days), max(days), level)) for level in LEVELS]
        return _answer(await self._add(jobs, urgent=True))

    async def backfill(self, tenant: int, first: date, last: date, *, actor: str) -> BackfillView:
        """Read a range again, newest days first. Its progress is kept; parts come into the queue a few at a time."""
        now = self._clock.now()
        backfill = self._ids.new()
        async with self._database.tenant(tenant) as tx:
            accounts = [kept.shown for kept in await store.usable_connections(tx, tenant)]
            if not accounts:
                raise Conflict("No ad account is connected; nothing was started.", code="NO_AD_ACCOUNT")
            self._check(first, last, max(cadence.today(now, one.time_zone) for one in accounts))
            await self._whole(tx, first, last)
            parts = [(level, *piece) for piece in cadence.pieces(first, last, PART_DAYS) for level in LEVELS]
            await store.create_backfill(tx, tenant, backfill, first, last, actor, now)
            await store.create_parts(tx, tenant, backfill, parts)
            await self._audit.write(
                tx, tenant, actor=actor, action="ad_stats.backfill", object=f"days {first} to {last}"
            )
        await self.parts(tenant)
        return await self.progress(tenant, backfill)

    async def parts(self, tenant: int) -> None:
        """Put the seller's next parts into the queue."""
        async with self._database.worker() as tx:
            waiting = await store.waiting_parts(tx, PARTS_AT_ONCE, tenant)
        await self._add(waiting)

    async def progress(self, tenant: int, backfill: UUID) -> BackfillView:
        async with self._database.tenant(tenant) as tx:
            rows = await store.list_backfills(tx, tenant, store.LAST, 1, backfill)
        return _view(found(rows[0] if rows else None, "BACKFILL"))

    async def backfills(self, tenant: int, cursor: str | None, limit: int) -> Page[BackfillView]:
        async with self._database.tenant(tenant) as tx:
            rows = await store.list_backfills(tx, tenant, after(cursor, store.LAST), limit + 1)
        page = pages.page(rows, limit, lambda row: (str(row.backfill_id),))
        return Page([_view(row) for row in page.items], page.next)

    # --- inside

    async def _add(self, jobs: Sequence[tuple[int, SyncJob]], *, urgent: bool = False) -> list[Enqueued]:
        """All at once; then one by one those of whose id there is a job already."""
        queue = self._queues.queue(QUEUE)
        added = await queue.add_many([_new(tenant, job) for tenant, job in jobs])
        told = []
        for (tenant, job), one in zip(jobs, added, strict=True):
            state: JobState = "enqueued" if one.added else await self._again(tenant, job, urgent)
            told.append(Enqueued(job.job_id, state))
        return told

    async def _again(self, tenant: int, job: SyncJob, urgent: bool) -> JobState:
        """A finished job of this id makes room; one that waits for its next attempt is hurried when a person asks."""
        queue = self._queues.queue(QUEUE)
        for _ in range(3):
            state = await queue.state(job.job_id)
            try:
                if state in ("failed", "completed"):
                    await queue.retry(job.job_id)
                    return "enqueued"
                if state == "delayed" and urgent:
                    await queue.promote(job.job_id)
                    return "enqueued"
            except (Conflict, NotFound):
                continue  # it moved on between the question and the answer
            if state != "unknown":
                return "already_running"
            if (await queue.add_many([_new(tenant, job)]))[0].added:
                return "enqueued"
        return "already_running"

    async def _whole(self, tx: Tx, first: date, last: date) -> None:
        if self._mode == "sum" and await store.any_gone(tx, first, last):
            raise Conflict(
                "The raw rows of these days are gone, and nothing can be added up without them; nothing was started.",
                code="RAW_GONE",
            )

    def _check(self, first: date, last: date, today: date) -> None:
        faults = []
        if first > last:
            faults.append(Fault("dateFrom", "must not be later than dateTo"))
        if last > today:
            faults.append(Fault("dateTo", "must not lie in the future"))
        if (today - first).days > OLDEST_DAYS:
            faults.append(Fault("dateFrom", "platforms keep 37 months"))
        if (last - first).days >= LONGEST_DAYS:
            faults.append(Fault("dateTo", f"at most {LONGEST_DAYS} days at once"))
        if faults:
            raise Invalid("These days cannot be read; nothing was started.", faults=faults)


def _new(tenant: int, job: SyncJob) -> NewJob:
    """Kept only while it waits or runs: the same days may be asked for again at once."""
    return NewJob(JOB, job, JobOptions(job_id=job.job_id, keep_completed=Keep(count=0)), tenant)


def _answer(told: Sequence[Enqueued]) -> SyncAnswer:
    added = [one.id for one in told if one.state == "enqueued"]
    return SyncAnswer(len(added), [one.id for one in told], list(told))


def _view(row: Backfill) -> BackfillView:
    ended = row.done + row.failed
    return BackfillView(
        row.backfill_id, row.state, row.date_from, row.date_to, row.parts, row.done, row.failed,  # type: ignore[arg-type]
        round(ended / row.parts, 4) if row.parts else 1.0, row.asked_by, row.created_at, row.errors,
    )  # fmt: skip
