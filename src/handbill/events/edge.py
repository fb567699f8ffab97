"""Taking events in: which lane, is there room, and back only when they are durable.

The lag of the lanes is looked at in the background, never on a request's way: when they are too far behind, callers are
told to come back later instead of being taken in and kept waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.events.model import KINDS, Dropped, Event, encode, is_history, sender
from handbill.events.shipping_store import ShippingStore, Unshipped
from handbill.events.store import EventStore
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.port import Journal
from handbill.infra.journal.spill import SpillPolicy, SpillState, spills
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled
from handbill.kit.progress import ProgressWatch
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs, metrics

_log = logs.get("edge")
_LOOK_EVERY_S = 1.0
STALLED_S = 30.0
"""A lane with work that has not moved for so long is stalled."""
EXPORT_AGE_S = 60.0
"""A younger batch is not late: the exporter collects batches and ClickHouse may be restarted."""
_ACCEPTED = {kind: metrics.EVENTS_ACCEPTED.labels(kind) for kind in (*KINDS, Dropped.kind)}
"""Looked up once: finding a label costs more than counting."""


class EdgePolicy(msgspec.Struct, frozen=True):
    """`threshold` is the seeds' PROCESSOR_BACKPRESSURE_THRESHOLD: events behind the cursors before callers are shed.

    `history_threshold`: the same for history, which waits behind all overflow lanes together.
    `unshipped`: the same for counted events that ClickHouse does not have yet; the journal must keep them so long.
    """

    threshold: int = 900_000
    history_threshold: int = 100_000
    unshipped: int = 2_000_000
    threshold_s: float = 600.0
    retry_after_s: float = 5.0
    spill: SpillPolicy = SpillPolicy()


class Stalled(msgspec.Struct, frozen=True):
    """Lanes that make no progress: events behind the cursor are not counted, or batches are not exported."""

    counting: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()


class Edge:
    def __init__(
        self, journal: Journal, lanes: Lanes, database: Database, clock: Clock, policy: EdgePolicy | None = None
    ) -> None:
        self._journal = journal
        self._lanes = lanes
        self._database = database
        self._clock = clock
        self._policy = policy or EdgePolicy()
        self._store = EventStore()
        self._shipping = ShippingStore()
        self._unshipped: dict[str, Unshipped] = {}
        self._counting = ProgressWatch(clock, STALLED_S)
        self._exports = ProgressWatch(clock, STALLED_S)
        self._spill = SpillState()
        self._cursors: dict[str, str] = {}
        self._full = False
        self._overflow_full = False
        self._history_full = False
        self._task = BackgroundTask("intake-lag", self.look, period_s=_LOOK_EVERY_S)
        self.stalled = Stalled()
        self.lag_events = 0
        self.unshipped = 0
        self._lane_seconds: dict[str, float] = {}

    async def start(self) -> None:
        await self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest event of any lane that is not counted, as last measured."""
        return max(self._lane_seconds.values(), default=0.0)

    def lag_seconds_of(self, tenant_id: int) -> float:
        """The same of the lanes that may hold this tenant's events."""
        own = self._lanes.overflow_for(tenant_id)
        return max(
            (
                seconds
                for lane, seconds in self._lane_seconds.items()
                if lane == own or not self._lanes.is_overflow(lane)
            ),
            default=0.0,
        )

    async def export_lag_seconds_of(self, tenant_id: int) -> float:
        """Age of the oldest event of this tenant's lanes that ClickHouse does not have, measured now.

        Raises Busy while PostgreSQL or the journal does not answer.
        """
        async with self._database.worker() as tx:
            cursors = await self._store.cursors(tx)
            waiting = await self._shipping.unshipped_from(tx)  # read second: a batch committed in between is seen
        own = self._lanes.overflow_for(tenant_id)
        seconds = 0.0
        for lane, _ in self._lanes.all():
            if lane == own or not self._lanes.is_overflow(lane):
                cursor, committed = waiting.get(lane, (cursors.get(lane, "0-0"), 0.0))
                lag = await self._journal.lag(lane, cursor)
                # The journal may have lost what waits; its events are as old as their commit at least.
                seconds = max(seconds, committed, max(lag.seconds, 0.001) if lag.events else 0.0)
        return seconds

    async def accept(self, events: Sequence[Event], extra: Sequence[Sequence[Any]] = ()) -> None:
        """Keep these events of one tenant; durable when it returns. `extra` commands travel with the first lane's.

        All of them are history, or none. History takes the tenant's overflow lane, which leaves time to the others.
        """
        if not events:
            return
        if len(events) == 1:
            one = events[0]
            lane = self._overflow(one.tenant, 1, is_history(one)) or self._lanes.lane_for(one.tenant, sender(one))
            await self._journal.append(lane, [encode(one)], extra, tenant_ids=(one.tenant,))
            _ACCEPTED[one.kind].inc()
            return
        await self._append_many(events, extra)
        for kind, count in Counter([event.kind for event in events]).items():
            _ACCEPTED[kind].inc(count)

    async def _append_many(self, events: Sequence[Event], extra: Sequence[Sequence[Any]]) -> None:
        by_lane: defaultdict[str, list[bytes]] = defaultdict(list)
        tenants = Counter([event.tenant for event in events])
        is_past = is_history(events[0])
        spilled = {tenant: self._overflow(tenant, count, is_past) for tenant, count in tenants.items()}
        lane_for = self._lanes.lane_for
        for event in events:
            by_lane[spilled[event.tenant] or lane_for(event.tenant, sender(event))].append(encode(event))
        commands = list(extra)
        appends = []
        for lane, bodies in by_lane.items():
            appends.append(self._journal.append(lane, bodies, commands, tenant_ids=tenants.keys()))
            commands = []
        done = await asyncio.gather(*appends, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome  # some lanes may have theirs: the caller repeats all, with the same ids

    def _overflow(self, tenant: int, count: int, is_past: bool) -> str | None:
        """The overflow lane for so many events of this tenant, or none: then each sender has its own main lane."""
        if is_past:  # it must neither fill the lanes of live events nor be the reason why those are shed
            if self._history_full:
                raise self._shed()
            return self._lanes.overflow_for(tenant)
        if spills(self._spill, self._policy.spill, tenant, count, self._clock.monotonic()):
            if self._overflow_full:
                raise self._shed()
            metrics.JOURNAL_SPILLED.inc(count)
            return self._lanes.overflow_for(tenant)
        if self._full:
            raise self._shed()
        return None

    def _shed(self) -> Throttled:
        metrics.EVENTS_SHED.inc()
        return Throttled(
            "More events wait than can be counted soon; nothing of this request was kept, send it again later.",
            code="BACKPRESSURE",
            retry_after=self._policy.retry_after_s,
        )

    async def look(self) -> None:
        """Measure every lane once and decide whether to shed, and which lanes are stalled."""
        is_current = await self._read_cursors()
        main, overflow = 0, 0
        lane_seconds: dict[str, float] = {}
        counting: list[str] = []
        for lane, _ in self._lanes.all():
            cursor = self._cursors.get(lane, "0-0")
            lag = await self._journal.lag(lane, cursor)
            metrics.JOURNAL_LAG_EVENTS.labels(lane).set(lag.events)
            metrics.JOURNAL_LAG_SECONDS.labels(lane).set(lag.seconds)
            lane_seconds[lane] = max(lag.seconds, 0.001) if lag.events else 0.0
            if self._lanes.is_overflow(lane):
                overflow += lag.events
            else:
                main += lag.events
            if is_current and self._counting.observe(lane, cursor, has_work=lag.events > 0):
                counting.append(lane)
        self.lag_events, self._lane_seconds = main + overflow, lane_seconds
        seconds = max((each for lane, each in lane_seconds.items() if not self._lanes.is_overflow(lane)), default=0.0)
        self.stalled = Stalled(tuple(counting), self._stalled_exports() if is_current else ())
        self.unshipped = sum(each.events for each in self._unshipped.values())
        held = self.unshipped > self._policy.unshipped
        self._full = main > self._policy.threshold or seconds > self._policy.threshold_s or held
        self._overflow_full = overflow > self._policy.threshold or held
        past = min(self._policy.history_threshold, self._policy.threshold // 2)
        self._history_full = overflow > past or self._full or self.unshipped > self._policy.unshipped // 2

    async def _read_cursors(self) -> bool:
        """False: PostgreSQL does not answer, and the lag grows from the last cursors that were read.

        Then no lane is called stalled, but the time since its last movement runs on.
        """
        try:
            async with self._database.worker() as tx:
                self._cursors = await self._store.cursors(tx)
                self._unshipped = await self._shipping.unshipped(tx)
        except Busy as error:
            _log.debug("intake.cursors_unknown", reason=error.code)
            return False
        return True

    def _stalled_exports(self) -> tuple[str, ...]:
        """Lanes whose oldest waiting batch is late and has been the oldest for a while."""
        stalled: list[str] = []
        for lane, _ in self._lanes.all():
            waiting = self._unshipped.get(lane)
            metrics.EVENTS_UNSHIPPED.labels(lane).set(waiting.events if waiting else 0)
            metrics.EVENTS_UNSHIPPED_SECONDS.labels(lane).set(waiting.seconds if waiting else 0.0)
            oldest = waiting.oldest if waiting else None
            is_unmoved = self._exports.observe(lane, oldest, has_work=waiting is not None)
            if waiting is not None and is_unmoved and waiting.seconds > EXPORT_AGE_S:
                stalled.append(lane)
        return tuple(stalled)
