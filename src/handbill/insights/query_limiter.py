"""How many questions are answered at once: of one tenant, and in this process. Who waits longest by its share is next.

Fair between tenants by virtual time (start-time fair queueing): a question's start is where its tenant's last one
ended, or now for a tenant that had none; the earliest start goes first. So a tenant with many questions and one with a
single question take turns, and no other tenant gets more than two slots while a tenant that may have one waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from handbill.kit.errors import Busy, HandbillError, Throttled
from handbill.kit.telemetry import metrics

_RETRY_AFTER_S = 2.0


class QueryLimits(msgspec.Struct, frozen=True):
    """Questions that run and wait, of one tenant and in this process, and how long one waits."""

    tenant_running: int = 4
    tenant_waiting: int = 16
    running: int = 16
    waiting: int = 200
    timeout_s: float = 10.0


class QueryLimiter:
    """Gives slots for questions. `slot` raises Throttled (429) at a tenant's limits and Busy (503) at the process's."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._running: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._starts: dict[int, int] = {}  # of the next question of a tenant
        self._now = 0  # the latest start of all questions that got a slot

    @asynccontextmanager
    async def slot(self, tenant_id: int) -> AsyncIterator[None]:
        if self._can_run(tenant_id):  # whoever waits cannot run now: nobody is overtaken
            self._start(tenant_id)
        else:
            await self._wait(tenant_id)
        try:
            yield
        finally:
            self._release(tenant_id)

    def running(self, tenant_id: int | None = None) -> int:
        return self._running.total() if tenant_id is None else self._running[tenant_id]

    def waiting(self, tenant_id: int | None = None) -> int:
        if tenant_id is None:
            return sum(map(len, self._waiting.values()))
        return len(self._waiting.get(tenant_id, ()))

    def _can_run(self, tenant_id: int) -> bool:
        limits = self._limits
        return self._running.total() < limits.running and self._running[tenant_id] < limits.tenant_running

    async def _wait(self, tenant_id: int) -> None:
        if self.waiting(tenant_id) >= self._limits.tenant_waiting:
            raise self._refusal(tenant_id)
        if self.waiting() >= self._limits.waiting:
            self._make_room(tenant_id)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tenant_id not in self._waiting:
            self._waiting[tenant_id] = deque()
            self._starts[tenant_id] = max(self._starts.get(tenant_id, 0), self._now)
        self._waiting[tenant_id].append(granted)
        try:
            await asyncio.wait([granted], timeout=self._limits.timeout_s)
        except asyncio.CancelledError:
            if granted.done() and granted.exception() is None:
                self._release(tenant_id)
            raise
        finally:
            self._leave(tenant_id, granted)
        if not granted.done():
            raise self._refusal(tenant_id)
        granted.result()

    def _make_room(self, tenant_id: int) -> None:
        """The waiting questions of the process are at their limit: the tenant with most of them gives up its last."""
        longest = max(self._waiting, key=self.waiting)
        if self.waiting(longest) <= self.waiting(tenant_id) + 1:
            raise self._refusal(tenant_id)
        last = self._waiting[longest][-1]
        last.set_exception(self._refusal(longest))
        self._leave(longest, last)

    def _leave(self, tenant_id: int, granted: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant_id)
        if queue is not None and granted in queue:
            queue.remove(granted)
            if not queue:
                del self._waiting[tenant_id]

    def _start(self, tenant_id: int) -> None:
        start = max(self._starts.get(tenant_id, 0), self._now)
        self._now = start
        self._starts[tenant_id] = start + 1
        self._running[tenant_id] += 1

    def _release(self, tenant_id: int) -> None:
        self._running[tenant_id] -= 1
        if not self._running[tenant_id]:
            del self._running[tenant_id]
        while eligible := [each for each in self._waiting if self._can_run(each)]:
            following = min(eligible, key=self._starts.__getitem__)
            granted = self._waiting[following][0]
            self._leave(following, granted)
            self._start(following)
            granted.set_result(None)
        if not self._running and not self._waiting:
            self._starts.clear()
            self._now = 0

    def _refusal(self, tenant_id: int) -> HandbillError:
        if self._running[tenant_id] >= self._limits.tenant_running or (
            self.waiting(tenant_id) >= self._limits.tenant_waiting
        ):
            metrics.INSIGHTS_REFUSED.labels("busy").inc()
            return Throttled(
                f"{self._running[tenant_id]} questions of yours are being answered and others wait; ask again shortly.",
                code="INSIGHTS_BUSY",
                retry_after=_RETRY_AFTER_S,
            )
        metrics.INSIGHTS_REFUSED.labels("full").inc()
        return Busy(
            "Questions of all tenants together take all slots of this process; ask again shortly.",
            code="INSIGHTS_FULL",
            retry_after=_RETRY_AFTER_S,
        )
