"""Erasure and export: every room that keeps something about people joins the registry; one request reaches them all.

An eraser nulls identifiers and drops properties in its own store and tells how many rows it cleared; rows that are
counted stay. It must be safe to repeat: an erasure that failed half way is simply asked for again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, EngineRefused, HandbillError
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, page
from handbill.kit.telemetry import logs
from handbill.tenants import store
from handbill.tenants.audit import Audit
from handbill.tenants.cursors import after_id, id_of
from handbill.tenants.model import Erasure, Export

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
EXPORT_ROWS = 10_000
"""Rows of one export in all: of every id, package and table of the person."""
ACCEPTED = "accepted"
"""In a report: what was accepted and is not counted yet. No room has this name."""
_FAILURES = (HandbillError, EngineRefused)

log = logs.get("tenants")


class Erasures:
    def __init__(self, database: Database, audit: Audit, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._erasers: dict[str, WholeEraser] = {}
        self._exporters: dict[str, Exporter] = {}
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
            self._exporters[room] = exporter
        if last:
            self._last = room

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
        report, failed = await self._cleared(tenant_id, subject)
        if failed:
            log.warning("erasure-failed", tenant=tenant_id, failed=failed, erasure=str(erasure_id))
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

    async def export(self, tenant_id: int, subject: str, *, actor: str) -> Export:
        """Everything the rooms keep about the person who has this id; a room whose engine is away is named instead."""
        ids = await self._ids_of(tenant_id, subject)
        collected = _Collected(EXPORT_ROWS)
        away: list[str] = []
        for room, exporter in self._exporters.items():
            try:
                collected.add(room, {})
                for each in ids:
                    if not collected.left:
                        collected.cut.add(room)  # whether it has more was not asked
                        break
                    collected.add(room, await exporter(tenant_id, each, collected.left + 1))
            except Busy as error:
                away.append(room)
                log.warning("export-without-a-room", tenant=tenant_id, room=room, code=error.code)
        async with self._database.tenant(tenant_id) as tx:
            digest = _digest(tenant_id, subject).hex()[:16]
            await self._audit.write(tx, tenant_id, actor=actor, action="person.export", object=f"subject {digest}")
        return Export(subject, list(ids), collected.rooms, sorted(collected.cut), away)

    async def _ids_of(self, tenant_id: int, subject: str) -> list[str]:
        known = await self.siblings(tenant_id, subject) if self.siblings is not None else ()
        return sorted({subject, *known})

    async def _cleared(self, tenant_id: int, subject: str) -> tuple[dict[str, Any], dict[str, str]]:
        """What each room has to tell, and the codes of those that could not.

        Without knowing all that was said about somebody no room is asked: an event that is still on its way would
        bring back who was just forgotten.
        """
        try:
            if self.settled is not None:
                await self.settled(tenant_id)
            ids = await self._ids_of(tenant_id, subject)
        except _FAILURES as error:
            code = _code(ACCEPTED, error)
            return {ACCEPTED: {"error": code}}, {ACCEPTED: code}
        report: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for room in sorted(self._erasers, key=lambda each: each == self._last):
            if failed and room == self._last:
                report[room] = {"error": "WAITS_FOR_THE_OTHERS"}
                continue
            try:
                report[room] = dict(await self._erasers[room](tenant_id, ids))
            except _FAILURES as error:
                failed[room] = _code(room, error)
                report[room] = {"error": failed[room]}
        return report, failed

    async def since(self, tenants: Collection[int], moment: datetime) -> set[int]:
        """Those of these tenants where an erasure was under way at that moment or later: their rows from before may
        name somebody who was erased since."""
        async with self._database.worker() as tx:
            return await store.erased_since(tx, sorted(tenants), moment)

    async def list(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Erasure]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_erasures(tx, tenant_id, after_id(cursor), limit + 1)
        return page(rows, limit, lambda row: id_of(row.erasure_id))


class _Collected:
    """The rows of one export so far, by package and table; never more than `max_rows` in all."""

    def __init__(self, max_rows: int) -> None:
        self.left = max_rows
        self.cut: set[str] = set()
        self.rooms: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def add(self, room: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        kept = self.rooms.setdefault(room, {})
        for table, rows in tables.items():
            if len(rows) > self.left:
                self.cut.add(table)
            some = [dict(row) for row in rows[: self.left]]
            kept.setdefault(table, []).extend(some)
            self.left -= len(some)


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


def _digest(tenant_id: int, subject: str) -> bytes:
    return hashlib.sha256(f"{tenant_id}\0{subject}".encode()).digest()
