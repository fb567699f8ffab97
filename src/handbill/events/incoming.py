"""The compatibility reader: drains a stream that other programs add flat entries to into the journal.

An entry leaves the stream only when its event is durable in the journal, or parked with its fields. Dying in between
reads it again under the same event id, which counts once. So two readers do no harm either; a lease in Redis keeps it
to one, to save the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from uuid import UUID

import msgspec

from handbill.events.batch import DropKey
from handbill.events.dialects.flat import event_id, texts
from handbill.events.edge import Edge
from handbill.events.entries import Entries, NoEvent, received_at
from handbill.events.model import CapturedEvent, Dropped, Event, Reason
from handbill.events.store import EventStore, IncomingParked
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import Throttled
from handbill.kit.telemetry import logs, metrics
from handbill.tenants.service import TenantService

_log = logs.get("incoming")

ENTRIES = 500
LEASE_MS = 5_000
_NO_LANE = -1


class Incoming:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        edge: Edge,
        tenants: TenantService,
        clock: Clock,
        *,
        stream: str,
        worker: str,
        keys: Keys | None = None,
    ) -> None:
        self._database = database
        self._redis = redis
        self._edge = edge
        self._clock = clock
        self._stream = stream
        self._worker = worker
        self._lease = (keys or Keys()).plain("incoming", "lease", stream)
        self._store = EventStore()
        self._entries = Entries(tenants, clock)

    async def drain(self) -> int:
        """One round: up to `ENTRIES` entries. 0 when there is nothing, or nothing for us now."""
        if not await self._leads():
            return 0
        rows = await self._redis.call("XRANGE", self._stream, "-", "+", "COUNT", ENTRIES)
        if not rows:
            return 0
        events: list[Event] = []
        parked: list[IncomingParked] = []
        for name, pairs in rows:
            entry = name.decode()
            sent = texts(dict(zip(pairs[::2], pairs[1::2], strict=True)))
            warned: list[Reason] = []
            found = await self._read(entry, sent, warned)
            if isinstance(found, CapturedEvent):
                events.append(found)
                events += [_loss(found, reason) for reason in warned]
            else:
                parked.append(found)
        try:
            await self._edge.accept(events)
        except Throttled:  # the lanes lag: the stream is as good a place to wait as any
            return 0
        await self._park(parked)
        await self._redis.call("XDEL", self._stream, *[name for name, _ in rows])
        metrics.INCOMING_DRAINED.inc(len(rows))
        return len(rows)

    async def _leads(self) -> bool:
        """Ours, or nobody's for five seconds: a worker that died gives way."""
        taken = await self._redis.call("SET", self._lease, self._worker, "PX", LEASE_MS, "NX")
        if taken is not None:
            return True
        if await self._redis.call("GET", self._lease) != self._worker.encode():
            return False
        await self._redis.call("PEXPIRE", self._lease, LEASE_MS)
        return True

    async def _read(self, entry: str, sent: Mapping[str, str], warned: list[Reason]) -> CapturedEvent | IncomingParked:
        received = received_at(int(entry.partition("-")[0]), self._clock.now_ms())
        try:
            return await self._entries.event(sent, entry, received, warned)
        except NoEvent as error:
            _log.warning("incoming-parked", entry=entry, reason=error.reason, tenant=error.tenant)
            return IncomingParked(
                _parked_id(self._stream, entry, self._clock.now_ms()),
                error.tenant,
                event_id(sent, entry),
                self._stream,
                error.reason,
                str(error),
                msgspec.json.encode(sent),
                received,
            )

    async def _park(self, parked: Sequence[IncomingParked]) -> None:
        """Kept once each, and counted among the tenant's drops with it."""
        if not parked:
            return
        async with self._database.worker() as tx:
            fresh = await self._store.park_once(tx, parked)
            drops: Counter[DropKey] = Counter()
            for item in parked:
                if item.id in fresh and item.tenant is not None:
                    drops[(item.tenant, from_ms(item.received).date(), CapturedEvent.kind, item.reason)] += 1
            await self._store.add_drops(tx, drops, _NO_LANE)


def _loss(event: CapturedEvent, reason: Reason) -> Dropped:
    """What was left out of an event that is kept."""
    return Dropped(event.tenant, event.id, event.received, event.received, CapturedEvent.kind, str(reason))


_AHEAD_MS = 60_000


def _parked_id(stream: str, entry: str, now: int) -> UUID:
    """Made from the entry's own id, so that parked again after a crash it is the same row; in order of time.

    Ids are given by whoever adds an entry, and one far ahead must not stand behind everything still to be parked. The
    margin keeps an entry of this very millisecond on the same side when it is met again.
    """
    ms = int(entry.partition("-")[0])
    tail = int.from_bytes(blake2b(f"{stream}\0{entry}".encode(), digest_size=10).digest(), "big")
    value = (ms if ms < now + _AHEAD_MS else 0) << 80 | tail
    return UUID(int=value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62)
