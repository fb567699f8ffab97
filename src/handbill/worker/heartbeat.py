"""A file that is touched while the worker is alive, from a thread: a stuck event loop leaves it to grow old.

An outside watcher (a container's liveness probe) needs nothing but the file's age.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from handbill.kit.pulse import Pulse
from handbill.kit.telemetry import logs

_log = logs.get("worker")

STUCK_SECONDS = 30.0
EVERY_SECONDS = 5.0


def stuck(pulses: Sequence[Pulse], limit: float = STUCK_SECONDS) -> list[str]:
    """The names of the loops that have not gone round for `limit` seconds."""
    return [pulse.name for pulse in pulses if pulse.silent_seconds() >= limit]


class Heartbeat:
    """Touches `path` every few seconds unless a loop is stuck; the file goes away with an orderly stop."""

    def __init__(
        self,
        path: Path,
        pulses: Callable[[], Sequence[Pulse]],
        *,
        every: float = EVERY_SECONDS,
        limit: float = STUCK_SECONDS,
    ) -> None:
        self.path = path
        self._pulses = pulses
        self._every = every
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._told: list[str] = []

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.touch()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._every + 1)
            self.path.unlink(missing_ok=True)

    def touch(self) -> bool:
        """Touch the file, or say (once) which loops are stuck and leave it."""
        names = stuck(self._pulses(), self._limit)
        if names:
            if names != self._told:
                _log.error("worker-stuck", loops=names, seconds=self._limit)
            self._told = names
            return False
        self._told = []
        try:
            self.path.touch()
            os.utime(self.path)
        except OSError as error:
            _log.warning("heartbeat-not-written", path=str(self.path), error=error.strerror)
            return False
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.touch()
