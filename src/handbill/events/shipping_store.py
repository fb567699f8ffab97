"""Every statement of shipping, one method each: groups of batches, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx

S = sqlfiles.load("handbill.events")
_classes = msgspec.json.Decoder(dict[int, int])
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Load(msgspec.Struct, frozen=True):
    """A committed batch that waits for ClickHouse: its range, who survived, and which rows were refused there."""

    id: UUID
    start: str
    end: str
    survivors: bytes
    events: int
    refused: frozenset[int] = frozenset()
    created_at: datetime = _LONG_AGO
    requeued: bool = False
    """The auditor found rows of it missing: some may be there, and an erasure may have come in between."""

    @property
    def rows(self) -> int:
        """How many rows ClickHouse should have of it."""
        return int.from_bytes(self.survivors, "big").bit_count() - len(self.refused)

    def survived(self, place: int) -> bool:
        return bool(self.survivors[place >> 3] >> (place & 7) & 1)


class Exported(msgspec.Struct, frozen=True):
    """A batch that was counted in ClickHouse when it was exported, and not since."""

    lane: str
    load: Load


class Group(msgspec.Struct, frozen=True):
    """What is inserted together, under its own id as the token. `classes`: retention by tenant, as first decided."""

    id: UUID
    loads: tuple[Load, ...]
    classes: Mapping[int, int]


class LostBatch(msgspec.Struct, frozen=True):
    """A range of a lane of which neither the journal nor ClickHouse has `events`. PostgreSQL has counted them."""

    id: UUID
    lane: str
    from_cursor: str
    to_cursor: str
    events: int
    created_at: datetime
    lost_at: datetime


class Unshipped(NamedTuple):
    """What ClickHouse does not have yet of one lane: events, age of the oldest batch, and when that batch was made."""

    events: int
    seconds: float
    oldest: datetime


class ShippingStore:
    async def waiting(self, tx: Tx, lane: str, most: int) -> tuple[Load, ...]:
        return _loads(await tx.fetch(S.waiting_batches, lane, most))

    async def write_group(self, tx: Tx, group: Group, lane: str) -> bool:
        """False: somebody else has taken one of its batches; the caller undoes the transaction."""
        ids = [load.id for load in group.loads]
        taken = await tx.fetch(S.take_batches, group.id, ids)
        await tx.execute(S.write_group, group.id, lane, msgspec.json.encode(dict(group.classes)).decode())
        return len(taken) == len(ids)

    async def open_groups(self, tx: Tx, lane: str) -> list[Group]:
        """Groups that somebody began to ship and nobody has finished."""
        found = await tx.fetch(S.open_groups, lane)
        return [
            Group(row["id"], _loads(await tx.fetch(S.batches_of, row["id"])), _classes.decode(row["classes"]))
            for row in found
        ]

    async def finish(self, tx: Tx, group_id: UUID) -> None:
        await tx.execute(S.finish_batches, group_id)
        await tx.execute(S.end_group, group_id)

    async def lose(self, tx: Tx, batches: Sequence[UUID]) -> int:
        """Write down that these could not be shipped; how many events were in them."""
        return sum(row["events"] for row in await tx.fetch(S.lose_batches, list(batches)))

    async def refuse(self, tx: Tx, batch_id: UUID, places: Sequence[int]) -> bool:
        """False: it was written down before."""
        return await tx.fetchval(S.refuse_rows, batch_id, list(places)) is not None

    async def open_ids(self, tx: Tx) -> list[UUID]:
        return [row["id"] for row in await tx.fetch(S.all_open_groups)]

    async def unshipped(self, tx: Tx) -> dict[str, Unshipped]:
        """Per lane: events that ClickHouse does not have yet, and the age of the oldest batch of them."""
        rows = await tx.fetch(S.unshipped)
        return {row["lane"]: Unshipped(row["events"], row["seconds"], row["oldest"]) for row in rows}

    async def unshipped_from(self, tx: Tx) -> dict[str, tuple[str, float]]:
        """Of each lane with events that ClickHouse does not have: the cursor before the first of them, and the seconds
        since they were committed."""
        return {row["lane"]: (row["from_cursor"], row["seconds"]) for row in await tx.fetch(S.unshipped_from)}

    async def unaudited(self, tx: Tx, older: timedelta, limit: int) -> list[Exported]:
        """Batches that were done so long ago and not counted again since, the oldest first."""
        return [Exported(row["lane"], _load(row)) for row in await tx.fetch(S.unaudited_batches, older, limit)]

    async def audit_age(self, tx: Tx) -> float:
        """Seconds since the oldest batch was done that was not counted again."""
        return float(await tx.fetchval(S.audit_age))

    async def mark_audited(self, tx: Tx, batches: Sequence[UUID]) -> None:
        await tx.execute(S.mark_audited, list(batches))

    async def requeue(self, tx: Tx, batches: Sequence[UUID]) -> int:
        """To be exported again by whoever owns their lane; how many were."""
        return len(await tx.fetch(S.requeue_batches, list(batches)))

    async def lose_rows(self, tx: Tx, batch_id: UUID, rows: int) -> int:
        """Write down that ClickHouse has lost so many rows of an exported batch for good; 0: that is known already."""
        return int(await tx.fetchval(S.lose_rows, batch_id, rows) or 0)

    async def lost(self, tx: Tx, limit: int) -> list[LostBatch]:
        return [LostBatch(**dict(row)) for row in await tx.fetch(S.lost_batches, limit)]


def _loads(rows: Sequence[Any]) -> tuple[Load, ...]:
    return tuple(_load(row) for row in rows)


def _load(row: Any) -> Load:
    return Load(
        row["id"], row["from_cursor"], row["to_cursor"], row["survivors"], row["events"], _places(row["refused"]),
        row["created_at"], row["requeued_at"] is not None,
    )  # fmt: skip


def _places(refused: list[int] | None) -> frozenset[int]:
    return frozenset(refused or ())
