"""The face of this room: take events in, and answer what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.events.correction_store import CorrectionStore
from handbill.events.csv_mapping import CsvMapping, MappingFile, csv_mapping
from handbill.events.dead import DeadLetters, Guard
from handbill.events.dialects.files import FileFormat
from handbill.events.edge import Edge, Stalled
from handbill.events.history_import import RECORDS, RECORDS_BYTES, HistoryImporter, RecordSource, RefusedRecord
from handbill.events.history_intake import HistoryIntake
from handbill.events.key_lookup import KeyLookup
from handbill.events.lane_progress import LaneCursors, LaneProgress
from handbill.events.model import HORIZON_DAYS, KINDS, Counted, Dropped, Event, Reason, key
from handbill.events.parked_model import Chosen, DropReport, OnFailure, ParkedRequest, Replayed, ReplayOptions
from handbill.events.parked_requests import ParkedRequests
from handbill.events.reader import Drop, EventReader, ParkedRow
from handbill.events.shipping_store import LostBatch, ShippingStore
from handbill.events.store import EventStore
from handbill.events.stored import Outcome, StoredEvents
from handbill.infra.postgres import Database, work
from handbill.infra.state import StateTable
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.ids import Ids
from handbill.kit.read_waits import Completeness
from handbill.tenants.service import Audit

__all__ = [
    "RECORDS", "RECORDS_BYTES", "STATE", "Chosen", "CsvMapping", "Drop", "DropReport", "EventsService", "Explanation",
    "FileFormat", "HistoryImporter", "HistoryIntake", "LaneCursors", "LaneProgress", "LostBatch", "MappingFile",
    "OnFailure", "Outcome", "ParkedRequest", "ParkedRequests", "ParkedRow", "RecordSource", "RefusedRecord",
    "ReplayOptions", "Replayed", "StoredEvents", "csv_mapping",
]  # fmt: skip

STATE = (
    StateTable("events.event_keys", ("tenant_id", "key"), frozenset({"stored_time"})),
    StateTable("events.drops", ("tenant_id", "day", "kind", "reason"), frozenset({"lane"}), frozenset({"events"})),
)

REPLAYED_DAYS = 90

KEY_PAGES = 128
"""Pages of each of the 16 partitions that one statement reads: 16 MiB, about 280,000 keys."""


CORRECTIONS_AT_ONCE = 5_000
"""Corrections that one statement deletes."""


class Explanation(Completeness, frozen=True):
    """Where an event went. `outcome` is counted, counted_apart (marked, e.g. as a bot's), not_counted (a view that was
    too short), stored (whether it counted is not known yet), parked, waiting or unknown. `counted_at`: when it came in.
    """

    event_id: str
    kind: str | None
    """impression, click, view or capture; null: not known."""
    outcome: str
    """Where it is now, as a constant: counted, counted_apart, not_counted, stored, parked, waiting or unknown."""
    said: str
    """The same in words, with the reason where there is one."""
    counted_at: datetime | None = None
    """When it came in; null: it is not stored."""
    parked: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Each time it was parked: when, why, and whether it was sent in again."""


class EventsService:
    def __init__(
        self, database: Database, edge: Edge, *,
        audit: Audit, outbox: Outbox, stored: StoredEvents, history: HistoryIntake, clock: Clock | None = None,
        breaker: Guard | None = None,
    ) -> None:  # fmt: skip
        clock = clock or SystemClock()
        self._clock = clock
        self._ids = Ids(clock)
        self._history = history
        self.dead = DeadLetters(database, edge, clock, audit, breaker)
        self.parked_requests = ParkedRequests(database, outbox, audit, self.dead, clock, self._ids)
        self._database = database
        self._edge = edge
        self._reader = EventReader()
        self._store = EventStore()
        self._corrections = CorrectionStore()
        self._shipping = ShippingStore()
        self._keys = KeyLookup(database)
        self.stored = stored

    async def accept(self, events: Sequence[Event], extra: Sequence[Sequence[Any]] = ()) -> None:
        """Durable when it returns. Raises Busy when the journal cannot be written, Throttled when it is too full."""
        await self._edge.accept(events, extra)

    async def accept_history(self, tenant_id: int, events: Sequence[Counted]) -> Mapping[int, Reason]:
        """Accept what is new of this tenant's history, durable when it returns; the places of the others, and why.

        The others are in the tenant's drop counts. Raises Busy while ClickHouse or the journal does not answer,
        Throttled when too much waits: nothing, or only a part, was accepted then, and all may be given again.
        """
        if not events:
            return {}
        refused = await self._history.refusals(tenant_id, events)
        await self._edge.accept([event for place, event in enumerate(events) if place not in refused])
        for kind in sorted({events[place].kind for place in refused}):
            reasons = Counter(reason for place, reason in refused.items() if events[place].kind == kind)
            await self.count_drops(tenant_id, kind, reasons)
        return refused

    async def count_drops(self, tenant_id: int, kind: str, reasons: Mapping[Reason, int]) -> None:
        """Count events of this kind that were not taken, for the tenant to read; durable when it returns."""
        now = self._clock.now_ms()
        drops = [
            Dropped(tenant_id, str(self._ids.new()), now, now, kind, reason.value, number)
            for reason, number in sorted(reasons.items())
        ]
        await self._edge.accept(drops)

    async def is_counted(self, tenant_id: int, event_key: bytes) -> bool | None:
        """For hot routes: whether this event was counted before. None: PostgreSQL did not say so in time."""
        return await self._keys.is_counted(tenant_id, event_key)

    @property
    def lag(self) -> tuple[int, float]:
        """Events and seconds behind, as last measured."""
        return self._edge.lag_events, self._edge.lag_seconds

    def lag_seconds_of(self, tenant_id: int) -> float:
        """How long the oldest event waits in the lanes that may hold this tenant's events, as last measured."""
        return self._edge.lag_seconds_of(tenant_id)

    async def export_lag_seconds_of(self, tenant_id: int) -> float:
        """How long the oldest event of these lanes that ClickHouse may lack has waited; measured now."""
        return await self._edge.export_lag_seconds_of(tenant_id)

    @property
    def stalled(self) -> Stalled:
        """Lanes whose counting or export makes no progress, as last measured."""
        return self._edge.stalled

    async def shipments(self) -> list[UUID]:
        """The groups of events that are on their way to ClickHouse."""
        async with self._database.worker() as tx:
            return await self._shipping.open_ids(tx)

    async def unshipped(self) -> tuple[int, float]:
        """Counted events that ClickHouse does not have yet, and for how many seconds the oldest of them has waited."""
        async with self._database.worker() as tx:
            found = await self._shipping.unshipped(tx)
        return sum(each.events for each in found.values()), max((each.seconds for each in found.values()), default=0.0)

    async def lost(self, *, limit: int = 100) -> list[LostBatch]:
        """Counted events that neither ClickHouse nor the journal has, batch by batch, the latest first."""
        async with self._database.worker() as tx:
            return await self._shipping.lost(tx, limit)

    async def parked(
        self, tenant_id: int, *, reason: str | None, replayed: bool, after: UUID | None, limit: int
    ) -> list[ParkedRow]:
        async with self._database.tenant(tenant_id) as tx:
            return await self._reader.parked(tx, tenant_id, reason, replayed, after, limit)

    async def forget_keys(self, now: datetime, *, pages: int = KEY_PAGES) -> int:
        """Forget keys older than the horizon: a copy of such an event is refused as TOO_OLD, or if it is history, found
        in ClickHouse. So a key stays until its event is there.

        Each transaction reads and notes one range of pages, whatever the size of the table. A statement that is cut at
        its time limit is repeated in halves. A run that is cut short is continued by the next one.
        """
        before = now - timedelta(days=HORIZON_DAYS + 1)
        async with self._database.worker() as tx:
            exported = await self._store.oldest_unexported(tx)
            if exported is not None:
                before = min(before, exported - timedelta(days=1))
            due = await self._store.key_ranges_due(tx, before, pages)
        waiting = iter(due)

        async def portion(place: tuple[int], step: int) -> tuple[int, tuple[int] | None]:
            async with self._database.worker() as tx:
                gone = await self._store.forget_keys(tx, (place[0], pages), before, now, step)
            following = next(waiting, None)
            return gone, None if following is None else (following,)

        first_page = next(waiting, None)
        return 0 if first_page is None else await work(portion, (first_page,), pages)

    async def forget_sequence_corrections(self, now: datetime, *, limit: int = CORRECTIONS_AT_ONCE) -> int:
        """Forget corrections of events whose keys are forgotten. Each transaction deletes at most `limit`."""
        before = now - timedelta(days=HORIZON_DAYS + 1)

        async def portion(place: tuple[()], most: int) -> tuple[int, tuple[()] | None]:
            async with self._database.worker() as tx:
                forgotten = await self._corrections.forget_old(tx, before, most)
            return forgotten, place if forgotten == most else None

        return await work(portion, (), limit)

    async def forget_replayed(self, now: datetime, *, most: int = 5_000) -> int:
        """Parked events that were sent again long ago go: what became of them is told elsewhere."""
        return await self._reader.forget_replayed(self._database, now - timedelta(days=REPLAYED_DAYS), most)

    async def drops(self, tenant_id: int, start: date, end: date) -> list[Drop]:
        """Why events were not counted, by day; half-open."""
        async with self._database.tenant(tenant_id) as tx:
            return await self._reader.drops(tx, tenant_id, start, end)

    async def explain(self, tenant_id: int, event_id: str) -> Explanation:
        """Where did my event go? One call, whatever its kind."""
        async with self._database.tenant(tenant_id) as tx:
            parked = await self._reader.parked_events(tx, tenant_id, event_id)
            for kind in KINDS:
                stored = await self._reader.find_key(tx, tenant_id, key(kind, event_id))
                if stored is not None:
                    break
            else:
                kind, stored = "", None
        if stored is not None:
            became = await self.stored.outcome(tenant_id, kind, event_id)
            return Explanation(event_id, kind, became.outcome, became.said, stored, parked)
        waiting = [row for row in parked if row["replayed_at"] is None]
        if waiting:
            said = f"Parked: {waiting[0]['reason']}. Mend the cause, then replay it."
            return Explanation(event_id, waiting[0]["kind"], "parked", said, parked=parked)
        if seconds := self.lag_seconds_of(tenant_id):
            said = f"Not counted yet; the oldest event of its lanes waits for {seconds:.0f} s. Ask again shortly."
            return Explanation(event_id, None, "waiting", said, parked=parked)
        said = "Never accepted under this id, or refused, dropped (see the drop counts), or older than 35 days."
        return Explanation(event_id, None, "unknown", said, parked=parked)
