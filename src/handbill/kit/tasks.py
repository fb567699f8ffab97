"""Background tasks: the one way to run a loop.

An error is logged, counted and followed by a growing pause, never by the end of the task. A run that gives no sign of
life within its limit is cancelled and started again. See `task_health` for what counts as progress.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from handbill.kit import task_health
from handbill.kit.errors import Busy
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry import logs

_log = logs.get("tasks")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
CANCEL_AGAIN_S = 0.5
_CHECKS_PER_LIMIT = 8

_started: list[BackgroundTask] = []


class TaskStuck(Exception):
    """A run gave no sign of life within its limit and was cancelled."""


class BackgroundTask:
    """Calls `run` again and again between `start` and `stop`, with `period_s` between two runs.

    `ready` is set by the first run that ends, well or not, or earlier by the run itself: an engine that does not answer
    must not keep a process from being ready.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], Awaitable[object]],
        *,
        period_s: float = 0.0,
        health: TaskHealth | None = None,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.health = health or TaskHealth(name)
        self.run = run
        self._period_s = period_s
        self._longest_pause_s = longest_pause_s
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched_at = 0.0
        self._is_hung = False
        self._is_stopping = False

    async def start(self) -> None:
        """Begin in the background; a second call changes nothing."""
        if self._task is None:
            self._is_stopping = False
            task_health.register(self.health)
            _started.append(self)
            self._task = asyncio.create_task(self._loop(), name=self.name)
            self._task.add_done_callback(self._on_end)
            self._watched_at = asyncio.get_running_loop().time()
            self._watch()

    async def stop(self) -> None:
        """Cancel the run under way and wait for its end; safe to call twice."""
        self._is_stopping = True
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if task is not None:
            while not task.done():  # a wait inside the run may swallow a cancellation, and go on
                task.cancel()
                await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
            task_health.unregister(self.health)
            _started.remove(self)

    async def rest(self, seconds: float) -> None:
        """A pause on purpose, after work without an error: an earlier one counts no longer."""
        self.health.succeeded()
        await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        self.health.rest(seconds)
        await asyncio.sleep(seconds)
        self.health.heartbeat()

    async def _loop(self) -> None:
        task_health.enter(self.health)
        pause = FIRST_PAUSE_S
        while not self._is_stopping:  # a run may have swallowed the cancellation
            self.health.heartbeat()
            try:
                await self._run_once()
                pause = FIRST_PAUSE_S
            except Exception as error:  # noqa: BLE001 - a task must not end because of what it works on
                self._on_error(error)
                await self._wait_after_error(pause * (0.5 + random.random()))
                pause = min(pause * 2, self._longest_pause_s)

    async def _run_once(self) -> None:
        """One run and the pause behind it."""
        try:
            await self.run()
            self.ready.set()
            await self.rest(self._period_s)  # also without a period: a run that never waits must not block the others
        except asyncio.CancelledError:
            if not self._was_cancelled_by_watch():
                raise
            raise TaskStuck(f"no sign of life within {self.health.limit_s:g} s; cancelled and started again") from None

    async def _wait_after_error(self, seconds: float) -> None:
        """The pause after an error. A cancellation by the watch ends it, and not the task."""
        try:
            await self._sleep(seconds)
        except asyncio.CancelledError:
            if not self._was_cancelled_by_watch():
                raise

    def _was_cancelled_by_watch(self) -> bool:
        """Whether the cancellation under way is the watch's own; if so, it is over."""
        task = asyncio.current_task()
        if not self._is_hung or self._is_stopping or task is None:
            return False
        self._is_hung = False
        task.uncancel()
        return True

    def _on_error(self, error: Exception) -> None:
        self.health.failed(error)
        write = _log.warning if isinstance(error, Busy) else _log.error
        write("task.failed", task=self.name, error=f"{type(error).__name__}: {error}")
        self.ready.set()

    def _watch(self) -> None:
        """Look now and then whether the run hangs, and cancel it: awaiting something that never comes is over then."""
        loop, every = asyncio.get_running_loop(), self.health.limit_s / _CHECKS_PER_LIMIT
        late, self._watched_at = loop.time() - self._watched_at, loop.time()
        self._timer = loop.call_later(every, self._watch)
        if late > self.health.limit_s / 2:  # the whole process stood still: that is no fault of this task
            self.health.heartbeat()
        elif self._task is not None and not self._is_hung and self.health.is_silent():
            self._is_hung = True
            self._task.cancel()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Nothing but `stop` ends a task. What else did is logged; the task stays registered and gets silent."""
        if self._task is task and not task.cancelled():
            _log.error("task.ended", task=self.name, error=repr(task.exception()))


def started() -> list[BackgroundTask]:
    """The background tasks of this process that were started and not stopped."""
    return list(_started)


def spawn_watched(work: Callable[[], Coroutine[Any, Any, None]], health: TaskHealth) -> asyncio.Task[None]:
    """Run once, with a health of its own for as long as it runs; the caller looks after its end."""

    async def watched() -> None:
        task_health.enter(health)
        await work()

    task = asyncio.create_task(watched(), name=health.name)
    task_health.register(health)
    task.add_done_callback(lambda _: task_health.unregister(health))
    return task
