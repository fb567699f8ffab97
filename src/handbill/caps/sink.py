"""The caps' place in the pipeline's transaction: rows of views, then their confirmation in Redis.

The pipeline stands above this room, so its rows are described here by what is read of them, not imported.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Protocol, cast

from handbill.caps.service import CapEntry, CapsService, NewView, moves_of
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import from_ms

_KNOWN_S = 60.0
"""For how long a month that was there is taken to be there still."""


class ViewEvent(Protocol):
    """A view as the journal carries it."""

    @property
    def tenant(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def at(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def banner(self) -> int: ...
    @property
    def placement(self) -> int | None: ...
    @property
    def campaign(self) -> int | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def session(self) -> str | None: ...
    @property
    def device_id(self) -> str | None: ...
    @property
    def duration_ms(self) -> int: ...
    @property
    def dismissed(self) -> bool: ...
    @property
    def counted(self) -> bool: ...
    @property
    def marks(self) -> tuple[str, ...]: ...
    @property
    def variant(self) -> str | None: ...


class AnyRow(Protocol):
    @property
    def key(self) -> bytes: ...
    @property
    def event(self) -> object: ...


class CapsSink:
    def __init__(self, database: Database, caps: CapsService) -> None:
        self._database = database
        self._caps = caps
        self._months: set[date] = set()
        self._known_until = 0.0

    async def prepare(self, rows: Sequence[AnyRow]) -> None:
        """The month of every view exists before the transaction begins."""
        if time.monotonic() > self._known_until:  # retention may drop a month that an import of history wants again
            self._months.clear()
            self._known_until = time.monotonic() + _KNOWN_S
        wanted = {from_ms(event.at).date().replace(day=1) for _, event in _views(rows)}
        for month in sorted(wanted - self._months):
            async with self._database.worker() as tx:
                await self._caps.views.make_month(tx, month)
            self._months.add(month)

    async def write(self, tx: Tx, rows: Sequence[AnyRow], lane: int, lowered: Sequence[AnyRow] = ()) -> None:
        views = [_new(key, event) for key, event in _views(rows)]
        if views:
            await self._caps.views.add(tx, views, lane)

    async def project(self, survivors: Sequence[AnyRow], refused: Sequence[AnyRow]) -> None:
        await self._caps.settle(_entries(survivors), _entries(refused))


def _views(rows: Iterable[AnyRow]) -> list[tuple[bytes, ViewEvent]]:
    return [(row.key, cast(ViewEvent, row.event)) for row in rows if getattr(row.event, "kind", "") == "view"]


def _entries(rows: Iterable[AnyRow]) -> list[CapEntry]:
    found = []
    for key, event in _views(rows):
        if event.counted and event.user is not None:
            moves = moves_of(key, event.at, event.banner, event.campaign, event.placement)
            found.append(CapEntry(event.tenant, event.user, moves, event.device_id, event.session))
    return found


def _new(key: bytes, event: ViewEvent) -> NewView:
    return NewView(
        tenant_id=event.tenant,
        event_key=key,
        event_id=event.id,
        banner_id=event.banner,
        user_id=event.user or "",
        at_ms=event.at,
        received_ms=event.received,
        placement_id=event.placement,
        campaign_id=event.campaign,
        device_id=event.device_id,
        session_id=event.session,
        duration_ms=event.duration_ms,
        dismissed=event.dismissed,
        counted=event.counted,
        marks=event.marks,
        variant=event.variant,
    )
