"""Since when work that waits has not moved."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from handbill.kit.clock import Clock


class _Position(msgspec.Struct):
    position: Hashable
    moved_at: float


class ProgressWatch:
    """Remembers the position of each key, and when it last moved or had nothing to do."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._positions: dict[str, _Position] = {}

    def observe(self, key: str, position: Hashable, *, has_work: bool) -> bool:
        """Report where `key` is now; True: it has work and has not moved within the limit."""
        now = self._clock.monotonic()
        last = self._positions.get(key)
        if last is None or not has_work or last.position != position:
            self._positions[key] = _Position(position, now)
            return False
        return now - last.moved_at >= self.limit_s
