"""The auditor of exports: counts the rows of each exported batch once more, while the journal still has its events.

A batch is done when ClickHouse has counted its rows. An engine can still lose them afterwards: a crash of the machine
without fsync, a disk that was replaced, a table restored from a copy. What is missing is exported again as long
as the journal has it; what it has no more is written down as lost, metered and logged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from handbill.events.history import expired
from handbill.events.model import Row
from handbill.events.shipping_insert import Shipping
from handbill.events.shipping_store import Exported
from handbill.infra.postgres import Tx
from handbill.kit.clock import Clock, from_ms
from handbill.kit.telemetry import logs, metrics

_log = logs.get("export_audit")


class AuditPolicy(msgspec.Struct, frozen=True):
    """A batch is counted again `after_s` seconds after it was done, `max_batches` of them at a time."""

    after_s: float = 30.0
    max_batches: int = 500


class AuditReport(msgspec.Struct, frozen=True):
    """What one audit found: batches whose rows are all there, batches sent back to the exporter, and rows lost."""

    complete: int = 0
    requeued: int = 0
    lost_rows: int = 0

    def __add__(self, other: AuditReport) -> AuditReport:
        return AuditReport(
            self.complete + other.complete, self.requeued + other.requeued, self.lost_rows + other.lost_rows
        )


class ExportAuditor:
    def __init__(self, shipping: Shipping, clock: Clock, policy: AuditPolicy | None = None) -> None:
        self._shipping = shipping
        self._clock = clock
        self._policy = policy or AuditPolicy()

    async def run(self) -> AuditReport:
        """Audit every batch that is due. Raises Busy while an engine does not answer: the batches stay due."""
        report = AuditReport()
        while True:
            older = timedelta(seconds=self._policy.after_s)
            async with self._shipping.database.worker() as tx:
                due = await self._shipping.store.unaudited(tx, older, self._policy.max_batches)
            if due:
                report += await self._audit(due)
            if len(due) < self._policy.max_batches:
                break
        async with self._shipping.database.worker() as tx:
            metrics.EXPORT_AUDIT_AGE_SECONDS.set(await self._shipping.store.audit_age(tx))
        return report

    async def _audit(self, due: Sequence[Exported]) -> AuditReport:
        stored = await self._shipping.stored([each.load.id for each in due])
        complete: list[UUID] = []
        requeue: list[UUID] = []
        lost: dict[UUID, int] = {}
        for each in due:
            load = each.load
            if stored[load.id] > load.rows:
                metrics.EXPORT_ROWS_DOUBLED.inc(stored[load.id] - load.rows)
                _log.error("export.rows_doubled", lane=each.lane, batch=str(load.id), rows=stored[load.id] - load.rows)
            if stored[load.id] >= load.rows:
                complete.append(load.id)
                continue
            rows = await self._shipping.survivors(each.lane, load)
            if rows is None:
                lost[load.id] = load.rows - stored[load.id]
            elif missing := await self._missing([row for row in rows if row.place not in load.refused]):
                requeue.append(load.id)
                metrics.EXPORT_ROWS_MISSING.inc(missing)
                _log.error("export.batch_requeued", lane=each.lane, batch=str(load.id), missing=missing, of=load.rows)
            else:
                complete.append(load.id)
        async with self._shipping.database.worker() as tx:
            await self._shipping.store.mark_audited(tx, complete)
            requeued = await self._shipping.store.requeue(tx, requeue)
            lost_rows = await self._lose(tx, lost)
        if lost_rows:
            metrics.EXPORT_ROWS_LOST.inc(lost_rows)
        return AuditReport(len(complete), requeued, lost_rows)

    async def _lose(self, tx: Tx, lost: dict[UUID, int]) -> int:
        total = 0
        for batch_id, rows in lost.items():
            if new := await self._shipping.store.lose_rows(tx, batch_id, rows):
                total += new
                _log.error(
                    "export.rows_lost", batch=str(batch_id), rows=new,
                    detail="ClickHouse had counted these and lost them; the journal has let go of them",
                )  # fmt: skip
        return total

    async def _missing(self, rows: Sequence[Row]) -> int:
        """Rows that should be there and are not; a month that retention has dropped meanwhile is not missing."""
        missing = await self._shipping.missing(rows)
        if not missing:
            return 0
        classes = await self._shipping.classes({row.event.tenant for row in missing})
        months = Counter((classes.get(row.event.tenant, 0), from_ms(row.event.at).strftime("%Y%m")) for row in missing)
        now = self._clock.now()
        return sum(number for (days, month), number in months.items() if not expired(f"({days},{month})", now))
