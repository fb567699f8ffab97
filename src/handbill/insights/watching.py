"""One tail as a stream of messages: what the journal shows at once, and now and then what the pipeline said of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from handbill.events.service import Drop, EventsService
from handbill.insights.tail import Tails, Wanted
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy

LOOK_S = 2.0
STILL_S = 15.0
LIFE_S = 3600.0


class Told(msgspec.Struct, frozen=True):
    """`open` comes first; `seen`, `parked` and `dropped` as they happen; `missed`, with how many, when some could
    not be shown; `still` when nothing was to tell for a while; `over` after an hour: open it again."""

    kind: Literal["open", "seen", "parked", "dropped", "missed", "still", "over"]
    value: Any = None


class Pipeline:
    """What the pipeline told since the last look. The first look only learns where it stands."""

    def __init__(self, events: EventsService, clock: Clock, tenant: int) -> None:
        self._events = events
        self._clock = clock
        self._tenant = tenant
        self._after = UUID(int=clock.now_ms() << 80)
        self._known: dict[tuple[Any, ...], int] | None = None

    async def look(self) -> list[Told]:
        today = self._clock.now().date()
        rows = await self._events.parked(self._tenant, reason=None, replayed=True, after=self._after, limit=50)
        if rows:
            self._after = rows[-1].id
        drops = await self._events.drops(self._tenant, today, today + timedelta(days=1))
        known, self._known = self._known, {(drop.day, drop.kind, drop.reason): drop.events for drop in drops}
        told = [Told("parked", row) for row in rows]
        if known is None:
            return told
        for drop in drops:
            more = drop.events - known.get((drop.day, drop.kind, drop.reason), 0)
            if more > 0:
                told.append(Told("dropped", Drop(drop.day, drop.kind, drop.reason, more, drop.kept)))
        return told


async def watched(
    tails: Tails, events: EventsService, clock: Clock, tenant: int, wanted: Wanted
) -> AsyncGenerator[Told, None]:
    pipeline = Pipeline(events, clock, tenant)
    begun = looked = spoke = clock.monotonic()
    async with tails.opened(tenant, wanted) as tail:
        yield Told("open")
        while clock.monotonic() - begun < LIFE_S:
            found = await tail.next(LOOK_S)
            if found is None:
                return
            told = [Told("seen", seen) for seen in found[0]]
            if found[1] is not None:
                told.append(Told("missed", found[1]))
            now = clock.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                told += await _looked(pipeline)
            if told:
                spoke = now
            elif now - spoke >= STILL_S:
                spoke = now
                told.append(Told("still"))
            for one in told:
                yield one
    yield Told("over")


async def _looked(pipeline: Pipeline) -> list[Told]:
    """While PostgreSQL is away the tail goes on without its news."""
    try:
        return await pipeline.look()
    except Busy:
        return []
