"""The jobs room's tables: outbox, handled effects, dead letters, event cursors. One function per statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Session, Tx, walk
from handbill.jobs.payloads import fault_of, keep_bytes, loose_json
from handbill.jobs.records import (
    DeadLetter,
    Entry,
    Filter,
    Lane,
    NewDeadLetter,
    Recorded,
    Relayed,
    Stale,
    Taken,
    stored_options,
)

S = sqlfiles.load("handbill.jobs")
LAST_LANE = 2**31 - 1
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def _json(data: Any) -> str:
    return msgspec.json.encode(data).decode()


# --- outbox


async def put_outbox(tx: Tx, rows: Sequence[tuple[UUID, Entry]]) -> None:
    await tx.execute(
        S.put_outbox,
        [id for id, _ in rows],
        [entry.tenant_id for _, entry in rows],
        [entry.queue for _, entry in rows],
        [entry.name for _, entry in rows],
        [entry.job_id or str(id) for id, entry in rows],
        [entry.effect_id or id for id, entry in rows],
        [_json(entry.data) for _, entry in rows],
        [stored_options(entry.opts).decode() for _, entry in rows],
        [float(entry.opts.delay_ms or 0) if entry.opts else 0.0 for _, entry in rows],
    )


async def handled_once(tx: Tx, outbox_id: UUID, tenant_id: int | None) -> bool:
    return await tx.fetchval(S.handled_once, outbox_id, tenant_id) is not None


async def pending_queues(tx: Tx) -> list[str]:
    return [row["queue"] for row in await tx.fetch(S.pending_queues)]


async def pending_lanes(tx: Tx, queue: str, after: int, most: int, horizon: float, last: int = LAST_LANE) -> list[Lane]:
    rows = await tx.fetch(S.pending_lanes, queue, after, most, horizon, last)
    return [Lane(row["lane"], row["due"], row["wait"]) for row in rows]


async def take_pending(
    tx: Tx, queue: str, lanes: Sequence[int], shares: Sequence[int], horizon: float, redis_ms: int
) -> list[Taken]:
    rows = await tx.fetch(S.take_pending, queue, list(lanes), list(shares), horizon, redis_ms)
    taken = [Taken(**row) for row in rows]
    return sorted(taken, key=lambda row: (row.turn, row.due_at, row.id))


async def drop_doubles(tx: Tx, queue: str, ids: Sequence[UUID]) -> int:
    return len(await tx.fetch(S.drop_doubles, list(ids), queue))


async def drop_rows(tx: Tx, ids: Sequence[UUID]) -> int:
    return await tx.execute(S.drop_rows, list(ids))


async def restamp_rows(tx: Tx, ids: Sequence[UUID], redis_ms: int) -> None:
    await tx.execute(S.restamp_rows, list(ids), redis_ms)


async def settle_jobs(tx: Tx, queue: str, over: Sequence[tuple[str, int]]) -> int:
    """Remove the rows of jobs that are over (id and time by Redis' clock). Returns how many there were.

    An event older than the relay belongs to an earlier job of the same id and settles nothing.
    """
    times: dict[str, int] = {}
    for job_id, at_ms in over:
        times[job_id] = max(at_ms, times.get(job_id, 0))
    ids = [id for job_id in times if (id := _uuid(job_id)) is not None]
    rows = await tx.fetch(S.lock_rows, queue, ids) if ids else []
    rows += await tx.fetch(S.lock_own_rows, queue, list(times))
    done = [
        row["id"] for row in rows if row["status"] == "relayed" and row["relayed_ms"] <= times.get(row["job_id"], -1)
    ]
    return await drop_rows(tx, done) if done else 0


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


async def relayed_rows(tx: Tx, queue: str, job_ids: Sequence[str]) -> dict[str, Relayed]:
    rows = await tx.fetch(S.relayed_rows, queue, list(job_ids))
    return {row["job_id"]: Relayed(**row) for row in rows}


async def stale_relayed(tx: Tx, after: tuple[str, str], grace: float, most: int, queue: str | None) -> list[Stale]:
    rows = await tx.fetch(S.stale_relayed, after[0], after[1], grace, most, queue)
    return [Stale(**row) for row in rows]


async def requeue_rows(tx: Tx, ids: Sequence[UUID]) -> int:
    return await tx.execute(S.requeue_rows, list(ids))


async def cancel_pending(tx: Tx, queue: str, tenant_id: int | None) -> int:
    return len(await tx.fetch(S.cancel_pending, queue, tenant_id))


async def cancel_row(tx: Tx, queue: str, job_id: str, tenant_id: int | None) -> int:
    return len(await tx.fetch(S.cancel_row, queue, job_id, tenant_id))


async def list_pending(
    tx: Tx, queue: str, tenant_id: int | None, after: tuple[datetime, UUID], most: int
) -> list[Recorded]:
    return [Recorded(**row) for row in await tx.fetch(S.list_pending, queue, tenant_id, after[0], after[1], most)]


async def find_outbox(tx: Tx, queue: str, job_id: str, tenant_id: int | None) -> Recorded | None:
    row = await tx.fetchrow(S.find_outbox, queue, job_id, tenant_id)
    return None if row is None else Recorded(**row)


async def tenant_pending(tx: Tx, tenant_id: int, queues: Sequence[str]) -> list[tuple[str, int, float]]:
    rows = await tx.fetch(S.tenant_pending, tenant_id, list(queues))
    return [(row["queue"], row["depth"], row["age"]) for row in rows]


async def prune_handled(database: Database, seconds: float, pages: int = 1_000) -> int:
    """Delete effects that were done longer ago; each transaction reads at most so many pages."""
    return await walk(database, S.prune_handled, (seconds,), (0,), pages)


async def lane_pressure(tx: Tx, queue: str, tenant_id: int | None, most: int) -> tuple[int, float]:
    row = await tx.fetchrow(S.lane_pressure, queue, tenant_id, most)
    assert row is not None  # an aggregate always has one row
    return row["depth"], row["age"]


async def lanes_depth(tx: Tx, queue: str, most: int) -> list[tuple[int, int, float]]:
    return [(row["lane"], row["depth"], row["age"]) for row in await tx.fetch(S.lanes_depth, queue, most)]


# --- dead letters


async def bury(tx: Tx, letter: NewDeadLetter) -> UUID | None:
    """Record a failure; None when this very failure is known already."""
    row = await tx.fetchrow(
        S.bury,
        letter.id,
        letter.tenant_id,
        letter.queue,
        letter.job_id,
        letter.name,
        letter.effect_id,
        letter.data,
        letter.opts,
        letter.attempts,
        letter.reason,
        letter.traceback,
        letter.source,
        letter.queued_at,
        letter.failed_at,
    )
    return None if row is None else row["id"]


async def known_failures(tx: Tx, queue: str, job_ids: Sequence[str]) -> dict[str, datetime]:
    return {row["job_id"]: row["failed_at"] for row in await tx.fetch(S.known_failures, queue, list(job_ids))}


async def recover_dead(tx: Tx, queue: str, finished: Sequence[tuple[str, datetime]]) -> int:
    return await tx.execute(S.recover_dead, queue, [job_id for job_id, _ in finished], [at for _, at in finished])


async def list_dead(tx: Tx, wanted: Filter, before: UUID | None, most: int) -> list[DeadLetter]:
    return [_letter(row) for row in await tx.fetch(S.list_dead, *wanted.arguments(), before, most)]


async def count_dead(tx: Tx, wanted: Filter) -> int:
    return int(await tx.fetchval(S.count_dead, *wanted.arguments()))


async def take_dead(tx: Tx, wanted: Filter, most: int) -> list[DeadLetter]:
    return [_letter(row) for row in await tx.fetch(S.take_dead, *wanted.arguments(), most)]


async def mark_redriven(tx: Tx, ids: Sequence[UUID], tenant_id: int | None) -> int:
    return await tx.execute(S.mark_redriven, list(ids), tenant_id)


async def purge_dead(tx: Tx, wanted: Filter, most: int) -> int:
    return len(await tx.fetch(S.purge_dead, *wanted.arguments(), most))


async def open_dead_counts(tx: Tx) -> dict[str, int]:
    return {row["queue"]: row["open"] for row in await tx.fetch(S.open_dead_counts)}


def _letter(row: Any) -> DeadLetter:
    fields = dict(row)
    data = fields["data"].encode()
    fields["data"] = loose_json(data) if fault_of(data) is None else keep_bytes(data)
    fields["opts"] = loose_json(fields["opts"].encode())
    return DeadLetter(**fields)


# --- event cursors


async def hold_event_cursor(tx: Tx, queue: str) -> str | None:
    """The cursor, held until the transaction ends; None while another ledger holds it."""
    held: str | None = await tx.fetchval(S.hold_event_cursor, queue)
    return held


async def open_event_cursor(tx: Tx, queue: str) -> None:
    await tx.execute(S.open_event_cursor, queue)


async def move_event_cursor(tx: Tx, queue: str, last_id: str) -> None:
    await tx.execute(S.move_event_cursor, queue, last_id)


async def known_queues(tx: Tx) -> set[str]:
    return {row["queue"] for row in await tx.fetch(S.known_queues)}


async def leader_alive(session: Session) -> None:
    await session.fetchval(S.leader_alive)
