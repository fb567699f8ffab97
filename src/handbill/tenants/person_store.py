"""Rows of erasures and exports of a person: one function a query, each inside the transaction it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.tenants.model import Erasure, PersonExport

S = sqlfiles.load("handbill.tenants")


class RunningErasure(msgspec.Struct, frozen=True):
    """What a worker needs to go on; `ids` are there once they were collected."""

    subject: str
    ids: list[str] | None
    report: dict[str, Any]
    requested_by: str
    created_at: datetime


class ClosedErasure(msgspec.Struct, frozen=True):
    subject_hash: bytes
    requested_by: str
    report: dict[str, Any]


class NewExport(msgspec.Struct, frozen=True):
    """A request for an export, before it is stored."""

    export_id: UUID
    subject: str
    steps: int
    requested_by: str
    created_at: datetime
    expires_at: datetime


class ExportOutcome(msgspec.Struct, frozen=True):
    """How an export ended: with a result, or with the code of an error."""

    status: str
    finished_at: datetime
    expires_at: datetime
    result: bytes | None = None
    error: str | None = None


# --- erasures


async def open_erasure(
    tx: Tx, tenant_id: int, erasure_id: UUID, subject: str, digest: bytes, *, steps: int, actor: str, now: datetime
) -> Erasure:
    row = await tx.fetchrow(S.open_erasure, tenant_id, erasure_id, subject, digest, steps, actor, now)
    return _erasure(row or {})


async def begin_erasure(tx: Tx, tenant_id: int, erasure_id: UUID, steps: int, now: datetime) -> RunningErasure | None:
    row = await tx.fetchrow(S.begin_erasure, tenant_id, erasure_id, steps, now)
    return RunningErasure(**_decoded(row)) if row else None


async def record_erasure_ids(tx: Tx, tenant_id: int, erasure_id: UUID, ids: list[str]) -> None:
    await tx.execute(S.record_erasure_ids, tenant_id, erasure_id, ids)


async def record_erasure_step(
    tx: Tx, tenant_id: int, erasure_id: UUID, step: str, counts: Mapping[str, Any], error: str | None
) -> None:
    await tx.execute(S.record_erasure_step, tenant_id, erasure_id, step, _json(counts), error)


async def close_erasure(
    tx: Tx, tenant_id: int, erasure_id: UUID, status: str, error: str | None, now: datetime
) -> ClosedErasure | None:
    """None if it had ended already."""
    row = await tx.fetchrow(S.close_erasure, tenant_id, erasure_id, status, error, now)
    return ClosedErasure(**_decoded(row)) if row else None


async def forget_subject(tx: Tx, tenant_id: int, digest: bytes) -> None:
    await tx.execute(S.forget_subject, tenant_id, digest)


async def read_erasure(tx: Tx, tenant_id: int, erasure_id: UUID) -> Erasure | None:
    row = await tx.fetchrow(S.read_erasure, tenant_id, erasure_id)
    return _erasure(row) if row else None


async def list_erasures(tx: Tx, tenant_id: int, after: UUID | None, limit: int) -> list[Erasure]:
    return [_erasure(row) for row in await tx.fetch(S.list_erasures, tenant_id, after, limit)]


async def erased_since(tx: Tx, tenants: Sequence[int], since: datetime) -> set[int]:
    return {row["tenant_id"] for row in await tx.fetch(S.erased_since, list(tenants), since)}


async def end_old_erasures(tx: Tx, now: datetime, created_before: datetime) -> int:
    return await tx.execute(S.end_old_erasures, now, created_before)


# --- exports


async def count_exports(tx: Tx, tenant_id: int, now: datetime) -> int:
    return int(await tx.fetchval(S.count_exports, tenant_id, now))


async def open_export(tx: Tx, tenant_id: int, new: NewExport) -> PersonExport:
    row = await tx.fetchrow(
        S.open_export,
        tenant_id,
        new.export_id,
        new.subject,
        new.steps,
        new.requested_by,
        new.created_at,
        new.expires_at,
    )
    return _export(row or {})


async def begin_export(tx: Tx, tenant_id: int, export_id: UUID, steps: int, now: datetime) -> str | None:
    """The subject; None if it has ended or is gone."""
    subject: str | None = await tx.fetchval(S.begin_export, tenant_id, export_id, steps, now)
    return subject


async def record_export_ids(tx: Tx, tenant_id: int, export_id: UUID, ids: list[str]) -> None:
    await tx.execute(S.record_export_ids, tenant_id, export_id, ids)


async def record_export_step(tx: Tx, tenant_id: int, export_id: UUID, step: str, counts: Mapping[str, Any]) -> None:
    await tx.execute(S.record_export_step, tenant_id, export_id, step, _json(counts))


async def close_export(tx: Tx, tenant_id: int, export_id: UUID, outcome: ExportOutcome) -> bool:
    """False if it has ended already, or its person was erased meanwhile."""
    closed = await tx.execute(
        S.close_export,
        tenant_id,
        export_id,
        outcome.status,
        outcome.error,
        outcome.finished_at,
        outcome.expires_at,
        outcome.result,
    )
    return closed > 0


async def read_export(tx: Tx, tenant_id: int, export_id: UUID, now: datetime) -> PersonExport | None:
    row = await tx.fetchrow(S.read_export, tenant_id, export_id, now)
    return _export(row) if row else None


async def read_export_result(tx: Tx, tenant_id: int, export_id: UUID, now: datetime) -> tuple[str, bytes | None] | None:
    row = await tx.fetchrow(S.read_export_result, tenant_id, export_id, now)
    return (row["status"], row["result"]) if row else None


async def erase_exports(tx: Tx, tenant_id: int, ids: list[str]) -> int:
    return await tx.execute(S.erase_exports, tenant_id, ids)


async def sweep_exports(tx: Tx, now: datetime) -> int:
    return await tx.execute(S.sweep_exports, now)


def _erasure(row: Mapping[str, Any]) -> Erasure:
    values = _decoded(row)
    total = values.pop("steps")
    done = sum("error" not in counts for counts in values["report"].values())
    return msgspec.convert({**values, "steps_done": done, "steps_total": max(total, done)}, Erasure)


def _export(row: Mapping[str, Any]) -> PersonExport:
    values = _decoded(row)
    total = values.pop("steps")
    return msgspec.convert({**values, "steps_done": len(values["report"]), "steps_total": total}, PersonExport)


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(row), "report": msgspec.json.decode(row["report"])}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
