"""Imports in PostgreSQL: one method a statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.contacts.model import Cause, Counts, Import, Kept, Plan
from handbill.contacts.reasons import REASONS
from handbill.contacts.split import Range
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx, walk_within

S = sqlfiles.load("handbill.contacts")
_encode = msgspec.json.encode


class Part(msgspec.Struct, frozen=True):
    no: int
    start: int
    end: int
    first: int
    rows: int
    done: bool


class Stored(msgspec.Struct, frozen=True):
    """An import with what only the run needs."""

    info: Import
    file: str
    canonical: str | None
    rows: int
    slices: int


class Unstarted(msgspec.Struct, frozen=True):
    """Uploads of a tenant that nobody started, and their bytes."""

    files: int
    size: int


class Finding(msgspec.Struct, frozen=True):
    row: int
    severity: str
    code: str
    field: str | None
    value: str
    original: str
    number: int


def _stored(row: Any) -> Stored:
    info = Import(
        import_id=row["import_id"],
        file_name=row["file_name"],
        size=row["size"],
        status=row["status"],
        paused=row["paused"],
        plan=msgspec.json.decode(row["plan"], type=Plan),
        counts=msgspec.json.decode(row["counts"], type=Counts),
        created_at=row["created_at"],
        version=row["version"],
        created_by=row["created_by"],
        sha256=row["sha256"],
        fixes=row["fixes"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        undo_kept=row["undo_kept"],
    )
    return Stored(info, row["file"], row["canonical"], row["rows"], row["slices"])


async def insert_import(tx: Tx, tenant_id: int, new: Import, file: str) -> Stored:
    row = await tx.fetchrow(
        S.insert_import, tenant_id, new.import_id, new.file_name, file, new.size, new.sha256,
        _encode(new.plan).decode(), new.fixes, new.created_by, new.created_at,
    )  # fmt: skip
    return _stored(row)


async def read_import(tx: Tx, tenant_id: int, import_id: UUID, *, lock: bool = False) -> Stored | None:
    row = await tx.fetchrow(S.lock_import if lock else S.read_import, tenant_id, import_id)
    return None if row is None else _stored(row)


async def share_import(tx: Tx, tenant_id: int, import_id: UUID) -> Stored | None:
    row = await tx.fetchrow(S.share_import, tenant_id, import_id)
    return None if row is None else _stored(row)


async def page_imports(tx: Tx, tenant_id: int, before: UUID | None, limit: int) -> list[Stored]:
    return [_stored(row) for row in await tx.fetch(S.page_imports, tenant_id, before, limit)]


async def change_plan(tx: Tx, tenant_id: int, import_id: UUID, plan: Plan) -> Stored:
    return _stored(await tx.fetchrow(S.change_plan, tenant_id, import_id, _encode(plan).decode()))


async def move_import(
    tx: Tx, tenant_id: int, one: Import, *, started: datetime | None = None, finished: datetime | None = None
) -> Stored:
    """Writes status, paused and error of `one`; the start is kept once it is set."""
    row = await tx.fetchrow(
        S.move_import, tenant_id, one.import_id, one.status, one.paused, one.error, started, finished
    )
    return _stored(row)


async def number(tx: Tx, which: str, *args: Any) -> int:
    return int(await tx.fetchval(S[which], *args))


async def count_unstarted(tx: Tx, tenant_id: int) -> Unstarted:
    (row,) = await tx.fetch(S.count_unstarted, tenant_id)
    return Unstarted(row["files"], row["size"])


async def hold_uploads(tx: Tx, tenant_id: int) -> None:
    await tx.execute(S.hold_uploads, tenant_id)


async def expired_uploads(tx: Tx, before: datetime, limit: int) -> list[tuple[int, UUID]]:
    return [(row["tenant_id"], row["import_id"]) for row in await tx.fetch(S.expired_uploads, before, limit)]


async def imports_with_files(tx: Tx, import_ids: Sequence[UUID]) -> set[UUID]:
    return {row["import_id"] for row in await tx.fetch(S.imports_with_files, list(import_ids))}


async def save_cut(tx: Tx, tenant_id: int, import_id: UUID, file: str, ranges: Sequence[Range], slices: int) -> None:
    rows = sum(one.rows for one in ranges)
    await tx.execute(S.save_cut, tenant_id, import_id, file, rows, slices)
    await tx.execute(
        S.insert_chunks, tenant_id, import_id, [one.start for one in ranges], [one.end for one in ranges],
        [one.first for one in ranges], [one.rows for one in ranges],
    )  # fmt: skip


async def insert_slices(tx: Tx, tenant_id: int, import_id: UUID, slices: int) -> None:
    await tx.execute(S.insert_slices, tenant_id, import_id, slices)


async def read_part(tx: Tx, tenant_id: int, import_id: UUID, phase: str, no: int) -> Part | None:
    row = await tx.fetchrow(S.read_part, tenant_id, import_id, phase, no)
    if row is None:
        return None
    return Part(row["no"], row["start_at"], row["end_at"], row["first_row"], row["rows"], row["done"])


async def claim_part(tx: Tx, tenant_id: int, import_id: UUID, phase: str, no: int, counts: Mapping[str, int]) -> bool:
    return bool(await tx.execute(S.claim_part, tenant_id, import_id, phase, no, _encode(counts).decode()))


async def close_part(tx: Tx, tenant_id: int, import_id: UUID, phase: str, no: int, counts: Mapping[str, int]) -> None:
    await tx.execute(S.close_part, tenant_id, import_id, phase, no, _encode(counts).decode())


async def open_parts(tx: Tx, tenant_id: int, import_id: UUID, phase: str) -> list[int]:
    return [row["no"] for row in await tx.fetch(S.open_parts, tenant_id, import_id, phase)]


async def sum_counts(tx: Tx, tenant_id: int, import_id: UUID) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {"chunk": {}, "slice": {}}
    for row in await tx.fetch(S.sum_counts, tenant_id, import_id):
        found[row["phase"]][row["key"]] = row["total"]
    return found


async def save_counts(tx: Tx, tenant_id: int, import_id: UUID, counts: Counts) -> None:
    await tx.execute(S.save_counts, tenant_id, import_id, _encode(counts).decode())


async def hold_table(tx: Tx, tenant_id: int) -> None:
    await tx.execute(S.hold_table, tenant_id)


async def table_taken(tx: Tx, tenant_id: int, import_id: UUID) -> bool:
    return bool(await tx.fetchval(S.table_taken, tenant_id, import_id))


async def next_parsed(tx: Tx, tenant_id: int) -> UUID | None:
    found: UUID | None = await tx.fetchval(S.next_parsed, tenant_id)
    return found


async def merge_slice(
    tx: Tx, tenant_id: int, one: Stored, no: int, attributes: Sequence[str], fields: Sequence[str]
) -> Any:
    plan, consent = one.info.plan, one.info.plan.consent
    await tx.execute(S.by_index)
    return await tx.fetchrow(
        S.merge_slice, tenant_id, one.info.import_id, no, plan.key, plan.policy, list(attributes), list(fields),
        sorted(set(plan.tags)), sorted(set(consent.channels)) if consent else [], consent.source if consent else None,
        consent.proof if consent else None, one.info.created_by, one.info.started_at,
    )  # fmt: skip


async def drop_staged(tx: Tx, tenant_id: int, import_id: UUID) -> int:
    """However many rows were staged, each statement removes a bounded number of them."""
    return await walk_within(tx, S.drop_staged, (tenant_id, import_id), (-1, -1), 10_000)


async def causes(tx: Tx, tenant_id: int, import_id: UUID) -> list[Cause]:
    rows = await tx.fetch(S.causes, tenant_id, import_id)
    return [
        Cause(row["severity"], row["code"], row["field"], row["rows"], *REASONS[row["code"]], row["example"] or None)
        for row in rows
    ]


async def findings_page(
    tx: Tx, tenant_id: int, import_id: UUID, after: tuple[int, int], limit: int, severity: str | None
) -> list[Finding]:
    rows = await tx.fetch(S.findings_page, tenant_id, import_id, *after, severity, limit)
    return [Finding(*row) for row in rows]


async def known_keys(tx: Tx, tenant_id: int, key: str, values: Sequence[str]) -> set[str]:
    statement = {"phone": S.match_phones, "email": S.match_emails, "external_id": S.match_externals}[key]
    return {row["key"] for row in await tx.fetch(statement, tenant_id, list(values))}


async def old_files(tx: Tx, before: datetime, limit: int) -> list[tuple[int, UUID, list[str]]]:
    rows = await tx.fetch(S.old_files, before, limit)
    return [(row["tenant_id"], row["import_id"], [row["file"], row["canonical"] or row["file"]]) for row in rows]


async def file_gone(tx: Tx, tenant_id: int, import_id: UUID) -> None:
    await tx.execute(S.file_gone, tenant_id, import_id)


# --- the way back


async def undo_created(tx: Tx, tenant_id: int, first: UUID, last: UUID, limit: int) -> int:
    return int(await tx.fetchval(S.undo_created, tenant_id, first, last, limit))


async def keep_created(tx: Tx, tenant_id: int, import_id: UUID, first: UUID, last: UUID) -> None:
    await tx.execute(S.keep_created, tenant_id, first, last, import_id)


async def take_changes(
    tx: Tx, tenant_id: int, import_id: UUID, limit: int
) -> list[tuple[UUID, dict[str, Any], dict[str, Any], dict[str, Any] | None]]:
    await tx.fetch(S.hold_changed, tenant_id, import_id, limit)
    rows = await tx.fetch(S.take_changes, tenant_id, import_id, limit)
    decode = msgspec.json.decode
    return [
        (row["contact_id"], decode(row["before"]), decode(row["after"]), decode(row["now"]) if row["now"] else None)
        for row in rows
    ]


async def put_back(tx: Tx, tenant_id: int, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
    await tx.execute(S.put_back, tenant_id, _encode(rows).decode(), now)


async def keep_changed(tx: Tx, tenant_id: int, import_id: UUID, rows: Sequence[Kept]) -> None:
    await tx.execute(S.keep_changed, tenant_id, import_id, _encode(rows).decode())


async def page_kept(tx: Tx, tenant_id: int, import_id: UUID, after: UUID | None, limit: int) -> list[Kept]:
    return [
        Kept(row["contact_id"], list(row["fields"]), row["why"])
        for row in await tx.fetch(S.page_kept, tenant_id, import_id, after, limit)
    ]
