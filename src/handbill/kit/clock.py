"""Time comes in as an argument: everything that needs `now` is given a Clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
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


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)


def from_ms(ms: int) -> datetime:
    """Milliseconds since 1970 as an aware UTC time, exact to the millisecond (no float in between)."""
    return _EPOCH + timedelta(milliseconds=ms)


def to_ms(when: datetime) -> int:
    """The inverse of from_ms; anything below a millisecond is cut off."""
    return (when - _EPOCH) // _MILLISECOND


def from_us(us: int) -> datetime:
    """Microseconds since 1970 as an aware UTC time, exact."""
    return _EPOCH + timedelta(microseconds=us)


def to_us(when: datetime) -> int:
    """The inverse of from_us."""
    return (when - _EPOCH) // _MICROSECOND
