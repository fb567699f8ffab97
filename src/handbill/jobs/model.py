"""What a job is: its options as a producer gives them, the job as a worker sees it, and how it may end."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec

from handbill.jobs.payloads import fault_of, keep_bytes, loose_json, show_bytes
from handbill.jobs.wire import from_wire

State = Literal["waiting", "active", "delayed", "prioritized", "completed", "failed", "paused", "waiting-children"]
STATES: tuple[State, ...] = ("waiting", "prioritized", "delayed", "active", "completed", "failed", "waiting-children")


class Backoff(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long to wait before attempt n + 1.

    fixed: always `delay_ms`; exponential: doubling from `delay_ms`; jitter: anywhere between 0 and the exponential
    value; list: the n-th of `delays_ms`, the last one for all later attempts. `jitter` (0..1) is the part of a fixed
    or exponential delay that is left to chance.
    """

    kind: Literal["fixed", "exponential", "jitter", "list"] = "fixed"
    delay_ms: int = 0
    delays_ms: tuple[int, ...] = ()
    jitter: float = 0.0


class Keep(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many finished jobs stay readable, and for how long. Neither: all of them, for ever."""

    count: int | None = None
    age_s: int | None = None


class Deduplication(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job per `id`: for `ttl_ms`, or without it until that job has finished."""

    id: str
    ttl_ms: int | None = None
    extend: bool = False
    replace: bool = False
    keep_last_if_active: bool = False


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a producer may ask for. None means: as the queue's row in the table of defaults says."""

    job_id: str | None = None
    delay_ms: int = 0
    priority: int = 0
    lifo: bool = False
    attempts: int | None = None
    backoff: Backoff | None = None
    deduplication: Deduplication | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    timeout_ms: int | None = None
    keep_logs: int | None = None
    outbox_id: str | None = None


class NewJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job of a batch."""

    name: str
    data: Any
    opts: JobOptions = JobOptions()
    tenant_id: int | None = None


class Added(msgspec.Struct, frozen=True):
    """The answer to an add. Not `added`: a job of this id, or of this deduplication, was there; `id` is that one's."""

    id: str
    added: bool


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stands in Redis. `id` is ours (with ':'), `wire_id` is BullMQ's."""

    id: str
    wire_id: str
    queue: str
    name: str
    data: Any
    opts: dict[str, Any]
    timestamp: int = 0
    delay_ms: int = 0
    priority: int = 0
    attempts_made: int = 0
    """Attempts that have ended, stalls included."""
    attempts_started: int = 0
    stalls: int = 0
    processed_on: int | None = None
    finished_on: int | None = None
    progress: Any = None
    result: Any = None
    failed_reason: str | None = None
    traceback: tuple[str, ...] = ()
    deferred_failure: str | None = None
    """Set by a sweep: the job may not run again and the next worker only fails it."""
    scheduler: str | None = None
    deduplication_id: str | None = None
    worker: str | None = None
    unreadable: str | None = None
    """Why data or options cannot be read. The job fails without a handler; `data` keeps the bytes (see payloads.py)."""

    @property
    def attempts(self) -> int:
        """Attempts allowed in all; at least one."""
        return max(whole(self.opts.get("attempts"), 1), 1)

    @property
    def tenant_id(self) -> int | None:
        found = self.opts.get("tenant")
        return found if isinstance(found, int) else None

    @property
    def outbox_id(self) -> str | None:
        found = self.opts.get("outbox")
        return found if isinstance(found, str) else None

    @property
    def timeout_ms(self) -> int | None:
        found = whole(self.opts.get("timeout"), 0)
        return found if found > 0 else None


class Counts(msgspec.Struct, frozen=True):
    """How many jobs stand in each state."""

    waiting: int
    prioritized: int
    delayed: int
    active: int
    completed: int
    failed: int
    waiting_children: int
    paused: bool

    @property
    def pending(self) -> int:
        return self.waiting + self.prioritized + self.delayed


class Minutes(msgspec.Struct, frozen=True):
    """Finished jobs: in all, and per minute with the newest first."""

    total: int
    per_minute: tuple[int, ...]


class CpuDied(Exception):
    """The process ended under the call: out of memory, a crash in native code, or a kill from outside."""


class CpuLimitExceeded(Exception):
    """A call in a process of its own used more CPU time, wall time or memory than it may; the process was ended."""


class Unrecoverable(Exception):
    """Raised by a handler: trying again cannot help; the job fails now with its attempts unused."""


class RetryLater(Exception):
    """Raised by a handler: not now. The job is delayed without using an attempt."""

    def __init__(self, delay_ms: int, reason: str = "") -> None:
        super().__init__(reason or f"again in {delay_ms} ms")
        self.delay_ms = delay_ms


class _RequestPayload(msgspec.Struct, frozen=True):
    request_id: UUID


def request_of(job: Job) -> tuple[int, UUID]:
    """The tenant and the id of the request that a job of the queue `requests` names; all else is in its row.

    Raises Unrecoverable where there are none.
    """
    try:
        payload = msgspec.convert(job.data, _RequestPayload)
    except msgspec.ValidationError as error:
        raise Unrecoverable(f"the payload cannot be read: {error}") from None
    if job.tenant_id is None:
        raise Unrecoverable("a request belongs to a tenant")
    return job.tenant_id, payload.request_id


def whole(value: Any, default: int) -> int:
    """A number from another program's JSON as an int; anything that is none becomes the default."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | bytes):
        return default
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        return default


def read_job(queue: str, wire_id: str, fields: dict[bytes, bytes]) -> Job:
    """A job from its Redis hash. Never fails on what another program wrote: odd values become defaults.

    Data or options that cannot be read at all make the job `unreadable`.
    """
    raw, unreadable = fields.get(b"data"), _unreadable(fields)
    opts = loose_json(fields.get(b"opts"), {})
    trace = loose_json(fields.get(b"stacktrace"), [])

    def text(name: bytes) -> str | None:
        raw = fields.get(name)
        return None if raw is None else raw.decode(errors="replace")

    def number(name: bytes) -> int | None:
        raw = fields.get(name)
        return None if raw is None else whole(raw, 0)

    return Job(
        id=from_wire(wire_id),
        wire_id=wire_id,
        queue=queue,
        name=text(b"name") or "",
        data=loose_json(raw) if raw is None or unreadable is None or fault_of(raw) is None else keep_bytes(raw),
        opts=opts if isinstance(opts, dict) else {},
        timestamp=number(b"timestamp") or 0,
        delay_ms=number(b"delay") or 0,
        priority=number(b"priority") or 0,
        attempts_made=number(b"atm") or number(b"attemptsMade") or 0,
        attempts_started=number(b"ats") or 0,
        stalls=number(b"stc") or 0,
        processed_on=number(b"processedOn"),
        finished_on=number(b"finishedOn"),
        progress=loose_json(fields.get(b"progress")),
        result=loose_json(fields.get(b"returnvalue")),
        failed_reason=text(b"failedReason"),
        traceback=tuple(str(line) for line in trace) if isinstance(trace, list) else (),
        deferred_failure=text(b"defa"),
        scheduler=text(b"rjk"),
        deduplication_id=text(b"deid"),
        worker=text(b"pb"),
        unreadable=unreadable,
    )


def _unreadable(fields: dict[bytes, bytes]) -> str | None:
    if (fault := fault_of(fields.get(b"data"))) is not None:
        return f"The job's data cannot be read ({fault})."
    opts = fields.get(b"opts")
    if opts is None or (fault := fault_of(opts)) is None:
        return None
    return f"The job's options cannot be read ({fault}); they begin with {show_bytes(opts)}"
