"""The clock's work on the catalogue: one statement decides each row's status from `now`; again, it changes nothing."""

from __future__ import annotations

from datetime import datetime

import msgspec

from handbill.banners import store
from handbill.banners.catalogue import Catalogue
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

_log = logs.get("schedule")
SERVE_PATTERN = "banners:serve:*"


class Synced(msgspec.Struct, frozen=True):
    """What one run of the sync changed."""

    banners_activated: int = 0
    banners_expired: int = 0
    campaigns_activated: int = 0
    campaigns_ended: int = 0

    @property
    def total(self) -> int:
        return self.banners_activated + self.banners_expired + self.campaigns_activated + self.campaigns_ended


class Schedule:
    def __init__(self, database: Database, redis: Redis, catalogue: Catalogue) -> None:
        self._database = database
        self._redis = redis
        self._catalogue = catalogue

    async def sync(self, now: datetime, correlation_id: str) -> Synced:
        async with self._database.worker() as tx:
            banners = await store.sync_banners(tx, now)
            campaigns = await store.sync_campaigns(tx, now)
            tenants = {tenant for tenant, _ in banners} | {tenant for tenant, _ in campaigns}
            for tenant in sorted(tenants):
                await store.changed(tx, tenant)
        synced = Synced(
            banners_activated=_count(banners, "active"),
            banners_expired=_count(banners, "expired"),
            campaigns_activated=_count(campaigns, "active"),
            campaigns_ended=_count(campaigns, "ended"),
        )
        _log.info(
            "Banner schedule sync complete",
            bannersActivated=synced.banners_activated,
            bannersExpired=synced.banners_expired,
            campaignsActivated=synced.campaigns_activated,
            campaignsEnded=synced.campaigns_ended,
            correlationId=correlation_id,
        )
        metrics.SCHEDULE_CHANGES.inc(synced.total)
        for tenant in sorted(tenants):
            await self._catalogue.changed(tenant)
        await self._forget_served(synced.total, correlation_id)
        return synced

    async def _forget_served(self, changed: int, correlation_id: str) -> None:
        """Another program may keep answers under `banners:serve:*`: they go when something changed.

        Only then are they looked for: that takes a walk over all keys in Redis.
        """
        if not changed:
            return
        try:
            keys = await self._served()
            metrics.SERVE_KEYS.set(len(keys))
            if keys:
                await self._redis.many([("UNLINK", key) for key in keys])
        except Busy as error:
            _log.warning("Banner serving cache invalidation failed", correlationId=correlation_id, reason=error.code)

    async def _served(self) -> list[bytes]:
        found: list[bytes] = []
        cursor = b"0"
        for _ in range(10_000):  # a bound, should the store grow as fast as we look
            cursor, keys = await self._redis.call("SCAN", cursor, "MATCH", SERVE_PATTERN, "COUNT", 1000)
            found += keys
            if cursor == b"0":
                break
        return found


def _count(rows: list[tuple[int, str]], status: str) -> int:
    return sum(1 for _, changed in rows if changed == status)
