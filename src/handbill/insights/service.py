"""The face of this room: questions over time, stored events, the live tail, and where one event went."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.events.model import KINDS, key
from handbill.events.service import EventsService
from handbill.infra.clickhouse import ClickHouse
from handbill.insights import answers, compile, table
from handbill.insights.compile import Compiled, Place, Range
from handbill.insights.model import (
    EXPORT_ROWS,
    SEARCH_DAYS,
    EventRow,
    Funnel,
    FunnelQuery,
    Retention,
    RetentionQuery,
    SearchQuery,
    Stored,
    Trends,
    TrendsQuery,
    Whereabouts,
)
from handbill.insights.periods import EARLIEST, LATEST, check_range, midnight
from handbill.insights.questions import MembersOf, Questions
from handbill.insights.store import Bounds, EventStoreReader
from handbill.insights.tail import Seen, Tails, Wanted
from handbill.insights.watching import Told, watched
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, HandbillError, Invalid, NotFound
from handbill.kit.pages import Page, decode, page
from handbill.tenants.service import Directory

__all__ = [
    "Bounds", "Compiled", "EventStoreReader", "IdsOf", "InsightsService", "MembersOf", "NamesOf", "Seen", "Tails",
    "Told", "Wanted",
]  # fmt: skip

_PAGE_BYTES = 4 << 20
"""Of properties on one page. An answer is written on the event loop, whatever its size."""
_PORTION_BYTES = 1 << 20
"""Of properties in one piece of an export."""
_NAMED = ("banner", "placement", "campaign")

IdsOf = Callable[[int, UUID], Awaitable[Sequence[str]]]
"""Handed in by the wiring: a person's ids, as PostgreSQL has them; none if there is no such person."""

NamesOf = Callable[[int, Mapping[str, UUID]], Awaitable[Mapping[str, str]]]
"""Handed in by the wiring: the names of a tenant's banner, placement and campaign by their public ids."""
_BANNER_KINDS = {f"$banner_{kind}": kind for kind in ("impression", "click", "view")}


class InsightsService:
    def __init__(
        self,
        clickhouse: ClickHouse,
        events: EventsService,
        directory: Directory,
        tails: Tails,
        clock: Clock,
        *,
        ids_of: IdsOf | None = None,
        names_of: NamesOf | None = None,
        members_of: MembersOf | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.reader = EventStoreReader(clickhouse, bounds or Bounds())
        self.questions = Questions(self.reader, directory, members_of)
        self.tails = tails
        self._events = events
        self._clock = clock
        self._ids_of = ids_of
        self._names_of = names_of

    async def start(self) -> None:
        await self.tails.start()

    async def stop(self) -> None:
        await self.tails.stop()

    def hang_up(self) -> None:
        """End every live tail; for a server that begins to stop."""
        self.tails.hang_up()

    async def trends(self, tenant: int, query: TrendsQuery) -> Trends:
        return await self.questions.trends(tenant, query)

    async def funnel(self, tenant: int, query: FunnelQuery) -> Funnel:
        return await self.questions.funnel(tenant, query)

    async def retention(self, tenant: int, query: RetentionQuery) -> Retention:
        return await self.questions.retention(tenant, query)

    async def search(self, tenant: int, query: SearchQuery, cursor: str | None, limit: int) -> Page[EventRow]:
        """Stored events, newest first; fewer than `limit` where they are large."""
        within = await self._range(tenant, query)
        asked = compile.events(
            tenant, within, filters=query.filters, event=query.event, distinct_ids=query.distinct_ids,
            before=_place(cursor), rows=limit + 1,
        )  # fmt: skip
        async with self.reader.limiter.slot(tenant):
            return await asyncio.to_thread(_page, await self.reader.ask(asked), limit)

    async def of_person(
        self, tenant: int, person: UUID, query: SearchQuery, cursor: str | None, limit: int
    ) -> Page[EventRow]:
        """A person's events under all of its ids, as PostgreSQL knows them at this moment."""
        ids = await self._ids_of(tenant, person) if self._ids_of is not None else ()
        if not ids:
            raise NotFound("There is no such person in this tenant.", code="PERSON_NOT_FOUND")
        return await self.search(tenant, msgspec.structs.replace(query, distinct_ids=tuple(ids)), cursor, limit)

    async def export(self, tenant: int, query: SearchQuery) -> AsyncGenerator[bytes, None]:
        """The same events as CSV, in pieces. Its first piece is only given once the store has begun to answer."""
        within = await self._range(tenant, query)
        asked = compile.events(
            tenant, within, filters=query.filters, event=query.event, distinct_ids=query.distinct_ids,
            rows=EXPORT_ROWS + 1,
        )  # fmt: skip
        head, sent = table.rows([table.EVENT_COLUMNS]), 0
        async with self.reader.limiter.slot(tenant), aclosing(self.reader.stream(asked)) as blocks:
            try:
                async for block in blocks:
                    for portion in answers.in_portions(block[: EXPORT_ROWS - sent], _PORTION_BYTES):
                        yield head + await asyncio.to_thread(_lines, portion)
                        head = b""
                    sent += len(block)
            except HandbillError:
                if head:
                    raise  # nothing was sent yet: the caller gets a proper answer
                yield f"{table.BROKEN}\r\n".encode()
                return
        yield head + (f"{table.CUT}\r\n".encode() if sent > EXPORT_ROWS else b"")

    async def explain(self, tenant: int, event_id: str) -> Whereabouts:
        """Where did my event go? Accepted, waiting, counted, parked or unknown; in the event store; whose it is now."""
        told = await self._events.explain(tenant, event_id)
        stored = await self._stored(tenant, event_id)
        outcome, said = told.outcome, told.said
        if outcome in ("unknown", "waiting") and stored.row is not None:
            became = self._events.stored.judge(_kind_of(stored.row), stored.row.marks, stored.row.properties)
            outcome, said = (
                became.outcome,
                f"{became.said} That was more than 35 days ago: only the event store knows it.",
            )
        elif outcome == "counted" and stored.state == "not_yet":
            said = f"{said} On its way to the event store."
        return Whereabouts(
            event_id, outcome, said, told.kind, told.counted_at, told.parked, stored,
            stored.row.person_id if stored.row is not None else None, await self._names(tenant, stored.row),
        )  # fmt: skip

    async def _names(self, tenant: int, row: EventRow | None) -> dict[str, str]:
        """What the ids in the event's properties are called."""
        if row is None or self._names_of is None:
            return {}
        publics = {kind: value for kind in _NAMED if (value := _uuid(row.properties.get(f"{kind}_id"))) is not None}
        return dict(await self._names_of(tenant, publics)) if publics else {}

    async def _stored(self, tenant: int, event_id: str) -> Stored:
        within = Range(datetime(EARLIEST.year, 1, 1, tzinfo=UTC), datetime(LATEST.year, 1, 1, tzinfo=UTC))
        keys = [key(kind, event_id).hex() for kind in KINDS]
        try:
            async with self.reader.limiter.slot(tenant):
                rows = await self.reader.ask(compile.events(tenant, within, keys=keys, rows=1), again=False)
        except (Busy, Invalid):  # away, or so large that it could not be found in time: the rest of the answer stands
            return Stored("away")
        return Stored("shipped", answers.event_row(rows[0])) if rows else Stored("not_yet")

    def watch(self, tenant: int, wanted: Wanted) -> AsyncGenerator[Told, None]:
        """What happens, as it happens: accepted events within a second, and what the pipeline parked or dropped."""
        return watched(self.tails, self._events, self._clock, tenant, wanted)

    async def _range(self, tenant: int, query: SearchQuery) -> Range:
        zone = await self.questions.zone(tenant, query.zone)
        check_range(query.start, query.end, SEARCH_DAYS)
        return Range(midnight(query.start, zone), midnight(query.end, zone))

    def now(self) -> datetime:
        return self._clock.now()


def _uuid(value: object) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _kind_of(row: EventRow) -> str:
    return _BANNER_KINDS.get(row.event, "capture") if row.source == "banners" else "capture"


def _page(rows: Sequence[tuple[Any, ...]], limit: int) -> Page[EventRow]:
    """Called in a thread: the properties of a page may take long to decode."""
    size = len(next(answers.in_portions(rows[:limit], _PAGE_BYTES), ()))
    part = page(rows[: size + 1], size, answers.place)
    return Page([answers.event_row(row) for row in part.items], part.next)


def _lines(rows: Sequence[tuple[Any, ...]]) -> bytes:
    return table.events(answers.event_row(row) for row in rows)


def _place(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    us, sequence, event_id, last = decode(cursor, (int, int, str, str))
    if not (0 <= int(us) < 2**63 and 0 <= int(sequence) < 2**64 and len(str(last)) == 32):
        raise Invalid("The cursor is not one of ours; start again without it.", code="BAD_CURSOR")
    return int(us), int(sequence), str(event_id), str(last)
