"""Lets decisions go before reports that waited, so that a repeated report cannot change the answer to a decision."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class DecisionGate:
    """Closed while a decision is in progress, and from `hold` until the first decision has its answer."""

    def __init__(self) -> None:
        self._in_progress = 0
        self._held = False
        self._opened = asyncio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    @property
    def is_deciding(self) -> bool:
        return self._in_progress > 0

    def hold(self) -> None:
        """Close until a decision has its answer, or `release` is called."""
        self._held = True
        self._opened.clear()

    def release(self) -> None:
        self._held = False
        if not self._in_progress:
            self._opened.set()

    @contextlib.contextmanager
    def decision(self) -> Iterator[None]:
        """Around the request for a decision."""
        self._in_progress += 1
        self._opened.clear()
        try:
            yield
        finally:
            self._in_progress -= 1
            self.release()

    async def wait(self, timeout_s: float) -> None:
        """Until it is open, but no longer than this: a program that always decides must report, too."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._opened.wait(), timeout_s)
