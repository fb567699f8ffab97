"""When it happened: read from what clients send, corrected by their clock's error, fixed once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

FUTURE_MS = 23 * 3_600_000
"""A client's zone mistaken for UTC explains up to 14 hours; more than this is no time at all."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_END = 253_402_300_800_000
_SECONDS_BELOW = 100_000_000_000
"""A number under this is seconds (until the year 5138), over it milliseconds (from 1973)."""


def read_ms(value: Any) -> int | None:
    """A text in ISO 8601 (no zone: UTC) or a number since 1970; None if it is neither."""
    if type(value) is str:
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            return _trimmed(value)
        return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // _MS
    if type(value) is int or type(value) is float:
        ms = value if abs(value) >= _SECONDS_BELOW else value * 1000
        return int(ms) if -_END < ms < _END else None
    return None


def _trimmed(text: str) -> int | None:
    short = text.strip()
    return read_ms(short) if short != text else None


def skew(sent_at: int | None, received: int) -> int:
    """How far the client's clock is ahead of ours, the way on the wire included."""
    return 0 if sent_at is None else sent_at - received


def fixed(at: int, ahead: int, received: int) -> int:
    """The event's time for good: by our clock, never far in the future, never before 1970."""
    at -= ahead
    if at > received + FUTURE_MS:
        return received
    return at if at > 0 else 0
