"""From rows to jobs: add them in one round trip, and settle at once the rows that need not be followed.

A row whose id the queue knows already is one of four things: our own job of an earlier, interrupted cycle; a job that
another row stands for; a finished job that is still kept for reading, which must not stand in the way of new work; or
a job of another program, which we then follow as if it were ours.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.infra.postgres import Tx
from handbill.infra.redis import RedisError
from handbill.jobs import store
from handbill.jobs.model import Added, Job, NewJob
from handbill.jobs.payloads import KEPT_BYTES, restore_bytes
from handbill.jobs.queue import Queue
from handbill.jobs.records import NewDeadLetter, Taken, read_options
from handbill.kit.clock import Clock, SystemClock, from_ms
from handbill.kit.errors import Conflict, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs
from handbill.kit.untrusted_json import UNREADABLE

_log = logs.get("relay")
Answers = list[tuple[Taken, Added]]
Refusals = list[tuple[Taken, str]]
_KEPT = f'{{"{KEPT_BYTES}"'
"""How a row begins that keeps bytes (see payloads.py); jsonb writes it so."""


class Handover:
    def __init__(self, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ids = ids or Ids()

    async def __call__(self, tx: Tx, queue: Queue, taken: Sequence[Taken], *, first: bool = False) -> None:
        """Add the jobs in order. `first`: at the fetching end, before a flood of other programs' jobs."""
        if first:
            taken = list(reversed(taken))  # the last one in is the first one out
        jobs: list[tuple[Taken, NewJob]] = []
        refusals: Refusals = []
        for row in taken:
            try:
                jobs.append((row, _job(row, first=first)))
            except (msgspec.MsgspecError, *UNREADABLE) as error:
                refusals.append((row, str(error)))
        answers, refused = await self._add(queue, jobs)
        refusals += refused
        strangers = [row for row, answer in answers if not answer.added and answer.id != row.job_id]
        if strangers:  # the queue's own deduplication gave the work to another job
            await store.drop_rows(tx, [row.id for row in strangers])
        known = [row for row, answer in answers if not answer.added and answer.id == row.job_id]
        if known:
            refusals += await self._known(tx, queue, known, {row.id: job for row, job in jobs})
        for row, reason in refusals:
            await self._park(tx, queue.name, row, reason)

    async def _add(self, queue: Queue, jobs: Sequence[tuple[Taken, NewJob]]) -> tuple[Answers, Refusals]:
        """All in one round trip; when one of them is refused, one by one, so that a bad job stands alone."""
        if not jobs:
            return [], []
        try:
            added = await queue.add_many([job for _, job in jobs])
        except (Conflict, Invalid, RedisError) as error:
            # An engine that is away or full raises Busy and ends the cycle; what arrives here speaks of a job.
            if len(jobs) == 1:
                return [], [(jobs[0][0], _words(error))]
            answers: Answers = []
            refusals: Refusals = []
            for pair in jobs:
                one, bad = await self._add(queue, [pair])
                answers += one
                refusals += bad
            return answers, refusals
        return [(row, answer) for (row, _), answer in zip(jobs, added, strict=True)], []

    async def _known(self, tx: Tx, queue: Queue, rows: Sequence[Taken], jobs: dict[object, NewJob]) -> Refusals:
        again: list[tuple[Taken, NewJob]] = []
        doubles: list[Taken] = []
        done: list[Taken] = []
        for row in rows:
            there = await queue.get(row.job_id)
            if there is not None and there.finished_on is not None:
                if _is_ours(there, row):
                    done.append(row)
                else:
                    await _make_way(queue, row.job_id)
                    again.append((row, jobs[row.id]))
            elif there is None or not _is_ours(there, row):
                doubles.append(row)
        if done:
            done = [row for row in done if not await self._failed(queue, row)]
            await store.drop_rows(tx, [row.id for row in done])
        if doubles:
            await store.drop_doubles(tx, queue.name, [row.id for row in doubles])
        if not again:
            return []
        # The removal is an event of the old job: only what comes after it speaks of the new one.
        await asyncio.sleep(0.002)
        await store.restamp_rows(tx, [row.id for row, _ in again], await queue.redis.time_ms())
        _, refusals = await self._add(queue, again)
        return refusals

    async def _failed(self, queue: Queue, row: Taken) -> bool:
        """A job of ours that failed for good keeps its row until the ledger has buried it."""
        return await queue.state(row.job_id) == "failed"

    async def _park(self, tx: Tx, queue: str, row: Taken, reason: str) -> None:
        """A row that cannot become a job goes to the dead letters, and its neighbours go on."""
        _log.error("outbox-row-parked", queue=queue, outbox_id=str(row.id), tenant=row.tenant_id, reason=reason)
        letter = NewDeadLetter(
            id=self._ids.new(),
            tenant_id=row.tenant_id,
            queue=queue,
            job_id=row.job_id,
            name=row.name,
            effect_id=row.effect_id,
            data=row.data,
            opts=row.opts,
            attempts=0,
            reason=reason,
            traceback="",
            source="relay",
            queued_at=None,
            failed_at=from_ms(self._clock.now_ms()),
        )
        await store.bury(tx, letter)
        await store.drop_rows(tx, [row.id])


def _job(row: Taken, *, first: bool) -> NewJob:
    opts = read_options(row.opts)
    delay = max(0, math.ceil(row.wait * 1000))
    opts = msgspec.structs.replace(
        opts, job_id=row.job_id, delay_ms=delay, outbox_id=str(row.effect_id), lifo=opts.lifo or first
    )
    return NewJob(name=row.name, data=_data(row.data), opts=opts, tenant_id=row.tenant_id)


def _data(stored: str) -> Any:
    """The stored JSON as it is, without being decoded; bytes that were kept because they are none, as they were."""
    return restore_bytes(msgspec.json.decode(stored)) if stored.startswith(_KEPT) else msgspec.Raw(stored.encode())


def _is_ours(job: Job, row: Taken) -> bool:
    return job.outbox_id == str(row.effect_id)


async def _make_way(queue: Queue, job_id: str) -> None:
    """Remove a finished job that is only kept for reading. Its dead letter, if it has one, stays."""
    try:
        await queue.remove(job_id)
    except NotFound:
        _log.debug("kept-job-gone", queue=queue.name, job=job_id)


def _words(error: Conflict | Invalid | RedisError) -> str:
    faults = "; ".join(f"{fault.field}: {fault.reason}" for fault in getattr(error, "faults", ()))
    return f"{error} ({faults})" if faults else str(error)
