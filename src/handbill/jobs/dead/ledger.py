"""The ledger follows every queue's own events and writes down how its jobs ended.

A job that is over no longer needs its outbox row; one that failed for good becomes a dead letter, whoever failed it:
our worker, a sweep of another program, a person in Bull Board. Events may be trimmed before they are read, so the
failed set is compared with the dead letters now and then. Seen twice is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.infra.redis import Redis
from handbill.jobs import store
from handbill.jobs.dead import letters
from handbill.jobs.keys import QueueKeys
from handbill.jobs.model import Job, read_job
from handbill.jobs.records import NewDeadLetter
from handbill.jobs.wire import from_wire
from handbill.kit.clock import from_ms
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

_log = logs.get("ledger")
PAGE = 500
OVER = frozenset({b"completed", b"failed", b"removed"})


class Ending(msgspec.Struct, frozen=True):
    """One event that says a job is over. `at_ms` is the event's time by Redis' clock."""

    kind: str
    wire_id: str
    at_ms: int
    reason: str = ""

    @property
    def job_id(self) -> str:
        return from_wire(self.wire_id)


class Ledger:
    def __init__(self, database: Database, redis: Redis, *, prefix: str = "bull", ids: Ids | None = None) -> None:
        self._database = database
        self._redis = redis
        self._prefix = prefix
        self._ids = ids or Ids()
        self.positions: dict[str, str] = {}
        """The last event read of each queue, as far as this process knows: where to listen on from."""

    async def read(self, queue: str) -> int:
        """Read on from the cursor, one page in one transaction. Returns how many events there were."""
        async with self._database.worker() as tx:
            cursor = await store.hold_event_cursor(tx, queue)
            if cursor is None:
                await store.open_event_cursor(tx, queue)
                cursor = await store.hold_event_cursor(tx, queue)
            if cursor is None:
                return 0  # another ledger is at it
            entries = await self._redis.call("XRANGE", self._keys(queue)["events"], f"({cursor}", "+", "COUNT", PAGE)
            self.positions[queue] = entries[-1][0].decode() if entries else cursor
            if not entries:
                return 0
            await self._record(tx, queue, [ending for entry in entries if (ending := _ending(*entry)) is not None])
            await store.move_event_cursor(tx, queue, entries[-1][0].decode())
        return len(entries)

    async def read_all(self, queue: str) -> int:
        """Read to the end of the stream as it is now."""
        total = 0
        while count := await self.read(queue):
            total += count
            if count < PAGE:
                break
        return total

    async def reconcile(self, queue: str, most: int = 10_000) -> int:
        """Compare the failed set with the dead letters; what is missing is written."""
        found = 0
        for start in range(0, most, PAGE):
            page = await self._redis.call(
                "ZRANGE", self._keys(queue)["failed"], start, start + PAGE - 1, "REV", "WITHSCORES"
            )
            failed = {_text(member): int(float(score)) for member, score in zip(page[::2], page[1::2], strict=True)}
            if failed:
                found += await self.bury(queue, failed)
            if len(failed) < PAGE:
                break
        return found

    async def bury(self, queue: str, failed: Mapping[str, int]) -> int:
        """Write those of these failed jobs (wire id -> time of the failure) that have no dead letter yet."""
        async with self._database.worker() as tx:
            known = await store.known_failures(tx, queue, [from_wire(wire) for wire in failed])
            missing = [
                Ending("failed", wire, at)
                for wire, at in failed.items()
                if (seen := known.get(from_wire(wire))) is None or seen < letters.moment(at)
            ]
            return await self._bury_all(tx, queue, missing, source="reconciled")

    async def _record(self, tx: Tx, queue: str, endings: Sequence[Ending]) -> None:
        failed = [ending for ending in endings if ending.kind == "failed"]
        over = [ending for ending in endings if ending.kind != "failed"]
        await self._bury_all(tx, queue, failed, source="event")
        if over:
            count = await store.settle_jobs(tx, queue, [(ending.job_id, ending.at_ms) for ending in over])
            metrics.OUTBOX_SETTLED.labels(queue, "over").inc(count)
        done = [(ending.job_id, from_ms(ending.at_ms)) for ending in endings if ending.kind == "completed"]
        if done:
            await store.recover_dead(tx, queue, done)

    async def _bury_all(self, tx: Tx, queue: str, failed: Sequence[Ending], *, source: str) -> int:
        if not failed:
            return 0
        jobs = await self._jobs(queue, [ending.wire_id for ending in failed])
        rows = await store.relayed_rows(tx, queue, [ending.job_id for ending in failed])
        buried, settled = 0, []
        for ending, job in zip(failed, jobs, strict=True):
            if job is not None and (job.finished_on is None or job.failed_reason is None):
                continue  # somebody has set it going again in the meantime
            letter = self._letter(queue, ending, job, rows, source)
            # The root cause first: if writing it down fails, the log has it.
            _log.error(
                "job-dead",
                queue=queue,
                job=letter.job_id,
                name=letter.name,
                tenant=letter.tenant_id,
                attempts=letter.attempts,
                reason=letter.reason,
            )
            if await self._bury(tx, letter):
                metrics.DEAD_LETTERS.labels(queue).inc()
                buried += 1
            settled.append((ending.job_id, max(ending.at_ms, job.finished_on or 0 if job else 0)))
        if settled:
            count = await store.settle_jobs(tx, queue, settled)
            metrics.OUTBOX_SETTLED.labels(queue, "failed").inc(count)
        return buried

    async def _bury(self, tx: Tx, letter: NewDeadLetter) -> bool:
        """Write the letter; data that PostgreSQL does not take must not keep the others from being written."""
        try:
            async with tx.savepoint():
                return await store.bury(tx, letter) is not None
        except PostgresError as error:
            _log.error("dead-letter-data-refused", queue=letter.queue, job=letter.job_id, reason=error.message)
            bare = msgspec.structs.replace(letter, data='"(not storable as JSON)"', opts="{}")
            return await store.bury(tx, bare) is not None

    def _letter(self, queue: str, ending: Ending, job: Job | None, rows: dict[str, Any], source: str) -> NewDeadLetter:
        if job is not None:
            return letters.from_job(self._ids.new(), job, job.finished_on or ending.at_ms, source)
        row = rows.get(ending.job_id)
        if row is not None:
            return letters.from_row(self._ids.new(), row, ending.reason, ending.at_ms)
        return letters.from_event(self._ids.new(), queue, ending.job_id, ending.reason, ending.at_ms)

    async def _jobs(self, queue: str, wire_ids: Sequence[str]) -> list[Job | None]:
        keys = self._keys(queue)
        found = await self._redis.many([("HGETALL", keys.job(wire_id)) for wire_id in wire_ids])
        return [
            read_job(queue, wire_id, dict(zip(flat[::2], flat[1::2], strict=True))) if flat else None
            for wire_id, flat in zip(wire_ids, found, strict=True)
        ]

    def _keys(self, queue: str) -> QueueKeys:
        return QueueKeys(self._prefix, queue)


def _ending(entry_id: bytes, flat: Sequence[bytes]) -> Ending | None:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    kind, wire_id = fields.get(b"event"), fields.get(b"jobId")
    if kind not in OVER or not wire_id:
        return None
    at_ms = int(entry_id.partition(b"-")[0])
    reason = fields.get(b"failedReason", b"").decode(errors="replace")
    return Ending(kind.decode(), _text(wire_id), at_ms, reason)


def _text(wire_id: bytes) -> str:
    """An id that another program's worker ended, as PostgreSQL takes it."""
    return wire_id.decode(errors="replace").replace("\x00", "\ufffd")
