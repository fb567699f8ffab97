"""Options on the wire: BullMQ's names and short forms, with the queue's defaults filled in, and back again."""

from __future__ import annotations

from typing import Any

from handbill.jobs import backoff
from handbill.jobs.defaults import QueueDefaults
from handbill.jobs.model import Deduplication, JobOptions, Keep, whole
from handbill.kit.errors import Fault, Invalid

PRIORITY_LIMIT = 2_097_152
NAME_LIMIT = 200
ID_LIMIT = 500


def encode(opts: JobOptions, defaults: QueueDefaults, tenant_id: int | None) -> dict[str, Any]:
    """The `opts` of a job as BullMQ stores them; `tenant`, `outbox` and `timeout` are ours."""
    found: dict[str, Any] = {
        "attempts": defaults.attempts if opts.attempts is None else opts.attempts,
        "backoff": backoff.to_wire(opts.backoff or defaults.backoff),
        "removeOnComplete": _keep(opts.keep_completed or defaults.keep_completed),
        "removeOnFail": _keep(opts.keep_failed or defaults.keep_failed),
        "delay": opts.delay_ms,
    }
    if opts.job_id is not None:
        found["jobId"] = opts.job_id
    if opts.priority:
        found["priority"] = opts.priority
    if opts.lifo:
        found["lifo"] = True
    if opts.keep_logs is not None:
        found["kl"] = opts.keep_logs
    if opts.deduplication is not None:
        found["de"] = _deduplication(opts.deduplication)
    if timeout := opts.timeout_ms or defaults.timeout_ms:
        found["timeout"] = timeout
    if tenant_id is not None:
        found["tenant"] = tenant_id
    if opts.outbox_id is not None:
        found["outbox"] = opts.outbox_id
    return found


def _keep(keep: Keep) -> Any:
    if keep.count is None and keep.age_s is None:
        return False
    found = {}
    if keep.count is not None:
        found["count"] = keep.count
    if keep.age_s is not None:
        found["age"] = keep.age_s
    return found


def keep_jobs(value: Any, fallback: Keep) -> dict[str, int]:
    """What moveToFinished wants to hear, from a job's removeOnComplete / removeOnFail as any program wrote it."""
    if value is None:
        value = _keep(fallback)
    if value is True:
        return {"count": 0}
    if value is False:
        return {"count": -1}
    if isinstance(value, int | float):
        return {"count": int(value)}
    if isinstance(value, dict):
        found = {name: whole(value[name], -1) for name in ("count", "age", "limit") if name in value}
        return found or {"count": -1}
    return {"count": -1}


def _deduplication(wanted: Deduplication) -> dict[str, Any]:
    found: dict[str, Any] = {"id": wanted.id}
    if wanted.ttl_ms is not None:
        found["ttl"] = wanted.ttl_ms
    if wanted.extend:
        found["extend"] = True
    if wanted.replace:
        found["replace"] = True
    if wanted.keep_last_if_active:
        found["keepLastIfActive"] = True
    return found


def check(name: str, opts: JobOptions) -> None:
    """Refuse what BullMQ would refuse or quietly misread. All faults at once."""
    faults: list[Fault] = []
    if not name or len(name) > NAME_LIMIT:
        faults.append(Fault("name", f"1 to {NAME_LIMIT} characters"))
    if opts.job_id is not None:
        if not opts.job_id or len(opts.job_id) > ID_LIMIT:
            faults.append(Fault("job_id", f"1 to {ID_LIMIT} characters"))
        elif opts.job_id.isdigit():
            faults.append(Fault("job_id", "digits alone are reserved for the queue's own counter"))
    if opts.delay_ms < 0:
        faults.append(Fault("delay_ms", "not below 0"))
    if not 0 <= opts.priority <= PRIORITY_LIMIT:
        faults.append(Fault("priority", f"0 to {PRIORITY_LIMIT}"))
    if opts.attempts is not None and opts.attempts < 1:
        faults.append(Fault("attempts", "at least 1"))
    if opts.deduplication is not None and not opts.deduplication.id:
        faults.append(Fault("deduplication.id", "not empty"))
    if faults:
        raise Invalid("the job was not added: its options are not valid", code="JOB_INVALID", faults=faults)
