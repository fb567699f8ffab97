"""Every statement about corrected sequences: events of which the journal, and perhaps ClickHouse, has a larger one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from handbill.events.model import Row
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx

S = sqlfiles.load("handbill.events")
EventKey = tuple[int, bytes]
"""(tenant, key)"""


class Correction(NamedTuple):
    """The sequence that an event has by now."""

    tenant_id: int
    event_key: bytes
    sequence: int


class CorrectionStore:
    async def sequences(self, tx: Tx, rows: Sequence[Row]) -> Mapping[EventKey, int]:
        """The corrected sequences of these events. Nearly always no tenant has any, and that is all it asks."""
        tenants = {row[0] for row in await tx.fetch(S.corrected_tenants, sorted({row.event.tenant for row in rows}))}
        asked = [(row.event.tenant, row.key) for row in rows if row.event.tenant in tenants]
        if not asked:
            return {}
        found = await tx.fetch(S.corrected_sequences, [each[0] for each in asked], [each[1] for each in asked])
        return {(row["tenant_id"], row["event_key"]): row["sequence"] for row in found}

    async def due(self, tx: Tx, *, per_tenant: int, limit: int) -> list[Correction]:
        """Corrections that ClickHouse may not have."""
        return [Correction(*tuple(row)) for row in await tx.fetch(S.corrections_due, per_tenant, limit)]

    async def postpone(self, tx: Tx, corrections: Sequence[Correction]) -> None:
        """ClickHouse does not have these events yet."""
        if corrections:
            await tx.execute(S.postpone_corrections, *_columns(corrections))

    async def finish(self, tx: Tx, corrections: Sequence[Correction]) -> None:
        """ClickHouse has these events with the right sequences."""
        if corrections:
            await tx.execute(S.finish_corrections, *_columns(corrections))

    async def forget_finished(self, tx: Tx, before: datetime, limit: int) -> int:
        """Delete at most so many corrections that were finished before that time; how many."""
        return len(await tx.fetch(S.forget_finished_corrections, before, limit))

    async def forget_old(self, tx: Tx, before: datetime, limit: int) -> int:
        """Delete at most so many corrections from before that time, finished or not; how many."""
        return len(await tx.fetch(S.forget_old_corrections, before, limit))

    async def open(self, tx: Tx) -> int:
        """How many corrections ClickHouse may not have."""
        return int(await tx.fetchval(S.open_corrections))


def _columns(corrections: Sequence[Correction]) -> tuple[list[int], list[bytes], list[int]]:
    ordered = sorted(corrections)  # as the pipeline locks them
    return (
        [each.tenant_id for each in ordered],
        [each.event_key for each in ordered],
        [each.sequence for each in ordered],
    )
