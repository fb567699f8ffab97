"""The step that counts: one transaction moves the cursor and writes keys, rows, stats, drops and the manifest.

A batch the database rejects is halved until the poison rows stand alone; they are parked and the rest is counted. Of a
tenant above its budget (`flood`) all rows of the batch are parked; the other tenants' rows are counted. An
engine that is away is never poison: `Busy` passes through and the whole batch is tried again later. Nor is a database
that refuses for a reason of its own (a right, a table that is not there): the lane waits until that is mended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby

from handbill.events.batch import Batch, Parked, Sink
from handbill.events.model import Row, encode
from handbill.events.pipeline.flood import Flood
from handbill.events.pipeline.steps import drop_key
from handbill.events.reasons import Reason
from handbill.events.store import EventStore
from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.kit.errors import Broken
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

_log = logs.get("pipeline")
_OF_DATA = ("22", "23", "54")  # sqlstate classes: a value, a constraint, a limit of size; all else is no row's fault


class LaneLost(Exception):
    """Another worker owns the lane now, or has moved its cursor: nothing of this batch was written."""


class PoisonFlood(Broken):
    """Most tenants' events were rejected: nothing of this batch was written or parked."""

    def __init__(self, message: str, tenant_ids: frozenset[int]) -> None:
        super().__init__(message, code="POISON_FLOOD")
        self.tenant_ids = tenant_ids


class _Trial(Exception):
    """Ends a trial transaction, so that nothing of it stays."""


@dataclass
class _Poison:
    """What the trials of one batch found: errors of single rows by place, tenants above their budget, and tenants of
    whom the database took something."""

    errors: dict[int, PostgresError] = field(default_factory=dict)
    flooding: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)


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
            poison = await self._poison(batch)
            if not poison.errors:  # every row passed alone: the failure was not in the data
                raise
            if poison.flooding and self._flood.is_installation_fault(
                time.monotonic(), poison.flooding, poison.accepted
            ):
                raise PoisonFlood(
                    f"The events of {len(poison.flooding)} tenants in one batch were rejected ({error}) and those of"
                    f" {len(poison.accepted)} were not; nothing was parked and the lane waits: this is a fault of the"
                    " installation, not of the events.",
                    frozenset(poison.flooding),
                ) from error
            _set_aside(batch, poison)
            await self._write(batch)
        self._note(batch)
        return batch

    def _note(self, batch: Batch) -> None:
        now = time.monotonic()
        parked = Counter(item.tenant for item in batch.parked if item.tenant is not None)
        self._flood.note(now, Counter(row.event.tenant for row in batch.survivors), parked)
        metrics.EVENTS_FLOODING_TENANTS.set(self._flood.flooding(now))

    async def try_tenants(self, rows: Sequence[Row], lane: int) -> bool:
        """Try one row of each tenant, undone in any case, and remember whose were accepted: was any?"""
        accepted: set[int] = set()
        for row in {row.event.tenant: row for row in rows}.values():
            await self._fails([row], lane, accepted)
        self._flood.note(time.monotonic(), dict.fromkeys(accepted, 1), {})
        return bool(accepted)

    async def _write(self, batch: Batch) -> None:
        """All or nothing. The batch learns what became of its rows only when the commit stands."""
        async with self._database.worker() as tx:
            if not await self._store.move_cursor(tx, batch, self._lease):
                raise LaneLost(batch.owned.lane)
            survivors, copies = await self._count(tx, batch.rows, batch.owned.number)
            drops = batch.drops + Counter(drop_key(row, Reason.DUPLICATE) for row in copies)
            await self._store.add_drops(tx, drops, batch.owned.number)
            await self._store.park(tx, batch.parked, batch.owned.lane, self._ids)
            batch_id = self._ids.new()
            await self._store.insert_batch(tx, batch, survivors, batch_id, waits=self._ships)
        batch.id, batch.survivors, batch.drops = batch_id, survivors, drops
        batch.refused += copies  # a copy may have moved a cap that had forgotten the first one

    async def _count(self, tx: Tx, rows: Sequence[Row], lane: int) -> tuple[list[Row], list[Row]]:
        """Write what is new, and the sequences of copies that are smaller; the answer is new rows, and copies."""
        fresh = await self._store.insert_keys(tx, rows)
        survivors: list[Row] = []
        copies: list[Row] = []
        for row in rows:
            (survivors if (row.event.tenant, row.key) in fresh else copies).append(row)
        lowered = await self._store.lower_sequences(tx, copies)
        await self._store.correct_sequences(tx, [row for row in survivors if row.lowered] + lowered)
        for sink in self._sinks:
            await sink.write(tx, survivors, lane, lowered)
        return survivors, copies

    async def _poison(self, batch: Batch) -> _Poison:
        """The rows that fail by themselves, found by halving: first between tenants, then between a tenant's rows."""
        poison = _Poison()
        suspects = [[list(rows) for _, rows in groupby(batch.rows, key=_tenant)]]
        while suspects:
            tenants = suspects.pop()
            rows = [row for group in tenants for row in group]
            if await self._fails(rows, batch.owned.number, poison.accepted) is None:
                continue
            if len(tenants) > 1:
                middle = len(tenants) // 2
                suspects += [tenants[middle:], tenants[:middle]]
            else:
                await self._poison_of_tenant(rows, batch.owned.number, poison)
        return poison

    async def _poison_of_tenant(self, rows: Sequence[Row], lane: int, poison: _Poison) -> None:
        """One row more than the tenant's budget is enough to know that it is above it."""
        budget = self._flood.budget(time.monotonic(), _tenant(rows[0]), len(rows))
        errors: dict[int, PostgresError] = {}
        suspects = [rows]
        while suspects and len(errors) <= budget:
            some = suspects.pop()
            error = await self._fails(some, lane, poison.accepted)
            if error is None:
                continue
            if len(some) == 1:
                errors[some[0].place] = error
            else:
                middle = len(some) // 2
                suspects += [some[middle:], some[:middle]]
        poison.errors |= errors
        if len(errors) > budget:
            poison.flooding.add(_tenant(rows[0]))

    async def _fails(self, rows: Sequence[Row], lane: int, accepted: set[int]) -> PostgresError | None:
        """Try to write these rows alone, and undo it in any case. `accepted` learns whose rows were taken.

        Raises the error if it is not about the rows.
        """
        try:
            async with self._database.worker() as tx:
                survivors, _ = await self._count(tx, rows, lane)
                raise _Trial  # noqa: TRY301 - the way out of the transaction that undoes it
        except _Trial:
            accepted.update(map(_tenant, survivors))  # a copy of an earlier event proves nothing
            return None
        except PostgresError as error:
            if not _of_data(error):
                raise
            return error


def _tenant(row: Row) -> int:
    return row.event.tenant


def _of_data(error: PostgresError) -> bool:
    return error.sqlstate.startswith(_OF_DATA)


def _set_aside(batch: Batch, poison: _Poison) -> None:
    """Move the poison rows, and all rows of flooding tenants, into the parked ones and the drop counts."""
    kept: list[Row] = []
    for row in batch.rows:
        error = poison.errors.get(row.place)
        event = row.event
        if error is not None:
            reason, detail = Reason.REJECTED, f"sqlstate {error.sqlstate} {error.constraint or ''}".strip()
            _log.warning("event-parked", lane=batch.owned.lane, reason=reason, tenant=event.tenant, detail=detail)
        elif event.tenant in poison.flooding:
            reason, detail = Reason.TOO_MANY_REJECTED, "not tried by itself"
        else:
            kept.append(row)
            continue
        body = encode(event) if row.lowered else row.body  # its copy with the smaller sequence does not come again
        batch.parked.append(Parked(event.tenant, event.kind, event.id, reason, detail, body))
        batch.drops[drop_key(row, reason)] += 1
        batch.refused.append(row)
    for tenant_id in sorted(poison.flooding):
        _log.error("pipeline.tenant_above_parking_budget", lane=batch.owned.lane, tenant_id=tenant_id)
    batch.rows = kept
