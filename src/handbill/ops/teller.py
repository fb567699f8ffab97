"""How the supervisor speaks: short lines for a person at a terminal, JSON log lines for a machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from rich.console import Console

from handbill.kit.telemetry import logs

_log = logs.get("up")

QUIET_SECONDS = 60.0
"""The same warning is told once in this time, however often it happens."""


class Teller:
    def __init__(self, *, as_json: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.as_json = as_json
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._monotonic = monotonic
        self._told: dict[str, tuple[float, int]] = {}

    def say(self, event: str, text: str, **fields: object) -> None:
        with contextlib.suppress(OSError):  # a full disk or a closed terminal must not end the supervisor
            if self.as_json:
                _log.info(event, **fields)
            else:
                self._console.print(f"[green]•[/] {text}")

    def warn(self, event: str, text: str, **fields: object) -> None:
        """Told once a minute per event and subject; the next telling says how many were kept back."""
        subject = f"{event}:{fields.get('name', '')}"
        last, held = self._told.get(subject, (float("-inf"), 0))
        now = self._monotonic()
        if now - last < QUIET_SECONDS:
            self._told[subject] = (last, held + 1)
            return
        self._told[subject] = (now, 0)
        with contextlib.suppress(OSError):
            if self.as_json:
                _log.warning(event, detail=text, repeats=held, **fields)
            else:
                more = f" ({held} more of the same in the last minute)" if held else ""
                self._console.print(f"[yellow]![/] {text}{more}")

    def line(self, text: str) -> None:
        """A child's own log line, passed on as it is when a machine listens."""
        with contextlib.suppress(OSError):
            if self.as_json:
                print(text, file=self._console.file, flush=True)
