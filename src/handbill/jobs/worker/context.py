"""What a handler is given beside the job, and how handlers are declared."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from handbill.jobs.model import Job
from handbill.jobs.queue import Queue


class JobContext:
    """One attempt at one job: whose it is, how often it was tried, until when, and how to tell how far it got."""

    __slots__ = ("_queue", "attempt", "deadline", "job_id", "queue", "tenant_id", "worker")

    def __init__(self, queue: Queue, job: Job, worker: str) -> None:
        self._queue = queue
        self.queue = queue.name
        self.job_id = job.id
        self.tenant_id = job.tenant_id
        self.attempt = job.attempts_made + 1
        timeout = job.timeout_ms
        self.deadline: float | None = None if timeout is None else time.monotonic() + timeout / 1000
        """By the monotonic clock; None when the job has no timeout."""
        self.worker = worker

    def remaining(self) -> float | None:
        """Seconds until the deadline, not below 0; None without one."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)

    async def progress(self, value: Any) -> None:
        """A number or any JSON value; Bull Board and `jobs show` display it."""
        await self._queue.progress(self.job_id, value)

    async def log(self, line: str) -> None:
        """A line kept with the job."""
        await self._queue.log(self.job_id, line)


Handler = Callable[[Job, JobContext], Awaitable[Any]]


class CpuTask(msgspec.Struct, frozen=True):
    """The plain facts of one attempt, for a handler that runs in another process."""

    queue: str
    job_id: str
    name: str
    data: Any
    tenant_id: int | None
    attempt: int


class CpuHandler(msgspec.Struct, frozen=True):
    """A handler declared CPU-bound: a plain module-level function of a CpuTask, run in a process of its own."""

    function: Callable[[CpuTask], Any]


def cpu_bound(function: Callable[[CpuTask], Any]) -> CpuHandler:
    """Declare it: `handlers={"parse": cpu_bound(parse)}`."""
    return CpuHandler(function)


AnyHandler = Handler | CpuHandler
OnFailed = Callable[[Job, str, str], Awaitable[None] | None]
"""Called after a job has failed for good: the job, the reason, the last traceback."""
