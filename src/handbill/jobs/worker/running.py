"""One job under a handler: how it is stopped from outside, and how it ended."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from typing import Any, Literal

import msgspec

from handbill.jobs import backoff
from handbill.jobs.model import Job, RetryLater, Unrecoverable
from handbill.jobs.worker.context import AnyHandler, CpuHandler, CpuTask, JobContext
from handbill.jobs.worker.pool import CpuPool
from handbill.kit.errors import Busy
from handbill.kit.telemetry import tracing

Why = Literal["timeout", "aborted", "lost", "stopping"]
REASON_LIMIT = 4_000
TRACE_LIMIT = 20_000
BUSY_MS = 5_000
"""How long a job waits when its handler met a busy engine that named no time."""


class Outcome(msgspec.Struct, frozen=True):
    """completed: `value` is JSON. failed: for good. again: in `delay_ms`; `free` of charge or not. back: as unclaimed.
    gone: another worker has it, nothing is written."""

    kind: Literal["completed", "failed", "again", "back", "gone"]
    value: bytes = b"null"
    reason: str = ""
    trace: str = ""
    delay_ms: int = 0
    free: bool = False


class Running:
    """A claimed job in its lane. `interrupt` may be called at any time from the loop."""

    def __init__(self, job: Job, token: str, lane: asyncio.Task[Any]) -> None:
        self.job = job
        self.token = token
        self.why: Why | None = None
        self.note = ""
        self._lane = lane
        self._inside = False

    def interrupt(self, why: Why, note: str = "") -> None:
        """Stop the handler. Only while it runs: the bookkeeping around it is never cut."""
        if self.why is None:
            self.why, self.note = why, note
            if self._inside:
                self._lane.cancel()

    async def run(self, handler: AnyHandler | None, context: JobContext, pool: CpuPool) -> Outcome:
        """The handler's outcome, whatever it does. Only the death of the process gets through."""
        job = self.job
        if job.deferred_failure is not None:
            return Outcome("failed", reason=job.deferred_failure)
        if job.unreadable is not None:
            return Outcome("failed", reason=job.unreadable)
        if handler is None:
            return Outcome("failed", reason=f"this worker has no handler for jobs named {job.name!r}")
        timer: asyncio.TimerHandle | None = None
        if (limit := job.timeout_ms) is not None:
            note = f"timed out after {limit} ms"
            timer = asyncio.get_running_loop().call_later(limit / 1000, self.interrupt, "timeout", note)
        try:
            if self.why is not None:
                return self._interrupted("")
            self._inside = True
            try:
                with tracing.span("job", {"queue": job.queue, "job": job.name, "attempt": context.attempt}):
                    value = await _call(handler, job, context, pool)
            finally:
                self._inside = False
            return Outcome("completed", value=msgspec.json.encode(value))
        except asyncio.CancelledError as error:
            if self.why is None:
                return self._failed(error, "the handler was cancelled from inside")
            return self._interrupted(_trace(error))
        except RetryLater as error:
            return Outcome("again", reason=str(error), delay_ms=max(error.delay_ms, 1), free=True)
        except Busy as error:
            wait = int((error.retry_after or BUSY_MS / 1000) * 1000)
            return Outcome("again", reason=error.detail, delay_ms=max(wait, 1), free=True)
        except Exception as error:  # noqa: BLE001 (whatever a handler raises is the job's outcome, and is recorded)
            return self._failed(error, str(error) or type(error).__name__)
        finally:
            if timer is not None:
                timer.cancel()
            while self._lane.cancelling():  # the request has been heard, or came too late: the lane itself lives on
                self._lane.uncancel()

    def _interrupted(self, trace: str) -> Outcome:
        if self.why == "stopping":
            return Outcome("back")
        if self.why == "lost":
            return Outcome("gone")
        if self.why == "aborted":
            return Outcome("failed", reason=self.note, trace=trace)
        return self._retry(self.note, trace)

    def _failed(self, error: BaseException, reason: str) -> Outcome:
        if isinstance(error, Unrecoverable):
            return Outcome("failed", reason=reason[:REASON_LIMIT], trace=_trace(error))
        return self._retry(reason[:REASON_LIMIT], _trace(error))

    def _retry(self, reason: str, trace: str) -> Outcome:
        attempt = self.job.attempts_made + 1
        if attempt >= self.job.attempts:
            return Outcome("failed", reason=reason, trace=trace)
        policy = backoff.from_wire(self.job.opts.get("backoff"))
        return Outcome("again", reason=reason, trace=trace, delay_ms=backoff.delay_ms(policy, attempt))


async def _call(handler: AnyHandler, job: Job, context: JobContext, pool: CpuPool) -> Any:
    if isinstance(handler, CpuHandler):
        task = CpuTask(job.queue, job.id, job.name, job.data, job.tenant_id, context.attempt)
        return await pool.run(handler.function, task)
    found: Any = handler(job, context)
    return await found if inspect.isawaitable(found) else found


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACE_LIMIT:]
