"""Look-ups of hot routes: a PostgreSQL that does not answer makes nobody wait for long, and nobody queue.

PostgreSQL is silent from the first question that was asked since its last answer. A look-up waits until PostgreSQL has
been silent for its timeout, not for its timeout from its own start: once that has passed, later ones fail at once, and
a probe asks in the background until PostgreSQL answers again. A timeout is short where the caller has a fall-back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from handbill.infra.postgres.errors import PostgresAway, PostgresBusy, PostgresError
from handbill.kit.telemetry import logs, metrics

T = TypeVar("T")

MAX_RUNNING = 1_000
"""More look-ups than this at once are refused: memory must not grow with the clients that ask."""
PROBE_PAUSE_S = 0.25
MIN_WAIT_S = 0.05
"""Every look-up that is begun has so long at least, however close to its timeout the silence is."""

_log = logs.get("postgres")
_ANSWERED, _TIMED_OUT, _REFUSED = (
    metrics.PG_HOT_LOOKUPS.labels(outcome) for outcome in ("answered", "timed_out", "refused")
)


class HotTimeouts(msgspec.Struct, frozen=True):
    """Seconds of silence that a look-up waits for: with a fall-back at hand, and where only PostgreSQL knows."""

    fallback_s: float = 0.25
    lookup_s: float = 2.0


class HotLookups:
    """Runs look-ups within their timeouts, and knows whether PostgreSQL answers.

    `ping` asks PostgreSQL something small, in bounded time, and raises when it does not answer.
    """

    def __init__(
        self,
        ping: Callable[[], Awaitable[None]],
        timeouts: HotTimeouts,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self._ping = ping
        self._timeouts = timeouts
        self._monotonic = monotonic
        self._max_running = max_running
        self._running: set[asyncio.Task[Any]] = set()
        self._unanswered_since: float | None = None
        self._probe: asyncio.Task[None] | None = None
        self._is_reported = False
        self._is_stopped = True

    def start(self) -> None:
        """From now on PostgreSQL is probed when it is silent, until `stop`."""
        self._is_stopped = False

    def is_silent(self, *, has_fallback: bool) -> bool:
        """Whether PostgreSQL has been silent for the whole timeout, so that a look-up would fail at once."""
        return self._left_s(has_fallback) <= 0

    def record_answer(self) -> None:
        """PostgreSQL answered something just now."""
        self._unanswered_since = None
        if self._is_reported:
            self._is_reported = False
            _log.info("postgres.answers_again", detail="hot routes ask it again")

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, has_fallback: bool = False) -> T:
        """What `work` gives. Raises PostgresAway when PostgreSQL is silent for too long; `work` is cancelled then."""
        if self.is_silent(has_fallback=has_fallback):
            _REFUSED.inc()
            raise self._silent()
        if len(self._running) >= self._max_running:
            _REFUSED.inc()
            raise PostgresBusy("Too many look-ups wait for PostgreSQL; nothing was done, try again.", retry_after=1.0)
        if self._unanswered_since is None:
            self._unanswered_since = self._monotonic()
        task = asyncio.create_task(work(), name="postgres-hot-lookup")
        self._running.add(task)
        task.add_done_callback(self._finish)
        try:
            return await self.wait(task, has_fallback=has_fallback)
        finally:
            task.cancel()

    async def wait(self, task: asyncio.Future[T], *, has_fallback: bool = False) -> T:
        """The result of a look-up that runs elsewhere; it goes on when the wait for it ends in PostgresAway."""
        done, _ = await asyncio.wait({task}, timeout=max(MIN_WAIT_S, self._left_s(has_fallback)))
        if done:
            return task.result()
        _TIMED_OUT.inc()
        self._start_probe()
        if not self._is_reported and self.is_silent(has_fallback=has_fallback):
            self._is_reported = True
            _log.warning("postgres.silent", detail="hot routes use what is in memory; look at the engine and its log")
        raise self._silent()

    async def stop(self) -> None:
        """End the probe and what still runs."""
        self._is_stopped = True
        tasks = [*self._running, *([self._probe] if self._probe is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left_s(self, has_fallback: bool) -> float:
        timeout = self._timeouts.fallback_s if has_fallback else self._timeouts.lookup_s
        since = self._unanswered_since
        return timeout if since is None else timeout - (self._monotonic() - since)

    def _silent(self) -> PostgresAway:
        return PostgresAway("PostgreSQL does not answer; nothing was done, try again.", retry_after=1.0)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), PostgresAway | PostgresBusy):
            _ANSWERED.inc()
            self.record_answer()
        elif self._unanswered_since is not None:  # nobody else may be asking: find out before the next one does
            self._start_probe()

    def _start_probe(self) -> None:
        if not self._is_stopped and (self._probe is None or self._probe.done()):
            self._probe = asyncio.create_task(self._run_probe(), name="postgres-probe")

    async def _run_probe(self) -> None:
        while self._unanswered_since is not None:
            try:
                await self._ping()
            except PostgresError:  # it refused, so it answers
                self.record_answer()
            except Exception as error:  # noqa: BLE001 - a probe that ends would leave hot routes without PostgreSQL
                _log.debug("postgres.probe_failed", error=type(error).__name__)
                await asyncio.sleep(PROBE_PAUSE_S)
            else:
                self.record_answer()
