"""Keeps the logs of the embedded engines below their limit while the engines run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from handbill.infra.embedded import log_files
from handbill.ops.teller import Teller

PERIOD_S = 30.0


class EngineLogs:
    """The logs of these engines; `truncate` is to be called every `PERIOD_S`."""

    def __init__(self, logs: Sequence[Path], teller: Teller) -> None:
        self._logs = logs
        self._teller = teller

    async def truncate(self) -> None:
        """Turn over every log above the limit; one that cannot be does not keep the next from it."""
        for log in self._logs:
            try:
                await asyncio.to_thread(log_files.truncate_large, log)
            except OSError as error:
                detail = f"the log {log} cannot be truncated: {error.strerror or error}"
                self._teller.warn("engine.log_not_truncated", detail, name=log.stem)
