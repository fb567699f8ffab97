"""Exports of a person: collected by the worker, kept for a day, fetched by their tenant.

An export only reads, so a worker that died is followed by one that starts it again. See docs/states/request.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict, NotFound, Throttled
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs
from handbill.tenants import person_store as store
from handbill.tenants.audit import Audit
from handbill.tenants.erasure import QUEUE, Erasures
from handbill.tenants.model import Export, PersonExport

EXPORT = "export-person"
EXPORT_ROWS = 10_000
"""Rows of one export in all: of every id, package and table of the person."""
EXPORT_BYTES = 16 << 20
"""Bytes of these rows as JSON, in all."""
KEPT_FOR = timedelta(hours=24)
MAX_EXPORTS = 20
"""Exports of one tenant that wait, run or are kept."""

log = logs.get("tenants")


class Exports:
    def __init__(
        self, database: Database, outbox: Outbox, audit: Audit, erasures: Erasures, clock: Clock, ids: Ids
    ) -> None:  # fmt: skip
        self._database = database
        self._outbox = outbox
        self._audit = audit
        self._erasures = erasures
        self._clock = clock
        self._ids = ids

    async def request(self, tenant_id: int, subject: str, *, actor: str) -> PersonExport:
        """Record an export and its job, in one transaction. Raises Throttled while the tenant has too many."""
        now, export_id = self._clock.now(), self._ids.new()
        steps = len(self._erasures.exporters)
        new = store.NewExport(export_id, subject, steps, actor, now, now + KEPT_FOR)
        async with self._database.tenant(tenant_id) as tx:
            if await store.count_exports(tx, tenant_id, now) >= MAX_EXPORTS:
                raise Throttled(
                    f"{MAX_EXPORTS} exports of this tenant are kept; each goes 24 hours after it was made.",
                    code="TOO_MANY_EXPORTS",
                    retry_after=3_600,
                )
            export = await store.open_export(tx, tenant_id, new)
            digest = hashlib.sha256(f"{tenant_id}\0{subject}".encode()).hexdigest()[:16]
            await self._audit.write(tx, tenant_id, actor=actor, action="person.export", object=f"subject {digest}")
            await self._outbox.put(tx, QUEUE, EXPORT, {"request_id": str(export_id)}, tenant_id=tenant_id)
        return export

    async def run(self, tenant_id: int, export_id: UUID) -> None:
        """Collect the rows and keep them. Nothing happens if it has ended, or its person was erased meanwhile."""
        async with self._database.tenant(tenant_id) as tx:
            steps = len(self._erasures.exporters)
            subject = await store.begin_export(tx, tenant_id, export_id, steps, self._clock.now())
        if subject is None:
            return
        ids = await self._erasures.ids_of(tenant_id, subject)
        async with self._database.tenant(tenant_id) as tx:
            await store.record_export_ids(tx, tenant_id, export_id, ids)
        export = await self._collect(tenant_id, export_id, subject, ids)
        now = self._clock.now()
        outcome = store.ExportOutcome("done", now, now + KEPT_FOR, msgspec.json.encode(export))
        async with self._database.tenant(tenant_id) as tx:
            await store.close_export(tx, tenant_id, export_id, outcome)

    async def fail(self, tenant_id: int, export_id: UUID) -> None:
        """Its job failed for good: so has the export."""
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            outcome = store.ExportOutcome("failed", now, now + KEPT_FOR, error="JOB_FAILED")
            await store.close_export(tx, tenant_id, export_id, outcome)

    async def get(self, tenant_id: int, export_id: UUID) -> PersonExport:
        """Raises NotFound for one that has expired, and for another tenant's."""
        async with self._database.tenant(tenant_id) as tx:
            export = await store.read_export(tx, tenant_id, export_id, self._clock.now())
        if export is None:
            raise _missing()
        return export

    async def result(self, tenant_id: int, export_id: UUID) -> bytes:
        """The `Export` as JSON. Raises NotFound as `get` does, and Conflict while there is no result."""
        async with self._database.tenant(tenant_id) as tx:
            row = await store.read_export_result(tx, tenant_id, export_id, self._clock.now())
        if row is None:
            raise _missing()
        status, result = row
        if result is None:
            raise Conflict(f"The export is {status}; it has no result.", code="EXPORT_NOT_READY")
        return result

    async def _collect(self, tenant_id: int, export_id: UUID, subject: str, ids: Sequence[str]) -> Export:
        """Everything the packages keep about these ids; a package whose engine is away is named instead."""
        collected = _Collected(EXPORT_ROWS, EXPORT_BYTES)
        away: list[str] = []
        for room, exporter in self._erasures.exporters.items():
            try:
                collected.add(room, {})
                for each in ids:
                    if collected.is_full:
                        collected.cut.add(room)  # whether it has more was not asked
                        break
                    collected.add(room, await exporter(tenant_id, each, collected.rows_left + 1))
            except Busy as error:
                away.append(room)
                log.warning("export-without-a-room", tenant=tenant_id, room=room, code=error.code)
            counts = {table: len(rows) for table, rows in collected.rooms[room].items()}
            async with self._database.tenant(tenant_id) as tx:
                await store.record_export_step(tx, tenant_id, export_id, room, counts)
        return Export(subject, list(ids), collected.rooms, sorted(collected.cut), away)


class _Collected:
    """The rows of one export so far, by package and table; never more rows or bytes than it may hold."""

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.rows_left = max_rows
        self._bytes_left = max_bytes
        self.is_full = False
        self.cut: set[str] = set()
        self.rooms: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def add(self, room: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        kept = self.rooms.setdefault(room, {})
        for table, rows in tables.items():
            some = kept.setdefault(table, [])
            for row in rows:
                size = len(msgspec.json.encode(row)) + 1
                if not self.rows_left or size > self._bytes_left:
                    self.is_full = True
                    self.cut.add(table)
                    break
                some.append(dict(row))
                self.rows_left -= 1
                self._bytes_left -= size
        self.is_full = self.is_full or not self.rows_left


def _missing() -> NotFound:
    return NotFound("There is no such export, or it has expired.", code="EXPORT_NOT_FOUND")
