"""A clock that moves only when told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from handbill.kit.clock import from_ms, to_ms

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class FakeClock:
    """A Clock for tests: starts at a fixed moment, `advance` moves wall time and the monotonic counter together."""

    def __init__(self, start: datetime = START) -> None:
        self._ms = to_ms(start)
        self._monotonic = 1_000.0

    def now(self) -> datetime:
        return from_ms(self._ms)

    def now_ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        step = timedelta(milliseconds=ms, seconds=seconds, minutes=minutes, hours=hours, days=days)
        self._ms += round(step / timedelta(milliseconds=1))
        self._monotonic += step.total_seconds()

    def set(self, when: datetime) -> None:
        """Move wall time alone, as an administrator or a leap does: durations must not notice."""
        self._ms = to_ms(when)
