"""The live tail: what the edge accepted a moment ago, straight from the journal, so that it works while the event store
is away. One look at the lanes serves every tail of this process; each has a short queue and is told what it missed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec

from handbill.events.model import CapturedEvent, Dropped, Event, View
from handbill.insights.onlooker import Onlooker
from handbill.kit.clock import from_ms
from handbill.kit.errors import Busy, Throttled
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import metrics
from handbill.kit.untrusted_json import UNREADABLE, is_deep

QUEUE = 500
QUEUE_BYTES = 4 << 20
"""Of properties as they were sent, for one tail: the largest events would make 500 of them too many."""
PER_TENANT = 3
PER_PROCESS = 50
EVERY_S = 0.25


class Seen(msgspec.Struct, frozen=True):
    """An event as the edge took it. Whether it is counted is decided later: `explain` tells."""

    status: Literal["accepted", "dropped"]
    event: str
    event_id: str
    at: datetime
    received: datetime
    distinct_id: str | None = None
    session_id: str | None = None
    url: str | None = None
    reason: str | None = None
    properties: dict[str, Any] = {}


class Wanted(msgspec.Struct, frozen=True):
    """What a tail shows: all, or one event's name, or one id's events."""

    event: str | None = None
    distinct_id: str | None = None

    def shows(self, seen: Seen) -> bool:
        return self.event in (None, seen.event) and self.distinct_id in (None, seen.distinct_id)


class Tail:
    """One listener. `next` gives what came and whether something was missed, or None when the tail was ended."""

    def __init__(self, tenant: int, wanted: Wanted) -> None:
        self.tenant = tenant
        self._wanted = wanted
        self._queue: deque[Seen] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._missed = False
        self._ended = False

    def put(self, seen: Seen, size: int = 0) -> None:
        if not self._wanted.shows(seen):
            return
        if len(self._queue) >= QUEUE or (self._queue and self._bytes + size > QUEUE_BYTES):
            metrics.INSIGHTS_TAIL_SKIPPED.inc()
            self.miss()
            return
        self._queue.append(seen)
        self._bytes += size
        self._news.set()

    def miss(self) -> None:
        """Something was not shown. How much of a flood was this tenant's is not known, so no number is told."""
        self._missed = True
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[list[Seen], bool] | None:
        if not self._news.is_set():
            try:
                await asyncio.wait_for(self._news.wait(), timeout_s)
            except TimeoutError:
                return [], False
        if self._ended:
            return None
        self._news.clear()
        found, missed = list(self._queue), self._missed
        self._queue.clear()
        self._bytes = 0
        self._missed = False
        return found, missed


class Tails:
    """Opens tails, looks at the lanes while there are any, and ends them all when the process stops."""

    def __init__(self, onlooker: Onlooker) -> None:
        self._onlooker = onlooker
        self._open: set[Tail] = set()
        self._task: BackgroundTask | None = None
        self._starting = asyncio.Lock()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def opened(self, tenant: int, wanted: Wanted) -> AsyncIterator[Tail]:
        if self._stopped:
            raise Busy("This process is stopping; open the tail again in a moment.", retry_after=1.0)
        mine = sum(tail.tenant == tenant for tail in self._open)
        if mine >= PER_TENANT or len(self._open) >= PER_PROCESS:
            raise Throttled("Enough live tails are open already; close one.", code="TAILS_FULL", retry_after=5.0)
        tail = Tail(tenant, wanted)
        self._open.add(tail)
        metrics.INSIGHTS_TAILS.set(len(self._open))
        try:
            async with self._starting:
                if self._task is None:
                    await self._onlooker.begin()
                    health = TaskHealth("live-tail", required=False)
                    self._task = BackgroundTask("live-tail", self._look_at_lanes, period_s=EVERY_S, health=health)
                    await self._task.start()
            yield tail
        finally:
            self._open.discard(tail)
            metrics.INSIGHTS_TAILS.set(len(self._open))
            if not self._open:
                await self._rest()

    def hang_up(self) -> None:
        """End every tail: a stream that never ends would keep a server from stopping."""
        self._stopped = True
        for tail in self._open:
            tail.end()

    async def start(self) -> None:
        self._stopped = False

    async def stop(self) -> None:
        self.hang_up()
        await self._rest()

    async def _rest(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await task.stop()

    async def _look_at_lanes(self) -> None:
        """One look at each lane. What is wrong with one is raised when the others have been looked at."""
        trouble: Exception | None = None
        for lane in self._onlooker.lanes:
            try:
                glance = await self._onlooker.look(lane)
                self._tell(glance.events, glance.skipped)
            except Exception as error:  # noqa: BLE001 - raised below; one bad entry must not hide the other lanes
                trouble = error
                if not isinstance(error, Busy):
                    for tail in self._open:
                        tail.miss()
        if trouble is not None:
            raise trouble

    def _tell(self, events: list[Event], skipped: int) -> None:
        tenants = {tail.tenant for tail in self._open}
        for event in events:
            if event.tenant in tenants:
                seen = seen_of(event)
                size = len(event.properties) if isinstance(event, CapturedEvent) else 0
                for tail in self._open:
                    if tail.tenant == event.tenant:
                        tail.put(seen, size)
        if skipped:
            metrics.INSIGHTS_TAIL_SKIPPED.inc(skipped)
            for tail in self._open:
                tail.miss()


def seen_of(event: Event) -> Seen:
    head = (event.id, from_ms(event.at), from_ms(event.received))
    if isinstance(event, Dropped):
        return Seen("dropped", event.of, *head, reason=event.reason)
    if isinstance(event, CapturedEvent):
        properties = _object(event.properties)
        return Seen(
            "accepted", event.name, *head, event.distinct_id, event.session, event.url, properties=properties
        )  # fmt: skip
    whose = event.user or event.session or (event.device_id if isinstance(event, View) else None)
    return Seen("accepted", f"$banner_{event.kind}", *head, whose, event.session, event.page)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return {} if is_deep(raw) else msgspec.json.decode(raw, type=dict[str, Any])
    except UNREADABLE:
        return {}
