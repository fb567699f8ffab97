"""The share of replies that are our errors, over the last half minute."""

from __future__ import annotations

from collections import deque

from handbill.kit.clock import Clock

WINDOW_S = 30.0
MIN_REPLIES = 50
MAX_SHARE = 0.2


class ReplyRate:
    """Counts replies; `sample`, called about once a second, remembers the counts at that time.

    A reply costs one or two additions: the time is read by `sample` and `recent` alone.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._replies = 0
        self._errors = 0
        self._samples: deque[tuple[float, int, int]] = deque([(clock.monotonic(), 0, 0)])

    def count(self, status: int) -> None:
        """One more reply was sent."""
        self._replies += 1
        if status >= 500:
            self._errors += 1

    async def sample(self) -> None:
        """Remember the counts of now, and drop samples that are older than the window needs."""
        now = self._clock.monotonic()
        self._samples.append((now, self._replies, self._errors))
        self._drop_old(now)

    def recent(self) -> tuple[int, int]:
        """Replies and errors since the first sample within the window."""
        self._drop_old(self._clock.monotonic())
        _, replies, errors = self._samples[0]
        return self._replies - replies, self._errors - errors

    def has_many_errors(self) -> bool:
        """Errors are more than a fifth of at least 50 replies."""
        replies, errors = self.recent()
        return replies >= MIN_REPLIES and errors > replies * MAX_SHARE

    def _drop_old(self, now: float) -> None:
        while len(self._samples) > 1 and now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
