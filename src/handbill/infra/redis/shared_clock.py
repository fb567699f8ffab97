"""One clock for all processes: the local one, set right by Redis TIME.

A view's time is compared with other processes' views to the millisecond, so every process stamps by the same clock.
Asking Redis for each stamp would cost a round trip; instead the offset between our monotonic clock and Redis' time is
measured every second, by the answer that came back fastest, and `now_ms` never goes backwards.
"""

from __future__ import annotations

import time
from datetime import datetime

from handbill.infra.redis.client import Redis
from handbill.kit.clock import from_ms
from handbill.kit.errors import Busy
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs

_log = logs.get("clock")
_SAMPLES = 3
_EVERY_S = 1.0
_JUMP_MS = 10_000


class SharedClock:
    """A kit Clock by Redis' time. While Redis is away the last offset stands; before the first answer, local time."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._last_ms = 0
        self._task: BackgroundTask | None = None

    async def start(self) -> None:
        """Measure once, then every second; raises what is no outage, as a refused login."""
        try:
            await self.measure()
        except Busy:
            _log.warning("clock-unsynchronised", detail="Redis is away: local time until it answers")
        self._task = BackgroundTask("shared-clock", self.measure, period_s=_EVERY_S)
        await self._task.start()

    async def stop(self) -> None:
        """End the measuring; the last offset stays in use."""
        task, self._task = self._task, None
        if task is not None:
            await task.stop()

    async def measure(self) -> None:
        """Set the offset by the fastest of a few answers."""
        best: tuple[int, int] | None = None
        for _ in range(_SAMPLES):
            sent = time.monotonic_ns()
            seconds, micros = await self._redis.call("TIME")
            back = time.monotonic_ns()
            trip = back - sent
            if best is None or trip < best[0]:
                theirs = (int(seconds) * 1_000_000 + int(micros)) * 1000
                best = (trip, theirs - (sent + trip // 2))
        assert best is not None
        self._offset_ns = best[1]
        back_ms = self._last_ms - (time.monotonic_ns() + self._offset_ns) // 1_000_000
        if back_ms > _JUMP_MS:  # somebody set the clock of Redis' host back: standing still that long would be worse
            _log.warning("clock-set-back", by_ms=back_ms)
            self._last_ms = 0

    def now_ms(self) -> int:
        now = (time.monotonic_ns() + self._offset_ns) // 1_000_000
        if now < self._last_ms:  # a small correction never turns time back
            return self._last_ms
        self._last_ms = now
        return now

    def now(self) -> datetime:
        return from_ms(self.now_ms())

    def monotonic(self) -> float:
        return time.monotonic()
