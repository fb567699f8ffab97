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
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs

_log = logs.get("rates")

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
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="rates")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

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
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poke.wait(), EVERY_S)
            self._poke.clear()
            try:
                await self.refresh()
            except Busy as error:
                _log.warning("rates-stale", reason=error.code, detail="ranking by the last figures")
