"""Jobs of the queue `requests`. Each names its request; all else is read from PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from handbill.jobs.model import Job, RetryLater, request_of
from handbill.tenants.service import ERASE, EXPORT, QUEUE, Erasures, Exports

__all__ = ["JOBS", "QUEUE", "PersonTasks"]

JOBS = {
    ERASE: "Remove a person from every store, one step for each package.",
    EXPORT: "Collect what is kept about a person, and keep it for a day.",
}
AGAIN_MS = 30_000
"""Between two runs of an erasure that waits for an engine."""

Handler = Callable[[Job, Any], Awaitable[Any]]


class PersonTasks:
    def __init__(self, erasures: Erasures, exports: Exports, *, again_ms: int = AGAIN_MS) -> None:
        self._erasures = erasures
        self._exports = exports
        self._again_ms = again_ms

    def handlers(self) -> Mapping[str, Handler]:
        """By the job's name."""
        return {ERASE: self.erase, EXPORT: self.export}

    async def erase(self, job: Job, ctx: Any) -> str:
        """Raises RetryLater while an engine is away."""
        tenant_id, request_id = request_of(job)
        erasure = await self._erasures.run(tenant_id, request_id)
        if erasure.status == "running":
            raise RetryLater(self._again_ms, f"the erasure waits: {erasure.error}")
        return erasure.status

    async def export(self, job: Job, ctx: Any) -> None:
        tenant_id, request_id = request_of(job)
        await self._exports.run(tenant_id, request_id)

    async def failed(self, job: Job, reason: str, trace: str) -> None:
        """A job that failed for good ends its request, so that nobody waits for it."""
        tenant_id, request_id = request_of(job)
        if job.name == ERASE:
            await self._erasures.fail(tenant_id, request_id)
        elif job.name == EXPORT:
            await self._exports.fail(tenant_id, request_id)
