"""The live tail: what the edge accepted a moment ago, straight from the journal, so that it works while the event store
is away. One look at the lanes serves every tail of this process; each has a short queue and learns what it missed."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec

from handbill.events.model import CapturedEvent, Dropped, Event, View, at_us
from handbill.insights.onlooker import Glance, Onlooker
from handbill.kit.clock import from_ms, from_us
from handbill.kit.errors import Busy, Throttled
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import metrics
from handbill.kit.untrusted_json import UNREADABLE, is_deep

QUEUE = 500
QUEUE_BYTES = 2 << 20
"""For one tail: the largest events would make 500 of them too many."""
PORTION = 100
PORTION_BYTES = 256 << 10
"""What a listener takes at once: its properties are decoded in one turn of the loop."""
_EVENT_BYTES = 1 << 10
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


class Missed(msgspec.Struct, frozen=True):
    """Events that were not shown: `events` of them are known; `more` says that there may be others."""

    events: int
    more: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """What a tail shows: all, or one event's name, or one id's events."""

    event: str | None = None
    distinct_id: str | None = None

    def shows(self, name: str, distinct_id: str | None) -> bool:
        return self.event in (None, name) and self.distinct_id in (None, distinct_id)


class Tail:
    """One listener. `next` gives what came and what was missed, or None when the tail was ended.

    Events wait as the journal has them and are prepared in portions when the listener takes them, so that the bytes
    counted are the bytes kept.
    """

    def __init__(self, tenant: int, wanted: Wanted) -> None:
        self.tenant = tenant
        self._wanted = wanted
        self._queue: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._missed = 0
        self._missed_more = False
        self._ended = False

    def put(self, event: Event) -> None:
        if not self._wanted.shows(*_name(event)):
            return
        size = _size(event)
        if len(self._queue) >= QUEUE or self._bytes + size > QUEUE_BYTES:
            metrics.INSIGHTS_TAIL_SKIPPED.inc()
            self._missed += 1
        else:
            self._queue.append((event, size))
            self._bytes += size
        self._news.set()

    def miss(self, events: int = 0) -> None:
        """So many events of the tenant were not looked at, or nobody knows how many. With a filter the tail would have
        shown only some of them."""
        if events and self._wanted == Wanted():
            self._missed += events
        else:
            self._missed_more = True
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[list[Seen], Missed | None] | None:
        if not self._news.is_set():
            try:
                await asyncio.wait_for(self._news.wait(), timeout_s)
            except TimeoutError:
                return [], None
        if self._ended:
            return None
        portion = self._take()
        if self._queue:  # there is more to take at once; what was missed came after it
            return portion, None
        self._news.clear()
        missed = Missed(self._missed, self._missed_more) if self._missed or self._missed_more else None
        self._missed, self._missed_more = 0, False
        return portion, missed

    def _take(self) -> list[Seen]:
        """As many as are prepared quickly, at least one if there are any."""
        portion: list[Seen] = []
        size = 0
        while self._queue and len(portion) < PORTION and size < PORTION_BYTES:
            event, bytes_ = self._queue.popleft()
            self._bytes -= bytes_
            size += bytes_
            portion.append(seen_of(event))
        return portion


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
                self._deliver(await self._onlooker.look(lane, {tail.tenant for tail in self._open}))
            except Exception as error:  # noqa: BLE001 - raised below; one bad entry must not hide the other lanes
                trouble = error
                if not isinstance(error, Busy):
                    for tail in self._open:
                        tail.miss()
        if trouble is not None:
            raise trouble

    def _deliver(self, glance: Glance) -> None:
        tails: defaultdict[int, list[Tail]] = defaultdict(list)
        for tail in self._open:
            tails[tail.tenant].append(tail)
        for event in glance.events:
            for tail in tails[event.tenant]:
                tail.put(event)
        metrics.INSIGHTS_TAIL_SKIPPED.inc(glance.skipped.total())
        for tail in self._open:
            if glance.is_behind:
                tail.miss()
            if glance.skipped[tail.tenant]:
                tail.miss(glance.skipped[tail.tenant])


def _name(event: Event) -> tuple[str, str | None]:
    """The name and the distinct id under which an event is shown."""
    if isinstance(event, Dropped):
        return event.of, None
    if isinstance(event, CapturedEvent):
        return event.name, event.distinct_id
    device_id = event.device_id if isinstance(event, View) else None
    return f"$banner_{event.kind}", event.user or event.session or device_id


def _size(event: Event) -> int:
    """Bytes that a waiting event keeps; of its texts only the properties are large."""
    return _EVENT_BYTES + (len(event.properties) if isinstance(event, CapturedEvent) else 0)


def seen_of(event: Event) -> Seen:
    name, distinct_id = _name(event)
    if isinstance(event, Dropped):
        return Seen("dropped", name, event.id, from_ms(event.at), from_ms(event.received), reason=event.reason)
    head = (name, event.id, from_us(at_us(event)), from_ms(event.received))
    if isinstance(event, CapturedEvent):
        properties = _object(event.properties)
        return Seen("accepted", *head, distinct_id, event.session, event.url, properties=properties)
    return Seen("accepted", *head, distinct_id, event.session, event.page)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return {} if is_deep(raw) else msgspec.json.decode(raw, type=dict[str, Any])
    except UNREADABLE:
        return {}
