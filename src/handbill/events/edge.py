"""Taking events in: which lane, is there room, and back only when they are durable.

The lag of the lanes is looked at in the background, never on a request's way: when they are too far behind, callers are
told to come back later instead of being taken in and kept waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.events.model import KINDS, Dropped, Event, encode, sender
from handbill.events.store import EventStore
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.port import Journal
from handbill.infra.journal.spill import SpillPolicy, SpillState, spills
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled
from handbill.kit.telemetry import logs, metrics

_log = logs.get("edge")
_LOOK_EVERY_S = 1.0
_ACCEPTED = {kind: metrics.EVENTS_ACCEPTED.labels(kind) for kind in (*KINDS, Dropped.kind)}
"""Looked up once: finding a label costs more than counting."""


class EdgePolicy(msgspec.Struct, frozen=True):
    """`threshold` is the seeds' PROCESSOR_BACKPRESSURE_THRESHOLD: events behind the cursors before callers are shed."""

    threshold: int = 900_000
    threshold_s: float = 600.0
    retry_after_s: float = 5.0
    spill: SpillPolicy = SpillPolicy()


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
        self._spill = SpillState()
        self._cursors: dict[str, str] = {}
        self._full = False
        self._overflow_full = False
        self._task: asyncio.Task[None] | None = None
        self.lag_events = 0
        self.lag_seconds = 0.0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="edge-lag")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def accept(self, events: Sequence[Event], extra: Sequence[Sequence[Any]] = ()) -> None:
        """Keep these events of one tenant; durable when it returns. `extra` commands travel with the first lane's."""
        if not events:
            return
        if len(events) == 1:
            await self._journal.append(self._lane(events[0], 1), [encode(events[0])], extra)
        else:
            await self._append_many(events, extra)
        for event in events:
            _ACCEPTED[event.kind].inc()

    async def _append_many(self, events: Sequence[Event], extra: Sequence[Sequence[Any]]) -> None:
        by_lane: dict[str, list[bytes]] = {}
        for event in events:
            by_lane.setdefault(self._lane(event, 1), []).append(encode(event))
        commands = list(extra)
        appends = []
        for lane, bodies in by_lane.items():
            appends.append(self._journal.append(lane, bodies, commands))
            commands = []
        done = await asyncio.gather(*appends, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome  # some lanes may have theirs: the caller repeats all, with the same ids

    def _lane(self, event: Event, count: int) -> str:
        if spills(self._spill, self._policy.spill, event.tenant, count, self._clock.monotonic()):
            if self._overflow_full:
                raise self._shed()
            metrics.JOURNAL_SPILLED.inc()
            return self._lanes.overflow_for(event.tenant)
        if self._full:
            raise self._shed()
        return self._lanes.lane_for(event.tenant, sender(event))

    def _shed(self) -> Throttled:
        metrics.EVENTS_SHED.inc()
        return Throttled(
            "More events wait than can be counted soon; nothing of this request was kept, send it again later.",
            code="BACKPRESSURE",
            retry_after=self._policy.retry_after_s,
        )

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Busy:
                _log.debug("lag-unknown")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Measure every lane once and decide whether to shed."""
        try:
            async with self._database.worker() as tx:
                self._cursors = await self._store.cursors(tx)
        except Busy:
            _log.debug("cursors-unknown", detail="the lag grows from the last ones known")
        cursors = self._cursors
        main, overflow, seconds = 0, 0, 0.0
        for lane, _ in self._lanes.all():
            lag = await self._journal.lag(lane, cursors.get(lane, "0-0"))
            metrics.JOURNAL_LAG_EVENTS.labels(lane).set(lag.events)
            metrics.JOURNAL_LAG_SECONDS.labels(lane).set(lag.seconds)
            if self._lanes.is_overflow(lane):
                overflow += lag.events
            else:
                main += lag.events
                seconds = max(seconds, lag.seconds)
        self.lag_events, self.lag_seconds = main + overflow, seconds
        self._full = main > self._policy.threshold or seconds > self._policy.threshold_s
        self._overflow_full = overflow > self._policy.threshold
