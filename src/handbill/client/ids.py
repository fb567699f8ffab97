"""Ids of reports: UUIDv7 that rise, so that the order in which reports were made can be read from them for ever."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Callable

_COUNTS = 4_096
"""Ids that one millisecond has; more borrow from the next one."""


class ReportIds:
    """Makes UUIDv7: milliseconds, then 12 bits that count up within a millisecond, then randomness."""

    def __init__(self, clock: Callable[[], int], random: Callable[[int], int] = secrets.randbits) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()
        self._last = 0
        """The last id's first 60 bits: milliseconds and count."""

    def new(self) -> str:
        """A larger one than every id before, also when the clock was set back."""
        with self._lock:
            self._last = max(self._clock() * _COUNTS, self._last + 1)
            ms, count = divmod(self._last, _COUNTS)
        return str(uuid.UUID(int=(ms & (1 << 48) - 1) << 80 | 0x7 << 76 | count << 64 | 2 << 62 | self._random(62)))


_ids = ReportIds(lambda: time.time_ns() // 1_000_000)


def new_id() -> str:
    """An id of a report that is made now."""
    return _ids.new()
