"""Deadlines of bodies under way, with one timer for all: a body that comes at once costs no timer of its own.

Every wait for a part of a body is registered with the task that waits. A sweep cancels the waits that are over; the
waiting side turns its cancellation into 408 BODY_TOO_SLOW.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from handbill.kit.clock import Clock
from handbill.kit.errors import TooSlow

Message = MutableMapping[str, Any]
SWEEP_S = 1.0

_current_task = asyncio.current_task


def too_slow() -> TooSlow:
    """The answer to a client that keeps us waiting."""
    return TooSlow("The body did not come in time; nothing was kept. Send it again over a faster connection.")


class BodyDeadlines:
    """Who waits for a part of a body, and until when. A wait ends at most one sweep after its deadline."""

    def __init__(self, timeout_s: float, clock: Clock) -> None:
        self.timeout_s = timeout_s
        self._monotonic = clock.monotonic
        self._period_s = min(SWEEP_S, timeout_s / 4)
        self._due: dict[asyncio.Task[Any], float] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait for a part of a body now."""
        return len(self._due)

    def start(self, timeout_s: float) -> asyncio.Task[Any]:
        """This task waits from now on; `stop` must follow, and `explain` on a cancellation."""
        task = _current_task()
        assert task is not None
        self._due[task] = self._monotonic() + timeout_s
        if self._timer is None:
            self._schedule()
        return task

    def explain(self, task: asyncio.Task[Any]) -> None:
        """Raises TooSlow if the wait was cancelled by its deadline and by nothing else."""
        if task in self._cancelled and task.uncancel() == 0:
            raise too_slow() from None

    def stop(self, task: asyncio.Task[Any]) -> float:
        """The wait is over; when it would have been too late."""
        if self._cancelled:
            self._cancelled.discard(task)
        return self._due.pop(task)

    def left_s(self, due: float) -> float:
        """Seconds until then."""
        return due - self._monotonic()

    def sweep(self) -> None:
        """Cancels every wait whose time is over."""
        now = self._monotonic()
        for task, due in self._due.items():
            if due <= now and task not in self._cancelled:
                self._cancelled.add(task)
                task.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.sweep()
        finally:
            if self._due:
                self._schedule()


class BodyPace:
    """The least rate of one body: each `window_bytes` of it may take `timeout_s`, counted while we wait for it."""

    def __init__(self, deadlines: BodyDeadlines, bytes_per_s: int, left_s: float) -> None:
        self._deadlines = deadlines
        self._window_bytes = bytes_per_s * deadlines.timeout_s
        self._left_s = left_s
        self._size = 0

    async def receive(self, receive: Callable[[], Awaitable[Message]]) -> Message:
        """The next message. Raises TooSlow if this part of the body took too long."""
        deadlines = self._deadlines
        task = deadlines.start(self._left_s)
        try:
            message = await receive()
        except asyncio.CancelledError:
            deadlines.explain(task)
            raise
        finally:
            self._left_s = deadlines.left_s(deadlines.stop(task))
        self.count(message)
        return message

    def count(self, message: Message) -> None:
        """Counts what has come; a part that is complete gives the next one its own time."""
        self._size += len(message.get("body", b""))
        if self._left_s <= 0 and message.get("more_body", False):
            raise too_slow()
        if self._size >= self._window_bytes:
            self._size, self._left_s = 0, self._deadlines.timeout_s
