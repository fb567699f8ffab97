"""One step for each tenant, round after round, so that no tenant stops or delays the others.

What fails for one tenant (a refused statement, a wrong set-up, any unexpected error, a step above its time limit) is
logged and counted, and the round goes on. The tenant is tried again after a pause that grows up to a minute, behind
all others. The health of the background task is informed after the round, so the task is seen as failing while it
works for everybody else.

An engine that does not answer (`Busy`) concerns all tenants and ends the round; the tenant in whose turn it happened
is last in the next one. A statement that was stopped alone (`StatementStopped`) concerns its tenant only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from handbill.kit import task_health
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Busy, StatementStopped
from handbill.kit.telemetry import logs, metrics

Key = TypeVar("Key", bound=Hashable)
"""A tenant's id, or a tenant's id and one thing of that tenant."""
Result = TypeVar("Result")

STEP_TIMEOUT_S = 30.0
"""Below the limit of a silent task: a step that hangs ends before its task is cancelled."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
FORGET_AFTER_S = 600.0
_log = logs.get("tenants")


@dataclass(slots=True)
class _Failure:
    count: int
    retry_at: float


class StepTooSlow(Exception):
    """The step of one tenant was cancelled at its time limit."""


class TenantRounds(Generic[Key]):
    """The rounds of one background task, with its memory of the tenants that fail."""

    def __init__(self, task: str, *, timeout_s: float = STEP_TIMEOUT_S, clock: Clock | None = None) -> None:
        self.task = task
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._failures: dict[Key, _Failure] = {}
        self._failed = metrics.TENANT_STEPS_FAILED.labels(task)
        self._failing = metrics.TENANTS_FAILING.labels(task)

    async def for_each_tenant(self, keys: Iterable[Key], step: Callable[[Key], Awaitable[Result]]) -> dict[Key, Result]:
        """Run `step` for each key that does not pause after a failure. The results of those that ended well.

        Raises Busy when an engine does not answer; the keys that were not reached come first in the next round.
        """
        self._forget_old()
        results: dict[Key, Result] = {}
        last_error: Exception | None = None
        for key in self._in_order(keys):
            task_health.heartbeat()
            try:
                results[key] = await self._run_step(key, step)
                self._failures.pop(key, None)
            except Exception as error:  # whatever is wrong with one tenant, the others get their turn
                self._postpone(key)
                if isinstance(error, Busy) and not isinstance(error, StatementStopped):
                    raise
                self._failed.inc()
                _log.error("tenant.step_failed", task=self.task, **_fields(key), error=_text(error))
                last_error = error
        self._failing.set(len(self._failures))
        if last_error is not None:
            task_health.report_partial_failure(last_error)
        return results

    def paused(self) -> Collection[Key]:
        """The keys that failed and are not due yet: a store with a limit of rows leaves them out."""
        now = self._clock.monotonic()
        return [key for key, failure in self._failures.items() if failure.retry_at > now]

    async def _run_step(self, key: Key, step: Callable[[Key], Awaitable[Result]]) -> Result:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await step(key)
        except TimeoutError:
            if limit.expired():
                raise StepTooSlow(f"The step took longer than {self._timeout_s:g} s and was cancelled.") from None
            raise

    def _in_order(self, keys: Iterable[Key]) -> list[Key]:
        """Those that did not fail as they came, then those whose pause is over, the longest waiting first."""
        paused = set(self.paused())
        due = [key for key in keys if key not in paused]
        return sorted(due, key=lambda key: failure.retry_at if (failure := self._failures.get(key)) else -1.0)

    def _postpone(self, key: Key) -> None:
        count = failure.count + 1 if (failure := self._failures.get(key)) else 1
        pause = min(FIRST_PAUSE_S * 2 ** min(count - 1, 10), LONGEST_PAUSE_S)
        self._failures[key] = _Failure(count, self._clock.monotonic() + pause)

    def _forget_old(self) -> None:
        """Keys that nobody asks for any more: erased tenants, days that are done."""
        oldest = self._clock.monotonic() - FORGET_AFTER_S
        for key in [key for key, failure in self._failures.items() if failure.retry_at < oldest]:
            del self._failures[key]


def _fields(key: Hashable) -> dict[str, object]:
    return {"tenant_id": key[0], "item": str(key[1])} if isinstance(key, tuple) else {"tenant_id": key}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
