"""From a failed job, or from what is left of one, to a dead letter."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.jobs import backoff
from handbill.jobs.model import Job, JobOptions, Keep, whole
from handbill.jobs.options import PRIORITY_LIMIT, check
from handbill.jobs.records import NewDeadLetter, Relayed, stored_options
from handbill.kit.clock import from_ms
from handbill.kit.errors import Invalid

REASON_LIMIT = 2_000
TRACEBACK_LIMIT = 20_000
MOST = 2**31 - 1
LAST_MS = 253_402_300_799_000


def from_job(id: UUID, job: Job, failed_ms: int, source: str) -> NewDeadLetter:
    """The whole story: the job is still in Redis."""
    return NewDeadLetter(
        id=id,
        tenant_id=tenant_of(job),
        queue=job.queue,
        job_id=clean(job.id, 500),
        name=clean(job.name, 200) or "unknown",
        effect_id=effect_of(job.outbox_id, id),
        data=storable(job.data),
        opts=stored_options(options_of(job.opts)).decode(),
        attempts=min(max(job.attempts_made, 0), MOST),
        reason=clean(job.failed_reason or "unknown", REASON_LIMIT),
        traceback=clean("\n".join(job.traceback), TRACEBACK_LIMIT),
        source=source,
        queued_at=moment(job.timestamp) if job.timestamp > 0 else None,
        failed_at=moment(failed_ms),
    )


def from_row(id: UUID, row: Relayed, reason: str, failed_ms: int) -> NewDeadLetter:
    """The job is gone from Redis, but the outbox still has its data."""
    return NewDeadLetter(
        id=id,
        tenant_id=row.tenant_id,
        queue=row.queue,
        job_id=row.job_id,
        name=row.name,
        effect_id=row.effect_id,
        data=row.data,
        opts=row.opts,
        attempts=0,
        reason=clean(reason or "unknown", REASON_LIMIT),
        traceback="",
        source="event",
        queued_at=row.created_at,
        failed_at=moment(failed_ms),
    )


def from_event(id: UUID, queue: str, job_id: str, reason: str, failed_ms: int) -> NewDeadLetter:
    """All that is left of a job that another program added and removed: its id, and why it failed."""
    return NewDeadLetter(
        id=id,
        tenant_id=None,
        queue=queue,
        job_id=clean(job_id, 500),
        name="unknown",
        effect_id=id,
        data="null",
        opts="{}",
        attempts=0,
        reason=clean(reason or "unknown", REASON_LIMIT),
        traceback="",
        source="event",
        queued_at=None,
        failed_at=moment(failed_ms),
    )


def tenant_of(job: Job) -> int | None:
    """The tenant as the job says; a number that cannot be one is no tenant."""
    number = job.tenant_id
    return number if number is not None and 0 < number <= MOST else None


def moment(ms: int) -> datetime:
    """A time that another program wrote, kept within what a calendar holds."""
    return from_ms(min(max(ms, 0), LAST_MS))


def job_id_again(job_id: str) -> str | None:
    """The id for a second life: the same, except where the number was the queue's own to give or a scheduler's."""
    return None if job_id.isdigit() or job_id.startswith("repeat:") else job_id


def options_again(stored: Any) -> JobOptions:
    """Options for a second life. Delay and deduplication belonged to the first; what no queue takes is left out."""
    try:
        found = msgspec.convert(stored, JobOptions)
        found = msgspec.structs.replace(found, job_id=None, delay_ms=0, deduplication=None)
        check("again", found)
    except (msgspec.ValidationError, Invalid):
        return JobOptions()
    return found


def options_of(wire: dict[str, Any]) -> JobOptions:
    """What a job's options on the wire, written by any program, mean in our words."""
    attempts, timeout = whole(wire.get("attempts"), 0), whole(wire.get("timeout"), 0)
    return JobOptions(
        priority=min(max(whole(wire.get("priority"), 0), 0), PRIORITY_LIMIT),
        attempts=min(attempts, MOST) if attempts > 0 else None,
        backoff=backoff.from_wire(wire.get("backoff")),
        keep_completed=_keep(wire.get("removeOnComplete")),
        keep_failed=_keep(wire.get("removeOnFail")),
        timeout_ms=min(timeout, MOST) if timeout > 0 else None,
    )


def _keep(value: Any) -> Keep | None:
    if value is None or value is True or value is False:
        return Keep(count=0) if value is True else None
    if isinstance(value, dict):
        count, age = whole(value.get("count"), -1), whole(value.get("age"), -1)
        return Keep(count=count if count >= 0 else None, age_s=age if age >= 0 else None)
    return Keep(count=max(whole(value, 0), 0))


def effect_of(outbox_id: str | None, otherwise: UUID) -> UUID:
    """The effect's identity as the job carries it; a job that never saw the outbox gets one now."""
    try:
        return UUID(outbox_id) if outbox_id else otherwise
    except ValueError:
        return otherwise


def clean(text: str, limit: int) -> str:
    """Text that PostgreSQL takes: no NUL, no half of a surrogate pair, not endless."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()[:limit]


def storable(value: Any) -> str:
    """JSON that jsonb takes; what other programs put into strings is cleaned of what it does not."""
    return msgspec.json.encode(_scrubbed(value)).decode()


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value, len(value)) if "\x00" in value or not value.isprintable() else value
    if isinstance(value, list):
        return [_scrubbed(item) for item in value]
    if isinstance(value, dict):
        return {_scrubbed(str(key)): _scrubbed(item) for key, item in value.items()}
    return value
