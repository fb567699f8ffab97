"""The step that counts: one transaction moves the cursor and writes keys, rows, stats, drops and the manifest.

A batch the database rejects is halved until the poison rows stand alone; they are parked and the rest is counted. An
engine that is away is never poison: `Busy` passes through and the whole batch is tried again later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from handbill.events.batch import Batch, Parked, Sink
from handbill.events.model import Row
from handbill.events.pipeline.steps import count_drop
from handbill.events.reasons import Reason
from handbill.events.store import EventStore
from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.kit.errors import Broken
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

_log = logs.get("pipeline")
_FLOOD_FROM = 20  # below this many poison rows a batch may consist of nothing else


class LaneLost(Exception):
    """Another worker owns the lane now, or has moved its cursor: nothing of this batch was written."""


class _Trial(Exception):
    """Ends a trial transaction, so that nothing of it stays."""


class Commit:
    def __init__(
        self, database: Database, store: EventStore, sinks: Sequence[Sink], ids: Ids, lease: timedelta
    ) -> None:
        self._database = database
        self._store = store
        self._sinks = tuple(sinks)
        self._ids = ids
        self._lease = lease

    async def __call__(self, batch: Batch) -> Batch:
        for sink in self._sinks:
            await sink.prepare(batch.rows)
        try:
            await self._write(batch)
        except PostgresError as error:
            poison = await self._poison(batch.rows)
            if not poison:  # it passed row by row: the failure was not in the data
                raise
            if len(poison) > _FLOOD_FROM and len(poison) * 2 > len(batch.rows):
                raise Broken(
                    f"{len(poison)} of {len(batch.rows)} events were rejected ({error}); nothing was parked and"
                    " the lane waits: this is a fault of the installation, not of the events",
                    code="POISON_FLOOD",
                ) from error
            self._set_aside(batch, poison)
            await self._write(batch)
        return batch

    async def _write(self, batch: Batch) -> None:
        async with self._database.worker() as tx:
            if not await self._store.move_cursor(tx, batch, self._lease):
                raise LaneLost(batch.owned.lane)
            survivors = await self._keyed(tx, batch.rows)
            drops = batch.drops.copy()
            chosen = {row.place for row in survivors}
            copies = [row for row in batch.rows if row.place not in chosen]
            for row in copies:
                count_drop(batch, row, Reason.DUPLICATE)
            batch.survivors = survivors
            try:
                for sink in self._sinks:
                    await sink.write(tx, survivors, batch.owned.number)
                await self._store.add_drops(tx, batch.drops, batch.owned.number)
                await self._store.park(tx, batch.parked, batch.owned.lane, self._ids)
                await self._store.insert_batch(tx, batch, self._ids.new())
            except BaseException:
                batch.drops, batch.survivors = drops, []  # the transaction is gone, and what it knew with it
                raise
        batch.refused += copies  # a copy may have moved a cap that had forgotten the first one

    async def _keyed(self, tx: Tx, rows: Sequence[Row]) -> list[Row]:
        fresh = await self._store.insert_keys(tx, rows)
        return [row for row in rows if (row.event.tenant, row.key) in fresh]

    async def _poison(self, rows: Sequence[Row]) -> dict[int, PostgresError]:
        """The rows that fail by themselves, by place, found by halving; each trial is rolled back."""
        if not rows:
            return {}
        error = await self._fails(rows)
        if error is None:
            return {}
        if len(rows) == 1:
            return {rows[0].place: error}
        middle = len(rows) // 2
        return await self._poison(rows[:middle]) | await self._poison(rows[middle:])

    async def _fails(self, rows: Sequence[Row]) -> PostgresError | None:
        try:
            async with self._database.worker() as tx:
                survivors = await self._keyed(tx, rows)
                for sink in self._sinks:
                    await sink.write(tx, survivors, 0)
                raise _Trial  # noqa: TRY301 - the way out of the transaction that undoes it
        except _Trial:
            return None
        except PostgresError as error:
            return error

    def _set_aside(self, batch: Batch, poison: dict[int, PostgresError]) -> None:
        """Move the poison rows out of the batch, into the parked ones and the drop counts."""
        kept: list[Row] = []
        for row in batch.rows:
            error = poison.get(row.place)
            if error is None:
                kept.append(row)
                continue
            event = row.event
            detail = f"sqlstate {error.sqlstate} {error.constraint or ''}".strip()
            batch.parked.append(Parked(event.tenant, event.kind, event.id, Reason.REJECTED, detail, row.body))
            count_drop(batch, row, Reason.REJECTED)
            batch.refused.append(row)
            metrics.EVENTS_PARKED.labels(Reason.REJECTED).inc()
            _log.warning(
                "event-parked", lane=batch.owned.lane, reason=Reason.REJECTED, tenant=event.tenant, detail=detail
            )
        batch.rows = kept
