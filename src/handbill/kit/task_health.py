"""The health of one background task: its loop reports that it goes round, what it finished and what failed.

Rules that every task shares. A task that gave a sign of life must give the next one within its own limit; a pause is
announced with `rest`, long work reports progress with `heartbeat`. An engine that does not answer (Busy) is no fault of
the task, so a restart would not help; but it is no progress either. Only finished work forgets earlier errors: an empty
read proves nothing.

`running()` lists the healths of this process: a task registers when it starts and unregisters when it stops.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Busy
from handbill.kit.telemetry import metrics

LIMIT_S = 40.0
"""Longer than a statement of a frozen PostgreSQL may hang, and short enough for an alert within a minute."""


class TaskHealth:
    """State of one task. `required`: the process is not healthy while this task hangs or keeps failing."""

    def __init__(
        self, name: str, *, limit_s: float = LIMIT_S, required: bool = True, clock: Clock | None = None
    ) -> None:
        self.name = name
        self.limit_s = limit_s
        self.required = required
        self.errors = 0
        """Errors since the last finished work; engines that do not answer are not counted."""
        self.last_error = ""
        self.done = 0
        self._clock = clock or SystemClock()
        self._expected: float | None = None
        self._failing_since: float | None = None
        self._waiting_since: float | None = None
        self._error_count = metrics.TASK_ERRORS.labels(name)

    def heartbeat(self) -> None:
        """The task is alive and moves: called each time round, and inside long work."""
        self._expected = self._clock.monotonic()

    def rest(self, seconds: float) -> None:
        """The task pauses on purpose: the next sign of life is due after that."""
        self._expected = self._clock.monotonic() + seconds

    def succeeded(self) -> None:
        """A run ended without an error, whether or not there was work."""
        self.heartbeat()
        self._failing_since = self._waiting_since = None
        metrics.TASK_LAST_SUCCESS.labels(self.name).set(time.time())

    def processed(self, count: int = 1) -> None:
        """Work was finished: earlier errors are forgotten."""
        self.succeeded()
        self.done += count
        self.errors = 0

    def failed(self, error: BaseException) -> None:
        """A run failed and the task goes on."""
        self.heartbeat()
        now = self._clock.monotonic()
        self._error_count.inc()
        self.last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, Busy):
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
        else:
            self.errors += 1
            self._failing_since = now if self._failing_since is None else self._failing_since

    def failed_partly(self, error: BaseException) -> None:
        """A run failed for some of those it works for and went on for the others: seen, but no reason to restart."""
        self.heartbeat()
        self._error_count.inc()
        self.last_error = f"{type(error).__name__}: {error}"

    def silent_seconds(self) -> float:
        """How long the next sign of life is overdue; 0 for a task that has not started."""
        return 0.0 if self._expected is None else max(0.0, self._clock.monotonic() - self._expected)

    def is_silent(self) -> bool:
        """No sign of life within the limit: the task hangs."""
        return self.silent_seconds() >= self.limit_s

    def is_failing(self) -> bool:
        """Every run since longer than the limit has failed, and not because an engine did not answer."""
        return self._failing_since is not None and self._clock.monotonic() - self._failing_since >= self.limit_s

    def is_stuck(self) -> bool:
        """No progress within the limit, for whatever reason."""
        waiting = self._waiting_since is not None and self._clock.monotonic() - self._waiting_since >= self.limit_s
        return waiting or self.is_silent() or self.is_failing()


_running: list[TaskHealth] = []
_current: ContextVar[TaskHealth | None] = ContextVar("handbill_background_task", default=None)


def running() -> list[TaskHealth]:
    """The healths of all background tasks that run in this process."""
    return list(_running)


def unhealthy() -> list[str]:
    """Names of required tasks for which a restart of the process may help: they hang, or fail again and again."""
    return sorted({each.name for each in _running if each.required and (each.is_silent() or each.is_failing())})


def silent() -> list[str]:
    """Names of required tasks that hang."""
    return sorted({each.name for each in _running if each.required and each.is_silent()})


def register(health: TaskHealth) -> None:
    """Watch it from now on: its first sign of life is now, and its metrics are exported."""
    health.heartbeat()
    _running.append(health)
    name = health.name
    metrics.TASK_STUCK.labels(name).set_function(
        lambda: float(any(each.is_stuck() for each in _running if each.name == name))
    )


def unregister(health: TaskHealth) -> None:
    """The task was stopped on purpose: nobody expects a sign of life any more."""
    if health not in _running:
        return
    _running.remove(health)
    if not any(each.name == health.name for each in _running):
        metrics.TASK_STUCK.remove(health.name)
        metrics.TASK_LAST_SUCCESS.remove(health.name)


def enter(health: TaskHealth) -> None:
    """From here on, `heartbeat` in this asyncio task or thread, and in tasks started from it, is about `health`."""
    _current.set(health)


def heartbeat() -> None:
    """Report progress of the background task that the caller runs in, if it runs in one."""
    health = _current.get()
    if health is not None:
        health.heartbeat()


def report_success() -> None:
    """Report that a part of the work ended without an error, from a run that has no end of its own."""
    health = _current.get()
    if health is not None:
        health.succeeded()


def report_partial_failure(error: BaseException) -> None:
    """Inform the background task that the caller runs in, if it runs in one, that a part of its work failed."""
    health = _current.get()
    if health is not None:
        health.failed_partly(error)
