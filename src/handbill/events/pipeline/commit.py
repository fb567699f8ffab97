"""The step that counts: one transaction moves the cursor and writes keys, rows, stats, drops and the manifest.

A batch the database rejects is halved until the poison rows stand alone; they are parked and the rest is counted. An
engine that is away is never poison: `Busy` passes through and the whole batch is tried again later. Nor is a database
that refuses for a reason of its own (a right, a table that is not there): the lane waits until that is mended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from handbill.events.batch import Batch, Parked, Sink
from handbill.events.model import Row
from handbill.events.pipeline.flood import Flood
from handbill.events.pipeline.steps import drop_key
from handbill.events.reasons import Reason
from handbill.events.store import EventStore
from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.kit.errors import Broken
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs

_log = logs.get("pipeline")
_OF_DATA = ("22", "23", "54")  # sqlstate classes: a value, a constraint, a limit of size; all else is no row's fault


class LaneLost(Exception):
    """Another worker owns the lane now, or has moved its cursor: nothing of this batch was written."""


class _Trial(Exception):
    """Ends a trial transaction, so that nothing of it stays."""


class Commit:
    def __init__(
        self,
        database: Database,
        store: EventStore,
        sinks: Sequence[Sink],
        ids: Ids,
        lease: timedelta,
        *,
        ships: bool = False,
    ) -> None:
        """`ships`: somebody will ship the batch; without, it is finished with the commit."""
        self._database = database
        self._store = store
        self._sinks = tuple(sinks)
        self._ids = ids
        self._lease = lease
        self._ships = ships
        self._flood = Flood()

    async def __call__(self, batch: Batch) -> Batch:
        for sink in self._sinks:
            await sink.prepare(batch.rows)
        try:
            await self._write(batch)
        except PostgresError as error:
            if not _of_data(error):
                raise
            most = self._flood.most(time.monotonic(), len(batch.rows))
            poison = await self._poison(batch, most)
            if not poison:  # every row passed alone: the failure was not in the data
                raise
            if len(poison) > most:
                raise Broken(
                    f"More than {most} of {len(batch.rows)} events were rejected ({error}); nothing was parked"
                    " and the lane waits: this is a fault of the installation, not of the events.",
                    code="POISON_FLOOD",
                ) from error
            _set_aside(batch, poison)
            await self._write(batch)
        self._flood.note(time.monotonic(), len(batch.rows), len(batch.parked))
        return batch

    async def _write(self, batch: Batch) -> None:
        """All or nothing. The batch learns what became of its rows only when the commit stands."""
        async with self._database.worker() as tx:
            if not await self._store.move_cursor(tx, batch, self._lease):
                raise LaneLost(batch.owned.lane)
            survivors = await self._keyed(tx, batch.rows)
            chosen = {row.place for row in survivors}
            copies = [row for row in batch.rows if row.place not in chosen]
            drops = batch.drops + Counter(drop_key(row, Reason.DUPLICATE) for row in copies)
            for sink in self._sinks:
                await sink.write(tx, survivors, batch.owned.number)
            await self._store.add_drops(tx, drops, batch.owned.number)
            await self._store.park(tx, batch.parked, batch.owned.lane, self._ids)
            batch_id = self._ids.new()
            await self._store.insert_batch(tx, batch, survivors, batch_id, waits=self._ships)
        batch.id, batch.survivors, batch.drops = batch_id, survivors, drops
        batch.refused += copies  # a copy may have moved a cap that had forgotten the first one

    async def _keyed(self, tx: Tx, rows: Sequence[Row]) -> list[Row]:
        fresh = await self._store.insert_keys(tx, rows)
        return [row for row in rows if (row.event.tenant, row.key) in fresh]

    async def _poison(self, batch: Batch, most: int) -> dict[int, PostgresError]:
        """The rows that fail by themselves, by place, found by halving; one more than `most` is enough to know."""
        found: dict[int, PostgresError] = {}
        suspects: list[Sequence[Row]] = [batch.rows]
        while suspects and len(found) <= most:
            rows = suspects.pop()
            error = await self._fails(rows, batch.owned.number)
            if error is None:
                continue
            if not _of_data(error):
                raise error
            if len(rows) == 1:
                found[rows[0].place] = error
            else:
                middle = len(rows) // 2
                suspects += [rows[middle:], rows[:middle]]
        return found

    async def _fails(self, rows: Sequence[Row], lane: int) -> PostgresError | None:
        """Try to write these rows alone, and undo it in any case."""
        try:
            async with self._database.worker() as tx:
                survivors = await self._keyed(tx, rows)
                for sink in self._sinks:
                    await sink.write(tx, survivors, lane)
                raise _Trial  # noqa: TRY301 - the way out of the transaction that undoes it
        except _Trial:
            return None
        except PostgresError as error:
            return error


def _of_data(error: PostgresError) -> bool:
    return error.sqlstate.startswith(_OF_DATA)


def _set_aside(batch: Batch, poison: dict[int, PostgresError]) -> None:
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
        batch.drops[drop_key(row, Reason.REJECTED)] += 1
        batch.refused.append(row)
        _log.warning("event-parked", lane=batch.owned.lane, reason=Reason.REJECTED, tenant=event.tenant, detail=detail)
    batch.rows = kept
