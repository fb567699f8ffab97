"""Clicks per impression so far, kept in memory for tenants that rank by it and refreshed every half minute."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta

from handbill.banners import store
from handbill.banners.ranking import ctr
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask

EVERY_S = 30.0
SINCE = timedelta(days=30)
_NONE: Mapping[int, float] = {}


class Rates:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._wanted: set[int] = set()
        self._known: dict[int, float] = {}
        self._poke = asyncio.Event()
        self._task = BackgroundTask("banner-rates", self._keep, health=TaskHealth("banner-rates", required=False))

    async def start(self) -> None:
        await self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def want(self, tenant_id: int, *, wanted: bool) -> None:
        if wanted and tenant_id not in self._wanted:
            self._wanted.add(tenant_id)
            self._poke.set()
        elif not wanted:
            self._wanted.discard(tenant_id)

    def of(self, tenant_id: int) -> Mapping[int, float]:
        """The rate of each banner by its number; what is missing has no history."""
        return self._known if tenant_id in self._wanted else _NONE

    async def refresh(self) -> None:
        if not self._wanted:
            return
        async with self._database.worker() as tx:
            counts = await store.rates(tx, sorted(self._wanted), self._clock.now() - SINCE)
        self._known = {banner: ctr(impressions, clicks) for banner, (impressions, clicks) in counts.items()}

    async def _keep(self) -> None:
        self._task.health.rest(EVERY_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._poke.wait(), EVERY_S)
        self._poke.clear()
        self._task.health.heartbeat()
        await self.refresh()  # after an error the last figures are used
