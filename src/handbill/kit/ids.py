"""Ids: UUIDv7 (ordered by time) for everything that is not derived from content."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable

from handbill.kit.clock import Clock, SystemClock


class Ids:
    """Makes UUIDv7s: 48 bits of milliseconds, then a counter that keeps ids of one process ordered, then randomness."""

    def __init__(self, clock: Clock | None = None, random: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock or SystemClock()
        self._random = random
        self._last_ms = 0
        self._counter = 0
        self._lock = threading.Lock()

    def new(self) -> uuid.UUID:
        with self._lock:
            ms = self._clock.now_ms()
            if ms > self._last_ms:
                self._last_ms = ms
                self._counter = int.from_bytes(self._random(2), "big") & 0x3FF
            else:
                self._counter += 1
                if self._counter > 0xFFF:  # more than 4,096 in one millisecond: borrow the next one
                    self._last_ms += 1
                    self._counter = 0
            ms, counter = self._last_ms, self._counter
        tail = int.from_bytes(self._random(8), "big") & ((1 << 62) - 1)
        value = (ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | tail
        return uuid.UUID(int=value)


_default = Ids()


def new_id() -> uuid.UUID:
    """A fresh UUIDv7 by the system's clock, for places where neither time nor randomness matters to a test."""
    return _default.new()
