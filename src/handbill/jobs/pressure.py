"""Back-pressure: a producer learns in time that its work would only pile up.

Depth and age are each tenant's own in each queue: one tenant's pile never makes another one wait at the door.
"""

from __future__ import annotations

import asyncio

import msgspec

from handbill.infra.postgres import Database
from handbill.jobs import store
from handbill.kit.bounds import QUEUE_LOADS
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Throttled
from handbill.kit.telemetry import metrics


class PressureLimits(msgspec.Struct, frozen=True):
    """More than `depth` due jobs, or one older than `age_s`, and the tenant's producers are asked to come back."""

    depth: int = 50_000
    age_s: float = 3_600.0
    retry_min_s: float = 5.0
    retry_max_s: float = 120.0
    fresh_s: float = 1.0


class Load(msgspec.Struct, frozen=True):
    """One tenant's pending work in one queue: due rows (counted up to the limit) and the age of the oldest."""

    depth: int
    age_s: float


def retry_after(load: Load, limits: PressureLimits) -> float | None:
    """How long to stay away, longer the further beyond the limit; None while there is room."""
    over = max(load.depth / max(1, limits.depth), load.age_s / limits.age_s)
    if load.depth <= limits.depth and load.age_s <= limits.age_s:
        return None
    return min(limits.retry_max_s, limits.retry_min_s * over)


class Pressure:
    def __init__(self, database: Database, limits: PressureLimits | None = None, clock: Clock | None = None) -> None:
        self._database = database
        self.limits = limits or PressureLimits()
        self._clock = clock or SystemClock()
        self._known: LruCache[tuple[str, int | None], tuple[float, asyncio.Future[Load]]] = LruCache(QUEUE_LOADS)

    async def check(self, queue: str, tenant_id: int | None) -> None:
        """Raise Throttled when this tenant's pile in this queue is too high or too old. Nothing was stored."""
        wait = retry_after(await self.load(queue, tenant_id), self.limits)
        if wait is not None:
            metrics.PRESSURE_REFUSED.labels(queue).inc()
            raise Throttled(
                f"Too much work of yours is waiting in {queue}; nothing was stored, try again later.",
                code="QUEUE_FULL",
                retry_after=wait,
            )

    async def load(self, queue: str, tenant_id: int | None) -> Load:
        """Measured at most once a second per tenant and queue; callers that come together share one question."""
        key, now = (queue, tenant_id), self._clock.monotonic()
        known = self._known.get(key)
        if known is not None and now - known[0] < self.limits.fresh_s and not _failed(known[1]):
            return await asyncio.shield(known[1])
        asked = asyncio.ensure_future(self._measure(queue, tenant_id))
        self._known[key] = (now, asked)
        return await asyncio.shield(asked)

    async def _measure(self, queue: str, tenant_id: int | None) -> Load:
        scope = self._database.worker() if tenant_id is None else self._database.tenant(tenant_id)
        async with scope as tx:
            depth, age = await store.lane_pressure(tx, queue, tenant_id, self.limits.depth + 1)
        return Load(depth, age)


def _failed(asked: asyncio.Future[Load]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)
