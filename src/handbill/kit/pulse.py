"""The pulse of one chore: its loop says that it goes round, what it finished and what failed; the shell concludes.

Three rules live here, because every loop needs the same ones. A loop that has beaten once must keep beating. An engine
that is away (Busy) is no error. Only finished work makes earlier errors forgotten: an empty read proves nothing.
"""

from __future__ import annotations

from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Busy


class Pulse:
    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self.errors = 0
        """Errors since the last finished work, busy engines not counted."""
        self.last_error = ""
        self.done = 0
        self._beat: float | None = None

    def beat(self) -> None:
        """The loop went round once, whether or not there was work."""
        self._beat = self._clock.monotonic()

    def processed(self, count: int = 1) -> None:
        """Work was finished: earlier errors are forgotten."""
        self.beat()
        self.done += count
        self.errors = 0

    def failed(self, error: BaseException) -> None:
        """The loop met an error and goes on; an engine that is away does not count."""
        self.beat()
        if not isinstance(error, Busy):
            self.errors += 1
            self.last_error = f"{type(error).__name__}: {error}"

    def silent_seconds(self) -> float:
        """How long ago the last beat was; 0 for a loop that never beats: the event loop's own pulse covers that."""
        return 0.0 if self._beat is None else self._clock.monotonic() - self._beat
