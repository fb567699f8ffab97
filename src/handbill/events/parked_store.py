"""Rows of requests about parked events: one function a query, each inside the transaction it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.events.parked_model import Chosen, OnFailure, ParkedAction, ParkedRequest, ReplayOptions
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx, repeat

S = sqlfiles.load("handbill.events")


class NewParkedRequest(msgspec.Struct, frozen=True):
    """A request before it is stored."""

    tenant_id: int
    parked_request_id: UUID
    action: ParkedAction
    chosen: Chosen
    options: ReplayOptions
    report: Mapping[str, Any]
    requested_by: str
    created_at: datetime


class ParkedRun(msgspec.Struct, frozen=True):
    """A request under way, as one run of it reads and writes it. `portion` has the ids of the portion under way."""

    tenant_id: int
    parked_request_id: UUID
    run_id: UUID
    action: ParkedAction
    chosen: Chosen
    options: ReplayOptions
    total: int | None
    report: dict[str, Any]
    progressed_at: datetime
    after: UUID
    last: UUID
    portion: list[UUID] | None
    portion_since: datetime | None


class ClosedParkedRequest(msgspec.Struct, frozen=True):
    action: str
    reason: str | None
    dry_run: bool
    requested_by: str
    report: dict[str, Any]


async def count_open(tx: Tx, tenant_id: int) -> int:
    return int(await tx.fetchval(S.count_open_parked_requests, tenant_id))


async def open_request(tx: Tx, new: NewParkedRequest) -> ParkedRequest:
    row = await tx.fetchrow(
        S.open_parked_request,
        new.tenant_id,
        new.parked_request_id,
        new.action,
        new.chosen.reason,
        list(new.chosen.ids) or None,
        new.options.on_failure,
        new.options.dry_run,
        new.options.force,
        _json(new.report),
        new.requested_by,
        new.created_at,
    )
    return _request(row or {})


async def begin(
    tx: Tx, tenant_id: int, request_id: UUID, run_id: UUID, *, now: datetime, last: UUID
) -> ParkedRun | None:
    """Take the request over from every earlier run. None if it has ended."""
    row = await tx.fetchrow(S.begin_parked_request, tenant_id, request_id, run_id, now, last)
    if row is None:
        return None
    values = _decoded(row)
    chosen = Chosen(tenant_id, values.pop("reason"), tuple(values.pop("ids") or ()))
    options = ReplayOptions(OnFailure(values.pop("on_failure")), values.pop("dry_run"), values.pop("force"))
    action = ParkedAction(values.pop("action"))
    return ParkedRun(**values, action=action, chosen=chosen, options=options)


async def record_total(tx: Tx, run: ParkedRun, total: int) -> None:
    await tx.execute(S.record_parked_total, run.tenant_id, run.parked_request_id, run.run_id, total)


async def claim_portion(tx: Tx, run: ParkedRun, ids: Sequence[UUID]) -> datetime | None:
    """A moment before the portion is begun; None if a later run has taken over."""
    since: datetime | None = await tx.fetchval(
        S.claim_parked_portion, run.tenant_id, run.parked_request_id, run.run_id, list(ids)
    )
    return since


async def record_portion(tx: Tx, run: ParkedRun, after: UUID, report: Mapping[str, Any], now: datetime) -> bool:
    """False if a later run has taken over, or the request has ended."""
    written = await tx.execute(
        S.record_parked_portion, run.tenant_id, run.parked_request_id, run.run_id, after, _json(report), now
    )
    return written > 0


async def record_error(tx: Tx, run: ParkedRun, error: str) -> datetime | None:
    """When the request made progress last; None if a later run has taken over."""
    progressed_at: datetime | None = await tx.fetchval(
        S.record_parked_error, run.tenant_id, run.parked_request_id, run.run_id, error
    )
    return progressed_at


async def close(
    tx: Tx, tenant_id: int, request_id: UUID, status: str, error: str | None, now: datetime, *, run_id: UUID | None
) -> ClosedParkedRequest | None:
    """None if it had ended already, or if this run is not its latest."""
    row = await tx.fetchrow(S.close_parked_request, tenant_id, request_id, status, error, now, run_id)
    return ClosedParkedRequest(**_decoded(row)) if row else None


async def read(tx: Tx, tenant_id: int, request_id: UUID) -> ParkedRequest | None:
    row = await tx.fetchrow(S.read_parked_request, tenant_id, request_id)
    return _request(row) if row else None


async def idle(tx: Tx, before: datetime, limit: int) -> list[tuple[int, UUID]]:
    """Open requests without progress since then: (tenant, request)."""
    return [
        (row["tenant_id"], row["parked_request_id"]) for row in await tx.fetch(S.idle_parked_requests, before, limit)
    ]


async def prune(database: Database, before: datetime) -> int:
    """Remove requests that ended before that time."""
    return await repeat(database, S.prune_parked_requests, before)


def _request(row: Mapping[str, Any]) -> ParkedRequest:
    return msgspec.convert(_decoded(row), ParkedRequest)


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(row), "report": msgspec.json.decode(row["report"])}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
