"""How much may be parked: a few bad rows are the senders' fault, most of everything is ours.

A wrong setting or a half-done migration makes the database refuse everything. Parking it all would look like work done;
so a process that has refused more than it counted for a while parks no more, and its lanes wait for a person.
"""

from __future__ import annotations

from collections import deque

ALWAYS = 20
"""So many rows of one batch may be parked whatever the share: a small batch may consist of nothing else."""
WINDOW_S = 600.0
WINDOW_ALWAYS = 200
"""So many rows of ten minutes may be parked whatever the share."""


class Flood:
    """What one process has counted and parked of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()
        self._counted = 0
        self._parked = 0

    def note(self, now: float, counted: int, parked: int) -> None:
        last = self._seen[-1] if self._seen else None
        if last is not None and now - last[0] < 1:  # one place a second: the window stays small
            self._seen[-1] = (last[0], last[1] + counted, last[2] + parked)
        else:
            self._seen.append((now, counted, parked))
        self._counted += counted
        self._parked += parked
        self._forget(now)

    def most(self, now: float, rows: int) -> int:
        """How many of a batch with so many rows may be parked now."""
        self._forget(now)
        share = max(WINDOW_ALWAYS, self._counted) - self._parked
        return min(max(ALWAYS, rows // 2), max(share, 0))

    def _forget(self, now: float) -> None:
        while self._seen and self._seen[0][0] < now - WINDOW_S:
            _, counted, parked = self._seen.popleft()
            self._counted -= counted
            self._parked -= parked
