"""When an event happened and where it stands among others: read to the microsecond, corrected once, then fixed.

Events are ordered by their time and, at one time, by their sequence: when the client sent the request, then the
position in the request. So two events of one client keep their order, however fast their requests were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from handbill.events.dialects.canon import Refused
from handbill.events.model import HISTORY_SEQUENCE
from handbill.events.reasons import Reason
from handbill.kit.report_ids import SEQUENCE_STEP

FUTURE_MS = 23 * 3_600_000
"""A client's zone mistaken for UTC explains up to 14 hours; more than this is no time at all."""
LATENCY_MS = 30_000
AHEAD_MS = 2_000
CORRECTION_MS = 10_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_END_MS = 253_402_300_800_000
_END_US = _END_MS * 1000
_SECONDS_BELOW = 100_000_000_000
"""A number under this is seconds (until the year 5138), over it milliseconds (from 1973)."""
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.I | re.A)


class RequestTime(msgspec.Struct, frozen=True, gc=False):
    """What the events of one request share in time. The first three are microseconds.

    An event at `index` has the sequence `first_sequence + index`, and without a time of its own `received + index`.
    History is never corrected by a clock, and nothing of it happened when it arrived: `is_history`.
    """

    received: int
    latest: int
    ahead: int
    first_sequence: int
    is_history: bool = False


def request_time(
    sent_at: int | None, received: int, ids: Iterable[str | None], *, is_history: bool = False
) -> RequestTime:
    """From when the client sent the request and when it arrived, in milliseconds.

    `ids` are those that the client gave its events. They are looked at only where there is no `sent_at`.
    """
    started = newest_uuid7(ids, received) if sent_at is None else sent_at
    received_us = received * 1000
    latest, first = received_us + FUTURE_MS * 1000, sequence(started, 0)
    if is_history:
        first = HISTORY_SEQUENCE + min(first, HISTORY_SEQUENCE - SEQUENCE_STEP)  # below what a sequence may be
        return RequestTime(received_us, latest, 0, first, is_history=True)
    return RequestTime(received_us, latest, skew(sent_at, received), first)


def read_us(value: Any) -> int | None:
    """Microseconds since 1970 from a text in ISO 8601 (no zone: UTC) or a number of seconds or milliseconds, rounded
    to the nearest microsecond; None if it is neither. Digits of a text beyond the microsecond are left out."""
    if type(value) is str:
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            return _trimmed(value)
        return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if type(value) is int or type(value) is float:
        us = value * (1000 if abs(value) >= _SECONDS_BELOW else 1_000_000)
        return round(us) if -_END_US < us < _END_US else None
    return None


def read_ms(value: Any) -> int | None:
    """The same in whole milliseconds."""
    us = read_us(value)
    return None if us is None else us // 1000


def _trimmed(text: str) -> int | None:
    short = text.strip()
    return read_us(short) if short != text else None


def skew(sent_at: int | None, received: int) -> int:
    """How far the client's clock is ahead of ours, in microseconds, from two times in milliseconds.

    `sent_at - received` is the clock's error less the request's latency. The latency differs from request to request:
    taken off, it would reverse two events whose requests were not equally fast. So a clock counts as right as long as
    latency can explain the difference, and any other error is rounded, so that requests of one client get the same
    correction. A client whose error lies near the middle between two steps may still get both.
    """
    if sent_at is None:
        return 0
    ahead = sent_at - received
    if -LATENCY_MS <= ahead <= AHEAD_MS:
        return 0
    return (ahead + CORRECTION_MS // 2) // CORRECTION_MS * CORRECTION_MS * 1000


def fixed(at: int, time: RequestTime, index: int) -> int:
    """The event's time for good, from its corrected time: never far in the future, never before 1970.

    Raises Refused for history outside of these.
    """
    if at > time.latest or (at < 0 and time.is_history):
        return arrival(time, index)
    return at if at > 0 else 0


def arrival(time: RequestTime, index: int) -> int:
    """The time of an event that has none. Raises Refused for history: sent again it would have another time."""
    if time.is_history:
        raise Refused(Reason.INVALID_TIMESTAMP)
    return time.received + index


def sequence(sent_at: int | None, index: int) -> int:
    """Orders events of one time: by when their request was sent, in milliseconds, then by position in the request."""
    started = 0 if sent_at is None else min(max(sent_at, 0), _END_MS - 1)
    return started * SEQUENCE_STEP + min(index, SEQUENCE_STEP - 1)


def newest_uuid7(ids: Iterable[str | None], received: int) -> int | None:
    """The greatest time in milliseconds among ids that are UUIDv7; a time in the far future is none."""
    latest = received + FUTURE_MS
    newest = None
    for text in ids:
        found = _UUID7.fullmatch(text.strip()) if text else None
        if found is not None:
            ms = int(found[1] + found[2], 16)
            if ms <= latest and (newest is None or ms > newest):
                newest = ms
    return newest
