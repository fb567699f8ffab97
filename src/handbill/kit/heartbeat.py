"""A file that is touched while the process is alive, from a thread: a blocked event loop leaves it to grow old.

Whoever supervises the process (`handbill up`, a container's liveness probe) needs nothing but the file's age.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from handbill.kit import task_health
from handbill.kit.telemetry import logs

_log = logs.get("heartbeat")

EVERY_SECONDS = 5.0


class Heartbeat:
    """Touches `path` every few seconds unless a required task hangs; the file goes away with an orderly stop."""

    def __init__(
        self,
        path: Path,
        silent: Callable[[], Sequence[str]] = task_health.silent,
        *,
        every: float = EVERY_SECONDS,
    ) -> None:
        self.path = path
        self._silent = silent
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._reported: list[str] = []

    def start(self) -> None:
        """Begin; a file that cannot be written is logged, and the process goes on without."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self.touch()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._every + 1)
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def touch(self) -> bool:
        """Touch the file, or log (once) which tasks hang and leave it."""
        names = list(self._silent())
        if names:
            if names != self._reported:
                _log.error("heartbeat.withheld", tasks=names)
            self._reported = names
            return False
        self._reported = []
        try:
            self.path.touch()
            os.utime(self.path)
        except OSError as error:
            _log.warning("heartbeat.not_written", path=str(self.path), error=error.strerror)
            return False
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.touch()
