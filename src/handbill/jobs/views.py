"""Jobs and queues as a person or a program reads them over the API and on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.jobs.model import Counts, Job
from handbill.jobs.payloads import loose_json, show_value
from handbill.jobs.records import Recorded
from handbill.kit import pages
from handbill.kit.clock import from_ms
from handbill.kit.errors import Fault, Invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class QueueView(msgspec.Struct, frozen=True):
    """One queue: due rows in the outbox and the age of the oldest, the jobs in Redis by state, open dead letters."""

    queue: str
    pending: int
    oldest_s: float
    jobs: Counts
    dead: int


class TenantQueue(msgspec.Struct, frozen=True):
    """One tenant's pending work in one queue; `oldest_s` is how long its first job has been due."""

    queue: str
    pending: int
    """Jobs that are recorded and not yet in the queue."""
    oldest_s: float
    """For how many seconds the first of them has been due."""


class JobView(msgspec.Struct, frozen=True):
    """One job. `pending` = recorded in the outbox and not yet in its queue."""

    id: str
    """The job's id in its queue."""
    queue: str
    name: str
    """The name of the job: what kind of work it is."""
    state: str
    """Where the job is; `pending`: recorded and not yet in its queue."""
    tenant_id: int | None
    data: Any
    """What the job was given to work on."""
    attempts_made: int
    """How often it was tried so far."""
    created_at: datetime
    due_at: datetime | None = None
    """Before this time it is not begun; null: at once."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    progress: Any = None
    """How far it is, in the job's own terms."""
    result: Any = None
    """What it returned; null while it has not ended."""
    failed_reason: str | None = None
    """The message of its last error."""
    traceback: list[str] = []
    """Tracebacks of its failed attempts."""
    logs: list[str] = []
    """The last lines that it logged."""


def from_job(job: Job, state: str, logs: list[str] | None = None) -> JobView:
    return JobView(
        id=job.id,
        queue=job.queue,
        name=job.name,
        state=state,
        tenant_id=job.tenant_id,
        data=show_value(job.data),
        attempts_made=job.attempts_made,
        created_at=_moment(job.timestamp),
        due_at=_moment(job.timestamp + job.delay_ms) if job.delay_ms else None,
        started_at=None if job.processed_on is None else _moment(job.processed_on),
        finished_at=None if job.finished_on is None else _moment(job.finished_on),
        progress=job.progress,
        result=job.result,
        failed_reason=job.failed_reason,
        traceback=list(job.traceback),
        logs=logs or [],
    )


def from_row(row: Recorded) -> JobView:
    return JobView(
        id=row.job_id,
        queue=row.queue,
        name=row.name,
        state=row.status,
        tenant_id=row.tenant_id,
        data=show_value(loose_json(row.data.encode())),
        attempts_made=0,
        created_at=row.created_at,
        due_at=row.due_at,
    )


def _moment(ms: int) -> datetime:
    """A time that any program may have written, kept within what a calendar holds."""
    return from_ms(min(max(ms, 0), 253_402_300_799_000))


def microseconds(moment: datetime) -> int:
    """Since 1970, exactly: a cursor must name the very row it stopped at."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def row_position(cursor: str) -> tuple[datetime, UUID]:
    micros, text = pages.decode(cursor, [int, str])
    try:
        return _EPOCH + timedelta(microseconds=int(micros)), UUID(str(text))
    except (ValueError, OverflowError):
        raise _refused() from None


def offset(cursor: str) -> int:
    (start,) = pages.decode(cursor, [int])
    if not 0 <= int(start) < 2**31:
        raise _refused()
    return int(start)


def _refused() -> Invalid:
    return Invalid(
        "The cursor is not one of ours; start again without it.",
        code="BAD_CURSOR",
        faults=[Fault("cursor", "not a cursor of this list")],
    )
