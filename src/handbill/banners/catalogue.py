"""The whole catalogue in this process's memory, so that no request reads a banner from the database.

One immutable snapshot a tenant, swapped in one assignment. A change is published after its commit, and a poll of the
version numbers stands behind the message; every process is fresh within two seconds. An id that is not in memory is
asked for once in PostgreSQL (others who ask meanwhile wait for the same answer) before anybody is told 404: it may be
brand new, or deleted, and deleted banners still count. So is a banner that is not shown by the copy in memory: the
tenant's copy is compared with PostgreSQL first. Either answer is remembered for a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal
from uuid import UUID

import msgspec

from handbill.banners import store
from handbill.banners.model import Banner, Campaign, Deciding, Placement
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.redis.subscriber import SubscriptionTask
from handbill.kit.bounds import PUBLIC_IDS
from handbill.kit.caches import LruCache, TtlCache
from handbill.kit.clock import Clock, from_ms, to_ms
from handbill.kit.errors import Busy
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs, metrics

_log = logs.get("catalogue")

CHANNEL = "handbill:catalogue"
_POLL_S = 1.0
_OVERLAP = timedelta(seconds=60)  # a change is dated by its transaction's start and may commit a good while later
_NEGATIVE_S = 1.0

Kind = Literal["banner", "placement", "campaign"]


class Found(msgspec.Struct, frozen=True):
    """What a public id stands for."""

    tenant_id: int
    id: int


class Snapshot(msgspec.Struct, frozen=True):
    """One tenant's catalogue at one version."""

    tenant_id: int
    version: int
    banners: tuple[Banner, ...]
    by_id: Mapping[int, Banner]
    placements: Mapping[int, Placement]
    campaigns: Mapping[int, Campaign]
    deciding: Deciding = Deciding()

    def shown(self, now: datetime) -> list[Banner]:
        """Every banner that is shown at `now`, in order of their ids."""
        return [banner for banner in self.banners if self.is_shown(banner, now)]

    def is_shown(self, banner: Banner, now: datetime) -> bool:
        """Whether its switch is on and its window, and its campaign's, holds `now`: what decisions choose from."""
        if not banner.open_at(now):
            return False
        if banner.campaign_id is None:
            return True
        campaign = self.campaigns.get(banner.campaign_id)
        return campaign is not None and campaign.open_at(now)

    def campaign_of(self, banner: Banner) -> UUID | None:
        """The public id of its campaign."""
        campaign = self.campaigns.get(banner.campaign_id) if banner.campaign_id is not None else None
        return campaign.public_id if campaign is not None else None

    def changes(self, banner: Banner) -> Iterator[int]:
        """The moments at which its schedule, or its campaign's, opens or closes it, in milliseconds."""
        yield from _whole_ms((banner.publish_at, banner.expires_at))
        campaign = self.campaigns.get(banner.campaign_id) if banner.campaign_id is not None else None
        if campaign is not None:
            yield from _whole_ms((campaign.starts_at, campaign.ends_at))


class ShownBanner(msgspec.Struct, frozen=True):
    """A banner that is shown now, and the moment (in milliseconds) at which its schedule may end that, if any."""

    banner: Banner
    until_ms: int | None


def _empty(tenant_id: int) -> Snapshot:
    return Snapshot(tenant_id, 0, (), {}, {}, {})


class Catalogue:
    def __init__(self, database: Database, redis: Redis, clock: Clock) -> None:
        self._database = database
        self._redis = redis
        self._clock = clock
        self._tenants: dict[int, Snapshot] = {}
        self._public: dict[tuple[Kind, UUID], Found] = {}
        self._gone: LruCache[tuple[Kind, UUID], Found] = LruCache(PUBLIC_IDS)  # deleted, but they still count
        self._absent: TtlCache[tuple[Kind, UUID], bool] = TtlCache(PUBLIC_IDS, _NEGATIVE_S, clock.monotonic)
        self._compared: TtlCache[UUID, bool] = TtlCache(PUBLIC_IDS, _NEGATIVE_S, clock.monotonic)
        """Banners that were not shown when their tenant's copy was last compared with PostgreSQL."""
        self._former: TtlCache[tuple[int, int], tuple[Banner | None]] = TtlCache(
            PUBLIC_IDS, _NEGATIVE_S, clock.monotonic
        )
        """Deleted and archived banners, which still count, as they were last read."""
        self._asking: dict[tuple[Kind, UUID], asyncio.Future[Found | None]] = {}
        self._comparing: dict[int, asyncio.Lock] = {}
        self._since: datetime | None = None
        self._current_at: float | None = None
        self._tasks = (
            SubscriptionTask("catalog-changes", redis, (CHANNEL,), lambda channel, message: self._poke.set()),
            BackgroundTask("catalog-poll", self._poll, longest_pause_s=1.0),
        )
        self._poke = asyncio.Event()
        self._watchers: list[Callable[[int], None]] = []

    async def start(self) -> None:
        await self.refresh()
        metrics.CATALOG_AGE_SECONDS.set_function(self.age_seconds)
        for task in self._tasks:
            await task.start()

    async def stop(self) -> None:
        for task in self._tasks:
            await task.stop()

    def age_seconds(self) -> float:
        """Time since the copy in memory was last known to be current; endless before the first load."""
        return math.inf if self._current_at is None else self._clock.monotonic() - self._current_at

    def tenant(self, tenant_id: int) -> Snapshot:
        return self._tenants.get(tenant_id) or _empty(tenant_id)

    def learns_active_hours(self, tenant_id: int) -> bool:
        return self.tenant(tenant_id).deciding.smart_scheduling

    def tenants(self) -> list[int]:
        return list(self._tenants)

    def watch(self, told: Callable[[int], None]) -> None:
        """Be told the tenant whose snapshot was swapped."""
        self._watchers.append(told)

    async def find(self, kind: Kind, public_id: UUID) -> Found | None:
        """Whose it is and its number inside; None when no such thing ever was."""
        key = (kind, public_id)
        found = self._public.get(key) or self._gone.get(key)
        if found is not None:
            return found
        if key in self._absent:
            return None
        return await self._ask(key)

    def known(self, kind: Kind, public_id: UUID) -> Found | None:
        """Without asking anybody: the hot path tries this first."""
        return self._public.get((kind, public_id))

    def known_banner(self, found: Found) -> Banner | None:
        """The banner if it is in memory, without asking anybody."""
        return self.tenant(found.tenant_id).by_id.get(found.id)

    async def banner(self, found: Found) -> Banner | None:
        """The banner itself, also one that was deleted or archived since.

        One that was made a moment ago brings its tenant's copy in memory up to date, so that its limits are known, too.
        """
        banner = self.known_banner(found)
        if banner is not None:
            return banner
        key = (found.tenant_id, found.id)
        former: tuple[Banner | None] | None = self._former.get(key)
        if former is None:
            former = self._former[key] = (await self._database.hot.run(lambda: self._read_banner(found)),)
        return former[0]

    async def _read_banner(self, found: Found) -> Banner | None:
        async with self._comparing.setdefault(found.tenant_id, asyncio.Lock()):
            if self.known_banner(found) is None:
                await self._load_if_changed(found.tenant_id)
        banner = self.known_banner(found)
        if banner is not None:
            return banner
        async with self._database.tenant(found.tenant_id) as tx:
            return await store.read_any_banner(tx, found.tenant_id, found.id)

    def shown(self, public_id: UUID) -> ShownBanner | None:
        """The banner if it is shown now, by the copy in memory."""
        found = self._public.get(("banner", public_id))
        if found is None:
            return None
        snapshot, now_ms = self.tenant(found.tenant_id), self._clock.now_ms()
        banner = snapshot.by_id.get(found.id)
        if banner is None or not snapshot.is_shown(banner, from_ms(now_ms)):
            return None
        return ShownBanner(
            banner, min((change for change in snapshot.changes(banner) if change > now_ms), default=None)
        )

    def is_compared(self, public_id: UUID) -> bool:
        """Whether PostgreSQL was asked about this banner within the last second, and it was not shown."""
        return public_id in self._compared

    async def compare(self, public_id: UUID) -> ShownBanner | None:
        """The banner if it is shown now, after comparing its tenant's copy in memory with PostgreSQL.

        Raises Busy when PostgreSQL does not answer. A banner that nobody asked for within the last second is seen as it
        was when the call began, or later.
        """
        found = await self.find("banner", public_id)
        if found is not None:
            async with self._comparing.setdefault(found.tenant_id, asyncio.Lock()):
                if self.shown(public_id) is None and public_id not in self._compared:
                    await self._database.hot.run(partial(self._load_if_changed, found.tenant_id))
        shown = self.shown(public_id)
        if shown is None:
            self._compared[public_id] = True
        return shown

    async def refresh(self) -> None:
        """Load what changed since the last look; everything, the first time."""
        started = self._clock.monotonic()
        async with self._database.worker() as tx:
            if self._since is None:
                versions = await store.all_versions(tx)
            else:
                versions = await store.versions_since(tx, self._since - _OVERLAP)
            began = await store.now(tx)
        stale = [tenant for tenant, version in versions.items() if self.tenant(tenant).version != version]
        if stale:
            await self._load(stale, versions)
        self._since, self._current_at = began, started

    async def changed(self, tenant_id: int) -> None:
        """Tell every process, this one included. A lost message costs a second: the poll stands behind it."""
        try:
            await self._redis.call("PUBLISH", CHANNEL, str(tenant_id))
        except Busy:
            _log.warning("catalogue-unheard", tenant=tenant_id, detail="the poll will find the change")
        self._poke.set()

    async def _load_if_changed(self, tenant_id: int) -> None:
        async with self._database.tenant(tenant_id) as tx:
            version = await store.version_of(tx, tenant_id)
        if self.tenant(tenant_id).version != version:
            await self._load([tenant_id], {tenant_id: version})

    async def _load(self, tenants: Sequence[int], versions: Mapping[int, int]) -> None:
        async with self._database.worker() as tx:
            loaded = await store.load(tx, tenants)
        for tenant_id, rows in loaded.items():
            self._keep_last_good(tenant_id, rows)
            self._swap(_snapshot(tenant_id, versions[tenant_id], rows))
        metrics.CATALOGUE_LOADS.inc(len(tenants))

    def _keep_last_good(self, tenant_id: int, rows: store.TenantRows) -> None:
        """A row that cannot be read stays as it was last read, or is left out; no other row is affected."""
        if not rows.unreadable:
            return
        old = self.tenant(tenant_id)
        for row in rows.unreadable:
            if row.kind == "banner" and row.id in old.by_id:
                rows.banners.append(old.by_id[row.id])
            elif row.kind == "placement" and row.id in old.placements:
                rows.placements.append(old.placements[row.id])
            elif row.kind == "campaign" and row.id in old.campaigns:
                rows.campaigns.append(old.campaigns[row.id])
            elif row.kind == "deciding":
                rows.deciding = old.deciding
            metrics.CATALOG_UNREADABLE_ROWS.labels(row.kind).inc()
            _log.error("catalog.row_unreadable", tenant_id=tenant_id, kind=row.kind, id=row.id, reason=row.reason)

    def _swap(self, snapshot: Snapshot) -> None:
        old = self.tenant(snapshot.tenant_id)
        if old.version > snapshot.version:
            return  # a slower reader must not bring back the past
        before, after = _publics(old), _publics(snapshot)
        self._tenants[snapshot.tenant_id] = snapshot
        self._public.update(after)
        for key, found in before.items():
            if key not in after:
                self._public.pop(key, None)
                self._gone[key] = found
        for key in [key for key in self._absent if key in after]:  # few, and a catalogue may have thousands
            self._absent.pop(key, None)
        for told in self._watchers:
            told(snapshot.tenant_id)

    async def _ask(self, key: tuple[Kind, UUID]) -> Found | None:
        asking = self._asking.get(key)
        if asking is not None:
            return await asyncio.shield(asking)
        asking = self._asking[key] = asyncio.get_running_loop().create_future()
        try:
            found = await self._database.hot.run(lambda: self._find_public(key))
        except BaseException as error:
            if not asking.done():
                asking.set_exception(error if isinstance(error, Exception) else Busy("The look-up was cut short."))
                asking.exception()  # nobody else may be waiting: that is no leak
            raise
        finally:
            del self._asking[key]
        answer = Found(*found) if found else None
        if answer is None:
            self._absent[key] = True
        else:
            self._gone[key] = answer
        asking.set_result(answer)
        return answer

    async def _find_public(self, key: tuple[Kind, UUID]) -> tuple[int, int] | None:
        async with self._database.lookup() as tx:
            return await store.find_public(tx, *key)

    async def _poll(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._poke.wait(), _POLL_S)
        self._poke.clear()
        try:
            await self.refresh()
        except Busy:
            metrics.CATALOGUE_STALE.inc()
            raise  # the last copy is served until PostgreSQL answers


def _snapshot(tenant_id: int, version: int, rows: store.TenantRows) -> Snapshot:
    banners = tuple(sorted(rows.banners, key=lambda banner: banner.id))
    return Snapshot(
        tenant_id,
        version,
        banners,
        {banner.id: banner for banner in banners},
        {place.id: place for place in rows.placements},
        {campaign.id: campaign for campaign in rows.campaigns},
        rows.deciding or Deciding(),
    )


def _publics(snapshot: Snapshot) -> dict[tuple[Kind, UUID], Found]:
    tenant = snapshot.tenant_id
    found: dict[tuple[Kind, UUID], Found] = {}
    for banner in snapshot.banners:
        found["banner", banner.public_id] = Found(tenant, banner.id)
    for place in snapshot.placements.values():
        found["placement", place.public_id] = Found(tenant, place.id)
    for campaign in snapshot.campaigns.values():
        found["campaign", campaign.public_id] = Found(tenant, campaign.id)
    return found


def _whole_ms(moments: Sequence[datetime | None]) -> Iterator[int]:
    """In whole milliseconds, later where the moment lies between two: `now` has no finer grain."""
    for moment in moments:
        if moment is not None:
            ms = to_ms(moment)
            yield ms if moment.microsecond % 1000 == 0 else ms + 1
