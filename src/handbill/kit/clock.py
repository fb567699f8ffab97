"""Time comes in as an argument: everything that needs `now` is given a Clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time in UTC and a monotonic counter for durations."""

    def now(self) -> datetime: ...

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def from_ms(ms: int) -> datetime:
    """Milliseconds since 1970 as an aware UTC time, exact to the millisecond (no float in between)."""
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest * 1000)


def to_ms(when: datetime) -> int:
    """The inverse of from_ms; anything below a millisecond is cut off."""
    whole = int(when.replace(microsecond=0).timestamp())
    return whole * 1000 + when.microsecond // 1000
