"""Looks after rows whose job should be over: what a lost Redis forgot is relayed again.

A row stays `relayed` until its job's own events say that it is over. When the events were trimmed, or Redis was wiped,
nobody says it; then Redis is asked. A job that is there and unfinished is left alone; a finished one is settled; one
that is nowhere goes back to pending, after the ledger has read every event there is. Its handler recognises an effect
that was done before (`handled_once`), so in doubt work is repeated, never lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs import store
from handbill.jobs.dead.ledger import Ledger
from handbill.jobs.keys import QueueKeys
from handbill.jobs.records import Stale
from handbill.jobs.wire import to_wire
from handbill.kit.telemetry import logs, metrics

_log = logs.get("sweeper")
PAGE = 500
_ENDS = ("completed", "failed")
_FIRST = ("", "")


class Sweeper:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        ledger: Ledger,
        *,
        prefix: str = "bull",
        grace_s: float = 60.0,
        handled_days: float = 35.0,
    ) -> None:
        self._database = database
        self._redis = redis
        self._ledger = ledger
        self._prefix = prefix
        self._grace_s = grace_s
        self._handled_s = handled_days * 86_400

    async def sweep(self, queue: str | None = None) -> int:
        """Once over the rows relayed more than the grace ago. Returns how many are pending again."""
        after, requeued = _FIRST, 0
        while True:
            async with self._database.worker() as tx:
                page = await store.stale_relayed(tx, after, self._grace_s, PAGE, queue)
            if page:
                requeued += await self._look_into(page)
                after = (page[-1].queue, page[-1].job_id)
            if len(page) < PAGE:
                return requeued

    async def prune(self) -> int:
        """Forget effects that were done longer ago than anything could still repeat them."""
        return await store.prune_handled(self._database, self._handled_s)

    async def _look_into(self, page: Sequence[Stale]) -> int:
        done: list[Stale] = []
        failed: dict[str, dict[str, int]] = {}
        missing: dict[str, list[Stale]] = {}
        for row, (there, completed, failed_ms) in zip(page, await self._states(page), strict=True):
            if failed_ms is not None:
                failed.setdefault(row.queue, {})[to_wire(row.job_id)] = int(float(failed_ms))
            if row.handled or completed is not None or failed_ms is not None:
                done.append(row)
            elif not there:
                missing.setdefault(row.queue, []).append(row)
        for queue, jobs in failed.items():
            await self._ledger.bury(queue, jobs)
        if done:
            async with self._database.worker() as tx:
                await store.drop_rows(tx, [row.id for row in done])
            for row in done:
                metrics.OUTBOX_SETTLED.labels(row.queue, "swept").inc()
        return sum([await self._requeue(queue, rows) for queue, rows in missing.items()])

    async def _states(self, page: Sequence[Stale]) -> list[tuple[int, bytes | None, bytes | None]]:
        """For each row: is its job there, and has it completed or failed?"""
        commands: list[tuple[str, ...]] = []
        for row in page:
            keys = QueueKeys(self._prefix, row.queue)
            wire_id = to_wire(row.job_id)
            commands += [("EXISTS", keys.job(wire_id)), *(("ZSCORE", keys[end], wire_id) for end in _ENDS)]
        replies = await self._redis.many(commands)
        return list(zip(replies[::3], replies[1::3], replies[2::3], strict=True))

    async def _requeue(self, queue: str, rows: Sequence[Stale]) -> int:
        """The job is nowhere: it finished and was removed, or Redis lost it. The events tell, as far as they reach."""
        await self._ledger.read_all(queue)
        async with self._database.worker() as tx:
            count = await store.requeue_rows(tx, [row.id for row in rows])
        if count:
            metrics.OUTBOX_REQUEUED.labels(queue).inc(count)
            _log.warning("outbox-requeued", queue=queue, rows=count, detail="Redis had no trace of their jobs")
        return count
