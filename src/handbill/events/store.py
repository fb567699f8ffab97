"""Every statement of the journal's own tables, one method each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from handbill.events.batch import Batch, DropKey, Owned, Parked, bitmap
from handbill.events.model import Row
from handbill.events.reasons import Reason
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.clock import from_ms
from handbill.kit.ids import Ids

S = sqlfiles.load("handbill.events")


class LaneState(msgspec.Struct, frozen=True):
    owned: Owned
    cursor: str
    projected: str


class Manifest(msgspec.Struct, frozen=True):
    """A committed batch: its range and which of its events survived."""

    start: str
    end: str
    survivors: bytes
    events: int


class IncomingParked(msgspec.Struct, frozen=True):
    """An entry of the compatibility stream that is no event: its fields as JSON, under an id made from its own."""

    id: UUID
    tenant: int | None
    event_id: str
    stream: str
    reason: Reason
    detail: str
    body: bytes
    received: int


class EventStore:
    async def add_lane(self, tx: Tx, lane: str, number: int) -> None:
        await tx.execute(S.add_lane, lane, number)

    async def announce(self, tx: Tx, name: str, alive: timedelta) -> int:
        """Say that this consumer lives; the answer is how many do."""
        await tx.execute(S.seen_consumer, name)
        return int(await tx.fetchval(S.count_consumers, alive))

    async def leave(self, tx: Tx, name: str, alive: timedelta) -> None:
        await tx.execute(S.forget_consumers, name, alive)

    async def claim(self, tx: Tx, lanes: Sequence[str], name: str, lease: timedelta) -> LaneState | None:
        row = await tx.fetchrow(S.claim_lane, list(lanes), name, lease)
        if row is None:
            return None
        owned = Owned(row["lane"], row["number"], row["epoch"])
        return LaneState(owned, row["cursor"], row["projected"])

    async def renew(self, tx: Tx, name: str, lanes: Sequence[str], lease: timedelta) -> dict[str, int]:
        """Keep these lanes; the answer is every lane that is ours, with the epoch it is ours under."""
        await tx.execute(S.renew_lanes, name, list(lanes), lease)
        return {row["lane"]: row["epoch"] for row in await tx.fetch(S.owned_lanes, name)}

    async def release(self, tx: Tx, owned: Owned, projected: str) -> None:
        await tx.execute(S.release_lane, owned.lane, owned.epoch, projected)

    async def move_cursor(self, tx: Tx, batch: Batch, lease: timedelta) -> bool:
        owned = batch.owned
        moved = await tx.fetchval(
            S.move_cursor, owned.lane, owned.epoch, batch.start, batch.end, batch.projected, lease
        )
        return moved is not None

    async def move_projected(self, tx: Tx, owned: Owned, projected: str) -> None:
        await tx.execute(S.move_projected, owned.lane, owned.epoch, projected)

    async def cursors(self, tx: Tx) -> dict[str, str]:
        return {row["lane"]: row["cursor"] for row in await tx.fetch(S.list_lanes)}

    async def insert_keys(self, tx: Tx, rows: Sequence[Row]) -> set[tuple[int, bytes]]:
        """The keys that were new. The rows come sorted."""
        if not rows:
            return set()
        fresh = await tx.fetch(
            S.insert_keys,
            [row.event.tenant for row in rows],
            [row.key for row in rows],
            [from_ms(row.event.received) for row in rows],
            [row.event.sequence for row in rows],
        )
        return {(tenant, keys[at : at + 16]) for tenant, keys in fresh for at in range(0, len(keys), 16)}

    async def lower_sequences(self, tx: Tx, copies: Sequence[Row]) -> list[Row]:
        """Of an event's copies the smallest sequence counts; the answer is the copies that have a smaller one than was
        stored. They come sorted. One that somebody lowered further meanwhile may be among them."""
        if not copies:
            return []
        tenants, keys = [row.event.tenant for row in copies], [row.key for row in copies]
        sequences = [row.event.sequence for row in copies]
        found = await tx.fetch(S.larger_sequences, tenants, keys, sequences)
        lowered = [copies[place] for place in sorted(row["place"] - 1 for row in found)]
        if lowered:
            rows = [(row.event.tenant, row.key, row.event.sequence) for row in lowered]
            await tx.executemany(S.lower_sequence, rows)
        return lowered

    async def correct_sequences(self, tx: Tx, rows: Sequence[Row]) -> None:
        """The sequences that these events have now, for whoever reads a larger one in the journal."""
        if rows:
            await tx.execute(
                S.correct_sequences,
                [row.event.tenant for row in rows],
                [row.key for row in rows],
                [row.event.sequence for row in rows],
            )

    async def insert_batch(
        self, tx: Tx, batch: Batch, survivors: Sequence[Row], batch_id: UUID, *, waits: bool = False
    ) -> None:
        """`waits`: for its shipping. With no survivor there is nothing to ship."""
        events = len(batch.bodies)
        bits = bitmap(survivors, events)
        await tx.execute(
            S.insert_batch, batch_id, batch.owned.lane, batch.start, batch.end, bits, events, waits and bool(survivors)
        )

    async def manifests(self, tx: Tx, lane: str, after: str) -> list[Manifest]:
        """The committed batches behind a cursor, in their order."""
        rows = await tx.fetch(S.batches_behind, lane, after)
        return [Manifest(row["from_cursor"], row["to_cursor"], row["survivors"], row["events"]) for row in rows]

    async def oldest_unfinished(self, tx: Tx, lane: str) -> str | None:
        cursor: str | None = await tx.fetchval(S.oldest_unfinished_batch, lane)
        return cursor

    async def unshipped_batches(self, tx: Tx) -> set[UUID]:
        """Committed batches whose events have not reached ClickHouse."""
        return {row["id"] for row in await tx.fetch(S.unshipped_batches)}

    async def forget_batches(self, tx: Tx, lane: str, projected: str, older: timedelta) -> None:
        """Forget the manifests nobody will ask for: shipped, projected and old."""
        await tx.execute(S.forget_batches, lane, projected, older, 1_000)

    async def oldest_unexported(self, tx: Tx) -> datetime | None:
        """When the oldest batch was committed that ClickHouse does not have; None: it has all."""
        created: datetime | None = await tx.fetchval(S.oldest_unexported)
        return created

    async def key_ranges_due(self, tx: Tx, before: datetime, pages: int) -> list[int]:
        """First pages of the ranges of the key table that may hold keys from before that time."""
        return [row["first_page"] for row in await tx.fetch(S.key_ranges_due, pages, before)]

    async def forget_keys(
        self, tx: Tx, key_range: tuple[int, int], before: datetime, now: datetime, step: int
    ) -> int:  # fmt: skip
        """Delete the old keys of one range (first page, pages), so many pages in each statement, and note the oldest
        that stays. Returns how many went."""
        first_page, pages = key_range
        forgotten, oldest = 0, now
        for page in range(first_page, first_page + pages, step):
            end = min(page + step, first_page + pages)
            row = await tx.fetchrow(S.forget_keys, (page, 0), (end, 0), before)
            assert row is not None  # a select without a table has one row
            forgotten, oldest = forgotten + row[0], min(oldest, row[1] or now)
        await tx.execute(S.note_key_range, pages, first_page, oldest)
        return forgotten

    async def add_drops(self, tx: Tx, drops: Counter[DropKey], lane: int) -> None:
        if not drops:
            return
        ordered = sorted(drops.items())
        await tx.execute(
            S.add_drops,
            [key[0] for key, _ in ordered],
            [key[1] for key, _ in ordered],
            [key[2] for key, _ in ordered],
            [str(key[3]) for key, _ in ordered],
            [lane] * len(ordered),
            [count for _, count in ordered],
        )

    async def park(self, tx: Tx, parked: Sequence[Parked], lane: str, ids: Ids) -> None:
        if not parked:
            return
        await tx.execute(
            S.park,
            [ids.new() for _ in parked],
            [item.tenant for item in parked],
            [item.kind for item in parked],
            [None if item.event_id is None else storable(item.event_id) for item in parked],
            [lane] * len(parked),
            [str(item.reason) for item in parked],
            [item.detail for item in parked],
            [item.body for item in parked],
        )

    async def park_once(self, tx: Tx, parked: Sequence[IncomingParked]) -> set[UUID]:
        """Keep these; the answer is those that were not kept before."""
        rows = await tx.fetch(
            S.park_once,
            [item.id for item in parked],
            [item.tenant for item in parked],
            [storable(item.event_id) for item in parked],
            [item.stream for item in parked],
            [str(item.reason) for item in parked],
            [item.detail for item in parked],
            [item.body for item in parked],
        )
        return {row["id"] for row in rows}


def storable(text: str) -> str:
    """An id may be the very thing that no text column takes; its bytes are kept beside it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
