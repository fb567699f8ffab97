"""Reading what became of events: keys, parked rows, drop counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.events.reasons import KEPT
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx, walk

S = sqlfiles.load("handbill.events")
PORTION = 1_000
"""Parked events that one statement of the healing looks at."""


class ParkedRow(msgspec.Struct, frozen=True):
    id: UUID
    """The id of the parked event, by which it can be chosen."""
    kind: str
    event_id: str | None
    lane: str
    """The lane of the journal that it was read from."""
    reason: str
    """Why it was parked, as a constant."""
    detail: str | None
    bytes: int
    """How large the event is, in bytes."""
    parked_at: datetime
    """When it was parked."""
    replayed_at: datetime | None
    """When it was sent in again; null: it was not."""


class ParkedBody(msgspec.Struct, frozen=True):
    id: UUID
    parked_at: datetime
    reason: str
    body: bytes
    tenant_id: int | None = None
    event_id: str | None = None
    replayed_at: datetime | None = None


class Drop(msgspec.Struct, frozen=True):
    day: date
    """The day, in UTC."""
    kind: str
    reason: str
    """Why the events were not counted, or what was left out of them, as a constant."""
    events: int
    """How many such events there were."""
    kept: bool
    """Whether the events were counted all the same, with something left out of them."""


class EventReader:
    async def find_key(self, tx: Tx, tenant_id: int, key: bytes) -> datetime | None:
        stored: datetime | None = await tx.fetchval(S.find_key, tenant_id, key)
        return stored

    async def parked(
        self, tx: Tx, tenant_id: int, reason: str | None, replayed: bool, after: UUID | None, limit: int
    ) -> list[ParkedRow]:
        rows = await tx.fetch(S.list_parked, tenant_id, reason, replayed, after, limit)
        return [ParkedRow(**dict(row)) for row in rows]

    async def last_parked(self, tx: Tx) -> UUID | None:
        last: UUID | None = await tx.fetchval(S.last_parked)
        return last

    async def bodies(
        self,
        tx: Tx,
        tenant_id: int | None,
        reason: str | None,
        ids: Sequence[UUID],
        after: UUID,
        last: UUID,
        limit: int,
    ) -> list[ParkedBody]:  # fmt: skip
        rows = await tx.fetch(S.parked_bodies, tenant_id, reason, after, last, limit, list(ids) or None)
        return [ParkedBody(**dict(row)) for row in rows]

    async def waiting_ids(
        self,
        tx: Tx,
        tenant_id: int,
        reason: str | None,
        ids: Sequence[UUID],
        after: UUID,
        last: UUID,
        limit: int,
        max_bytes: int,
    ) -> list[UUID]:  # fmt: skip
        """The first that wait behind `after`, up to `last`: so many, or fewer where their bodies are large."""
        rows = await tx.fetch(S.waiting_ids, tenant_id, reason, after, last, limit, list(ids) or None, max_bytes)
        return [row["id"] for row in rows]

    async def claimed_bodies(self, tx: Tx, tenant_id: int, ids: Sequence[UUID]) -> list[ParkedBody]:
        """Those that a replay has begun with, whether they were sent or not."""
        return [ParkedBody(**dict(row)) for row in await tx.fetch(S.claimed_bodies, tenant_id, list(ids))]

    async def count_parked(
        self, tx: Tx, tenant_id: int, reason: str | None, ids: Sequence[UUID], last: UUID, limit: int
    ) -> int:
        """How many wait; at most `limit`."""
        return int(await tx.fetchval(S.count_parked, tenant_id, reason, list(ids) or None, last, limit))

    async def all_bodies(self, tx: Tx, tenant_id: int, after: UUID, limit: int) -> list[ParkedBody]:
        """Those that were sent again, too."""
        rows = await tx.fetch(S.all_bodies, tenant_id, after, limit)
        return [ParkedBody(row["id"], row["parked_at"], row["reason"], bytes(row["body"])) for row in rows]

    async def now(self, tx: Tx) -> datetime:
        found: datetime = await tx.fetchval(S.now)
        return found

    async def counted(self, tx: Tx, keys: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """Which of these (tenant, key) are counted."""
        rows = await tx.fetch(S.counted_keys, [tenant for tenant, _ in keys], [each for _, each in keys])
        return {(row["tenant_id"], bytes(row["key"])) for row in rows}

    async def counted_among(self, tx: Tx, keys: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """The same for a hot route: some hundred keys in milliseconds, whatever the planner thinks of the table."""
        rows = await tx.fetch(S.counted_among, [tenant for tenant, _ in keys], [each for _, each in keys])
        return {(row["tenant_id"], bytes(row["key"])) for row in rows}

    async def parked_since(
        self, tx: Tx, names: Sequence[tuple[int, str, str]], since: datetime
    ) -> set[tuple[int, str, str]]:
        """Which of these (tenant, kind, event id) were parked after that moment of the database's clock."""
        columns = [list(column) for column in zip(*names, strict=True)]
        return {tuple(row) for row in await tx.fetch(S.parked_since, *columns, since)}

    async def healable_tenants(self, tx: Tx, after: timedelta) -> list[int]:
        return [row["tenant_id"] for row in await tx.fetch(S.healable_tenants, after)]

    async def healable(self, tx: Tx, tenant_id: int, after: timedelta, tries: int, limit: int) -> list[UUID]:
        """The first events that may pass by now. Each statement reads a portion, however many wait for a person."""
        due: list[UUID] = []
        place = UUID(int=0)
        while True:
            rows = await tx.fetch(S.healable, tenant_id, after, tries, place, PORTION)
            due += [row["id"] for row in rows if row["due"]]
            if len(rows) < PORTION or len(due) >= limit:
                return due[:limit]
            place = rows[-1]["id"]

    async def drop_parked(
        self, tx: Tx, tenant_id: int, reason: str | None, ids: Sequence[UUID], last: UUID, limit: int
    ) -> int:
        """How many were dropped, of those that were parked up to `last`."""
        return await tx.execute(S.drop_parked, tenant_id, reason, list(ids) or None, limit, last)

    async def erase_parked(self, tx: Tx, tenant_id: int, ids: Sequence[UUID]) -> int:
        return await tx.execute(S.erase_parked, tenant_id, list(ids))

    async def keep_out(self, tx: Tx, lock: int) -> bool:
        """Until the transaction ends nobody else has this lock. False: somebody has it now."""
        return bool(await tx.fetchval(S.keep_out, lock))

    async def hold_parked(self, tx: Tx, ids: Sequence[UUID]) -> list[tuple[UUID, bytes]]:
        """Those of them that still wait; nobody sends or erases them until the transaction ends."""
        return [(row["id"], row["body"]) for row in await tx.fetch(S.hold_parked, list(ids))]

    async def forget_replayed(self, database: Database, before: datetime, limit: int) -> int:
        """Delete what was sent again before that time; each transaction reads at most so many parked events."""
        return await walk(database, S.forget_replayed, (before,), (UUID(int=0),), limit)

    async def mark_replayed(self, tx: Tx, ids: Sequence[UUID]) -> None:
        await tx.execute(S.mark_replayed, list(ids))

    async def parked_events(self, tx: Tx, tenant_id: int, event_id: str) -> list[dict[str, Any]]:
        return [dict(row) for row in await tx.fetch(S.parked_events, tenant_id, event_id)]

    async def drops(self, tx: Tx, tenant_id: int, start: date, end: date) -> list[Drop]:
        rows = await tx.fetch(S.list_drops, tenant_id, start, end)
        return [Drop(**dict(row), kept=row["reason"] in KEPT) for row in rows]
