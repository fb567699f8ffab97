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
from handbill.events.dialects.canon import Moment, Refused, Terms
from handbill.events.dialects.flat import DIALECT, flat_event, texts
from handbill.events.edge import Edge
from handbill.events.model import HORIZON_DAYS, CapturedEvent, Event, Reason
from handbill.events.store import EventStore, IncomingParked
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import Forbidden, NotFound, Throttled
from handbill.kit.telemetry import logs, metrics
from handbill.tenants.service import TenantService

_log = logs.get("incoming")

ENTRIES = 500
LEASE_MS = 5_000
_NO_LANE = -1
_FRESH_S = 5.0
_HORIZON_MS = HORIZON_DAYS * 86_400_000


class _Unknown(Exception):
    """The entry names no tenant that may send."""


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
        self._tenants = tenants
        self._clock = clock
        self._stream = stream
        self._worker = worker
        self._lease = (keys or Keys()).plain("incoming", "lease", stream)
        self._store = EventStore()
        self._projects: dict[str, tuple[int | None, float]] = {}

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
            found = await self._read(entry, sent)
            if isinstance(found, CapturedEvent):
                events.append(found)
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

    async def _read(self, entry: str, sent: Mapping[str, str]) -> CapturedEvent | IncomingParked:
        tenant: int | None = None
        received = self._received(entry)
        try:
            tenant = await self._tenant(sent)
            privacy = (await self._tenants.directory.profile(tenant)).settings.privacy
            moment = Moment(received, lambda: f"{DIALECT}:{entry}")
            event = flat_event(sent, entry, moment, Terms(tenant, privacy.truncate_ip), [])
            if event.at >= received - _HORIZON_MS:
                return event
            reason, detail = Reason.TOO_OLD, "older than the horizon of deduplication"
        except _Unknown as error:
            reason, detail = Reason.UNKNOWN_OBJECT, str(error)
        except Refused as refused:
            reason, detail = refused.reason, "a field of the entry"
        _log.warning("incoming-parked", entry=entry, reason=reason, tenant=tenant)
        return IncomingParked(
            _parked_id(self._stream, entry, self._clock.now_ms()),
            tenant,
            sent.get("event_id") or f"{DIALECT}:{entry}",
            self._stream,
            reason,
            detail,
            msgspec.json.encode(sent),
            received,
        )

    def _received(self, entry: str) -> int:
        """When the entry was added, by Redis' own clock; a producer that made its ids up gets our time."""
        now = self._clock.now_ms()
        ms = int(entry.partition("-")[0])
        return ms if now - _HORIZON_MS < ms <= now else now

    async def _tenant(self, sent: Mapping[str, str]) -> int:
        """By the write key, else by the project: its number or its slug."""
        key = sent.get("api_key") or sent.get("write_key") or sent.get("token")
        if key:
            try:
                principal = await self._tenants.directory.write_key(key)
            except Forbidden as error:
                raise _Unknown(error.detail) from None
            if principal is None:
                raise _Unknown("the write key is not known")
            return principal.tenant_id
        name = sent.get("project_id") or sent.get("tenant_id") or ""
        number, until = self._projects.get(name, (None, 0.0))
        if self._clock.monotonic() >= until:
            number = await self._project(name)
            if len(self._projects) > 10_000:
                self._projects.clear()
            self._projects[name] = (number, self._clock.monotonic() + _FRESH_S)
        if number is None:
            raise _Unknown("the project is not known, or suspended")
        return number

    async def _project(self, name: str) -> int | None:
        if not name or len(name) > 200:
            return None
        try:
            tenant = await self._tenants.find_tenant(name)
        except NotFound:
            return None
        return None if tenant.status == "suspended" else tenant.tenant_id

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


def _parked_id(stream: str, entry: str, now: int) -> UUID:
    """Made from the entry's own id, so that parked again after a crash it is the same row; in order of time."""
    ms = int(entry.partition("-")[0])
    tail = int.from_bytes(blake2b(f"{stream}\0{entry}".encode(), digest_size=10).digest(), "big")
    value = (ms if ms < now else 0) << 80 | tail
    return UUID(int=value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62)
