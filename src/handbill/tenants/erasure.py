"""Erasure: every room that keeps something about people joins the registry, and one request reaches them all.

An eraser nulls identifiers and drops properties in its own store and tells how many rows it cleared; rows that are
counted stay. It must be safe to repeat: an erasure that failed half way is simply asked for again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import HandbillError
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, page
from handbill.kit.telemetry import logs
from handbill.tenants import store
from handbill.tenants.audit import Audit
from handbill.tenants.cursors import after_id, id_of
from handbill.tenants.model import Erasure

Eraser = Callable[[int, str], Awaitable[Mapping[str, int]]]
"""Given the tenant's number and the subject's id: rows cleared, by table."""

log = logs.get("tenants")


class Erasures:
    def __init__(self, database: Database, audit: Audit, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._erasers: dict[str, Eraser] = {}

    def join(self, room: str, eraser: Eraser) -> None:
        """Called by the wiring, once for each room that keeps something about people."""
        if room in self._erasers:
            raise ValueError(f"{room} has already joined the erasure registry")
        self._erasers[room] = eraser

    @property
    def rooms(self) -> tuple[str, ...]:
        return tuple(self._erasers)

    async def erase(self, tenant_id: int, subject: str, *, actor: str) -> Erasure:
        """Asks every room, whatever the others answer, and writes the report. One failed room makes it `failed`."""
        erasure_id, digest = self._ids.new(), _digest(tenant_id, subject)
        async with self._database.tenant(tenant_id) as tx:
            await store.open_erasure(tx, tenant_id, erasure_id, subject, digest, actor, self._clock.now())
            await self._audit.write(
                tx, tenant_id, actor=actor, action="erasure.open", object=f"subject {digest.hex()[:16]}"
            )
        report: dict[str, Any] = {}
        failed = False
        for room, eraser in self._erasers.items():
            try:
                report[room] = dict(await eraser(tenant_id, subject))
            except HandbillError as error:
                failed = True
                report[room] = {"error": error.code}
                log.warning("erasure-failed", tenant=tenant_id, room=room, code=error.code, erasure=str(erasure_id))
        status = "failed" if failed else "done"
        async with self._database.tenant(tenant_id) as tx:
            closed = await store.close_erasure(tx, tenant_id, erasure_id, status, report, self._clock.now())
            if not failed:
                await store.forget_subject(tx, tenant_id, digest)
            await self._audit.write(
                tx,
                tenant_id,
                actor=actor,
                action=f"erasure.{status}",
                object=f"subject {digest.hex()[:16]}",
                after=report,
            )
        return closed

    async def list(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Erasure]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_erasures(tx, tenant_id, after_id(cursor), limit + 1)
        return page(rows, limit, lambda row: id_of(row.erasure_id))


def _digest(tenant_id: int, subject: str) -> bytes:
    return hashlib.sha256(f"{tenant_id}\0{subject}".encode()).digest()
