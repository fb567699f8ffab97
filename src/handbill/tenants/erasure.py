"""Erasure: every package that keeps something about people joins the registry; one request reaches them all.

A request is recorded with its job, and the worker runs it step by step: one step for each package. An eraser nulls
identifiers and drops properties in its own store and counts the rows that it cleared; rows that are counted stay. It
must be safe to repeat: a worker that died in a step is followed by one that does the step again.
See docs/states/request.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, EngineRefused, HandbillError, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, page
from handbill.kit.telemetry import logs
from handbill.tenants import person_store as store
from handbill.tenants.audit import Audit
from handbill.tenants.cursors import after_id, id_of
from handbill.tenants.model import Erasure

Eraser = Callable[[int, str], Awaitable[Mapping[str, int]]]
"""Given the tenant's number and one id of the subject: rows cleared, by table."""
WholeEraser = Callable[[int, list[str]], Awaitable[Mapping[str, int]]]
"""The same, given all ids of the subject at once: for rooms where one id costs as much as a thousand."""
Exporter = Callable[[int, str, int], Awaitable[Mapping[str, Sequence[Mapping[str, Any]]]]]
"""Given the tenant's number, the subject's id and the most rows wanted of one table: rows about them, by table.
The number shrinks as an export fills up."""
Settled = Callable[[int], Awaitable[None]]
"""Returns when all that was accepted for the tenant before the call is committed, and who is who is known."""
Siblings = Callable[[int, str], Awaitable[Sequence[str]]]
"""Every id of the person who has this one, itself included. Handed in by the wiring."""
QUEUE = "requests"
ERASE = "erase-person"
ACCEPTED = "accepted"
"""In a report: what was accepted and is not counted yet. No room has this name."""
GIVE_UP_AFTER = timedelta(hours=24)
"""How long an erasure waits for an engine that is away before it has failed."""
_FAILURES = (HandbillError, EngineRefused)

log = logs.get("tenants")


class Erasures:
    """The registry of packages that keep something about people, and the erasures that reach them."""

    def __init__(self, database: Database, outbox: Outbox, audit: Audit, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._outbox = outbox
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._erasers: dict[str, WholeEraser] = {}
        self.exporters: dict[str, Exporter] = {}
        self._last: str | None = None
        self.settled: Settled | None = None
        self.siblings: Siblings | None = None

    def join(self, room: str, eraser: Eraser, exporter: Exporter | None = None) -> None:
        """Called by the wiring, once for each room that keeps something about people, or `join_whole` instead."""
        self.join_whole(room, _each(eraser), exporter)

    def join_whole(
        self, room: str, eraser: WholeEraser, exporter: Exporter | None = None, *, last: bool = False
    ) -> None:
        """For a room that forgets all ids of a person at once.

        The `last` room knows which ids are one person: it forgets them only after every other room has, since an
        erasure that is asked for again must still find them all.
        """
        if room in self._erasers or room == ACCEPTED:
            raise ValueError(f"{room} has already joined the erasure registry")
        self._erasers[room] = eraser
        if exporter is not None:
            self.exporters[room] = exporter
        if last:
            self._last = room

    @property
    def rooms(self) -> tuple[str, ...]:
        return tuple(self._erasers)

    async def request(self, tenant_id: int, subject: str, *, actor: str) -> Erasure:
        """Record an erasure and its job, in one transaction. The worker does the rest."""
        erasure_id, digest = self._ids.new(), _digest(tenant_id, subject)
        async with self._database.tenant(tenant_id) as tx:
            erasure = await store.open_erasure(
                tx, tenant_id, erasure_id, subject, digest,
                steps=len(self._erasers), actor=actor, now=self._clock.now(),
            )  # fmt: skip
            await self._audit.write(tx, tenant_id, actor=actor, action="erasure.open", object=_named(digest))
            await self._outbox.put(tx, QUEUE, ERASE, {"request_id": str(erasure_id)}, tenant_id=tenant_id)
        return erasure

    async def run(self, tenant_id: int, erasure_id: UUID) -> Erasure:
        """Do the steps that are not done yet, and close the erasure if none is left or one cannot be done.

        It stays `running`, with the code of the error, while an engine is away: run it again later.
        """
        async with self._database.tenant(tenant_id) as tx:
            row = await store.begin_erasure(tx, tenant_id, erasure_id, len(self._erasers), self._clock.now())
        if row is not None:
            run = _Run(tenant_id, erasure_id, row.report)
            if ids := row.ids or await self._collect_ids(run, row.subject):
                await self._clear(run, ids)
            await self._close(run, row, ids)
        return await self.get(tenant_id, erasure_id)

    async def fail(self, tenant_id: int, erasure_id: UUID) -> None:
        """Its job failed for good: so has the erasure."""
        await self._end(tenant_id, erasure_id, "failed", "JOB_FAILED", ())

    async def ids_of(self, tenant_id: int, subject: str) -> list[str]:
        """Every id of the person who has this one, itself included, in order."""
        known = await self.siblings(tenant_id, subject) if self.siblings is not None else ()
        return sorted({subject, *known})

    async def _collect_ids(self, run: _Run, subject: str) -> list[str]:
        """All ids of the person, stored for the steps; none if that cannot be known now.

        Without knowing all that was sent about a person no package is asked: an event that is still on its way would
        bring back who was just erased.
        """
        try:
            if self.settled is not None:
                await self.settled(run.tenant_id)
            ids = await self.ids_of(run.tenant_id, subject)
        except _FAILURES as error:
            run.failed(ACCEPTED, error)
            return []
        async with self._database.tenant(run.tenant_id) as tx:
            await store.record_erasure_ids(tx, run.tenant_id, run.erasure_id, ids)
        return ids

    async def _clear(self, run: _Run, ids: list[str]) -> None:
        """Every step that is not done, whatever the others answer; the last one only after all others."""
        for room in sorted(self._erasers, key=lambda each: each == self._last):
            if "error" not in run.report.get(room, {"error": None}):
                continue
            if run.errors and room == self._last:
                run.report[room] = {"error": "WAITS_FOR_THE_OTHERS"}
            else:
                try:
                    run.report[room] = dict(await self._erasers[room](run.tenant_id, ids))
                except _FAILURES as error:
                    run.failed(room, error)
            async with self._database.tenant(run.tenant_id) as tx:
                await store.record_erasure_step(
                    tx, run.tenant_id, run.erasure_id, room, run.report[room], run.first_error
                )

    async def _close(self, run: _Run, row: store.RunningErasure, ids: Sequence[str]) -> None:
        if not run.errors:
            await self._end(run.tenant_id, run.erasure_id, "done", None, ids)
            return
        log.warning("erasure-failed", tenant=run.tenant_id, failed=run.errors, erasure=str(run.erasure_id))
        if ACCEPTED in run.errors:
            async with self._database.tenant(run.tenant_id) as tx:
                await store.record_erasure_step(
                    tx, run.tenant_id, run.erasure_id, ACCEPTED, run.report[ACCEPTED], run.first_error
                )
        if run.is_final or self._clock.now() - row.created_at >= GIVE_UP_AFTER:
            await self._end(run.tenant_id, run.erasure_id, "failed", run.first_error, ids)

    async def _end(
        self, tenant_id: int, erasure_id: UUID, status: str, error: str | None, ids: Sequence[str]
    ) -> None:  # fmt: skip
        """Once: whoever comes second changes nothing. Exports of an erased person go with it."""
        async with self._database.tenant(tenant_id) as tx:
            closed = await store.close_erasure(tx, tenant_id, erasure_id, status, error, self._clock.now())
            if closed is None:
                return
            if status == "done":
                await store.erase_exports(tx, tenant_id, list(ids))
                await store.forget_subject(tx, tenant_id, closed.subject_hash)
            await self._audit.write(
                tx,
                tenant_id,
                actor=closed.requested_by,
                action=f"erasure.{status}",
                object=_named(closed.subject_hash),
                after=closed.report,
            )

    async def get(self, tenant_id: int, erasure_id: UUID) -> Erasure:
        """Raises NotFound, for another tenant's erasure too."""
        async with self._database.tenant(tenant_id) as tx:
            erasure = await store.read_erasure(tx, tenant_id, erasure_id)
        if erasure is None:
            raise NotFound("There is no such erasure.", code="ERASURE_NOT_FOUND")
        return erasure

    async def since(self, tenants: Collection[int], moment: datetime) -> set[int]:
        """Those of these tenants where an erasure was under way at that moment or later: their rows from before may
        name somebody who was erased since."""
        async with self._database.worker() as tx:
            return await store.erased_since(tx, sorted(tenants), moment)

    async def list(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Erasure]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_erasures(tx, tenant_id, after_id(cursor), limit + 1)
        return page(rows, limit, lambda row: id_of(row.erasure_id))


class _Run(msgspec.Struct):
    """One run of an erasure: the report so far, and what could not be done this time, by step."""

    tenant_id: int
    erasure_id: UUID
    report: dict[str, Any]
    errors: dict[str, str] = msgspec.field(default_factory=dict)
    is_final: bool = False
    """An error of this run will not go away by itself."""

    def __post_init__(self) -> None:
        self.report.pop(ACCEPTED, None)

    def failed(self, step: str, error: Exception) -> None:
        self.errors[step] = _code(step, error)
        self.report[step] = {"error": self.errors[step]}
        self.is_final = self.is_final or not isinstance(error, Busy)

    @property
    def first_error(self) -> str | None:
        return next(iter(self.errors.values()), None)


def _code(room: str, error: Exception) -> str:
    """For the report. The log names the statement that an engine refused, and not its words: they may name somebody."""
    if isinstance(error, HandbillError):
        return error.code
    why = getattr(error, "sqlstate", getattr(error, "code", None))
    log.error(
        "eraser-broken", room=room, error=type(error).__name__, why=why, statement=getattr(error, "statement", None)
    )
    return "BROKEN"


def _each(eraser: Eraser) -> WholeEraser:
    async def whole(tenant_id: int, ids: list[str]) -> Mapping[str, int]:
        cleared: Counter[str] = Counter()
        for each in ids:
            for table, rows in (await eraser(tenant_id, each)).items():
                cleared[table] += rows
        return dict(cleared)

    return whole


def _named(digest: bytes) -> str:
    """How the audit log names the person."""
    return f"subject {digest.hex()[:16]}"


def _digest(tenant_id: int, subject: str) -> bytes:
    return hashlib.sha256(f"{tenant_id}\0{subject}".encode()).digest()
