"""A tenant's own jobs and dead letters. What concerns a whole queue (pause, drain) is the operator's command line.

The caller's principal belongs to a higher room; all that is asked of it here is a tenant and a name.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Protocol
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, PathParameter, QueryParameter, SkipValidation
from msgspec import Meta

from handbill.jobs import examples
from handbill.jobs.records import DeadLetter, Filter
from handbill.jobs.service import JobsService
from handbill.jobs.views import JobView, TenantQueue
from handbill.kit.moments import moment_faults
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page


class Caller(Protocol):
    """Who asks: one tenant, and a name for the audit log."""

    tenant_id: int
    actor: str


Jobs = NamedDependency[SkipValidation[JobsService]]
Who = NamedDependency[SkipValidation[Caller]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
QueueName = Annotated[
    str, PathParameter(min_length=1, max_length=100, pattern=r"^[^:{}]+$", description="The name of the queue.")
]
JobId = Annotated[str, PathParameter(min_length=1, max_length=500, description="The job's id.")]
JobState = Annotated[
    Literal["pending", "waiting", "prioritized", "delayed", "active", "completed", "failed", "waiting-children"],
    QueryParameter(name="state", description="Where the jobs are; `pending` = still in the outbox."),
]
Text = Annotated[str, Meta(min_length=1, max_length=200)]


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters; all conditions hold together. At least one is needed, and `dry_run` only counts."""

    ids: Annotated[list[UUID], Meta(min_length=1, max_length=1_000)] | None = None
    """Only those with one of these ids."""
    queue: Text | None = None
    """Only jobs of this queue."""
    name: Text | None = None
    """Only jobs of this name."""
    reason: Text | None = None
    """Only those with this in their reason."""
    failed_before: datetime | None = None
    """Only those that failed before this time."""
    everything: bool = False
    """All of yours; needed where no other condition is given."""
    dry_run: bool = True
    """Only count them and change nothing, which is the default."""

    def __post_init__(self) -> None:
        if not (self.everything or self.ids or self.queue or self.name or self.reason or self.failed_before):
            raise ValueError("name at least one condition, or set `everything`")
        for fault in moment_faults("failed_before", self.failed_before):
            raise ValueError(f"{fault.field} {fault.reason}")

    def filter(self, tenant_id: int, status: str | None) -> Filter:
        return Filter(
            tenant_id=tenant_id,
            queue=self.queue,
            name=self.name,
            status=status,
            reason=self.reason,
            failed_before=self.failed_before,
            ids=None if self.ids is None else tuple(self.ids),
        )


class Outcome(msgspec.Struct, frozen=True):
    """How many dead letters were found; `done` says whether anything was changed."""

    count: int
    """How many dead letters fit the conditions."""
    done: bool
    """Whether they were changed; false after a dry run."""


class JobRoutes(Controller):
    path = "/admin/jobs"
    tags = ("Jobs",)

    @get(operation_id="listQueues", opt={"scope": "jobs:read", "example": examples.QUEUES})
    async def queues(self, jobs: Jobs, principal: Who) -> list[TenantQueue]:
        """What you have waiting, by queue."""
        return await jobs.tenant_overview(principal.tenant_id)

    @get("/{queue:str}", operation_id="listJobs", opt={"scope": "jobs:read", "example": examples.page(examples.JOB)})
    async def listed(
        self,
        jobs: Jobs,
        principal: Who,
        queue: QueueName,
        in_state: JobState = "pending",
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Page[JobView]:
        """Your jobs of one state in one queue. A page may be short and still have a next one."""
        return await jobs.list_jobs(queue, in_state, principal.tenant_id, cursor, limit)

    @get("/{queue:str}/{job_id:str}", operation_id="getJob", opt={"scope": "jobs:read", "example": examples.JOB})
    async def read(self, jobs: Jobs, principal: Who, queue: QueueName, job_id: JobId) -> JobView:
        """One job with its result, its traceback and its last log lines."""
        return await jobs.job(queue, job_id, principal.tenant_id)

    @post(
        "/{queue:str}/{job_id:str}/retry",
        operation_id="retryJob",
        status_code=200,
        opt={"scope": "jobs:write", "example": examples.JOB},
    )
    async def retry(self, jobs: Jobs, principal: Who, queue: QueueName, job_id: JobId) -> JobView:
        """Run a failed or completed job again, with all its attempts."""
        return await jobs.retry(queue, job_id, principal.tenant_id, actor=principal.actor)

    @post(
        "/{queue:str}/{job_id:str}/promote",
        operation_id="promoteJob",
        status_code=200,
        opt={"scope": "jobs:write", "example": examples.JOB},
    )
    async def promote(self, jobs: Jobs, principal: Who, queue: QueueName, job_id: JobId) -> JobView:
        """Run a delayed job now."""
        return await jobs.promote(queue, job_id, principal.tenant_id, actor=principal.actor)

    @delete("/{queue:str}/{job_id:str}", operation_id="removeJob", opt={"scope": "jobs:write"})
    async def remove(self, jobs: Jobs, principal: Who, queue: QueueName, job_id: JobId) -> None:
        """Remove a job that is not running."""
        await jobs.remove(queue, job_id, principal.tenant_id, actor=principal.actor)


class DeadLetterRoutes(Controller):
    path = "/admin/dead-letters"
    tags = ("Dead letters",)

    @get(operation_id="listDeadLetters", opt={"scope": "jobs:read", "example": examples.page(examples.DEAD_LETTER)})
    async def listed(
        self,
        jobs: Jobs,
        principal: Who,
        queue: Annotated[str | None, QueryParameter(max_length=100, description="Only of this queue.")] = None,
        name: Annotated[str | None, QueryParameter(max_length=200, description="Only jobs of this name.")] = None,
        status: Annotated[Literal["dead", "redriven"] | None, QueryParameter(description="Only in this state.")] = None,
        reason: Annotated[
            str | None, QueryParameter(max_length=200, description="Only with this in the reason.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Page[DeadLetter]:
        """Jobs that failed for good, newest first."""
        wanted = Filter(tenant_id=principal.tenant_id, queue=queue, name=name, status=status, reason=reason)
        return await jobs.dead.page(wanted, cursor, limit)

    @get("/{letter_id:uuid}", operation_id="getDeadLetter", opt={"scope": "jobs:read", "example": examples.DEAD_LETTER})
    async def read(self, jobs: Jobs, principal: Who, letter_id: FromPath[UUID]) -> DeadLetter:
        """One dead letter with its data and traceback."""
        return await jobs.dead.get(letter_id, principal.tenant_id)

    @post(
        "/redrive",
        operation_id="redriveDeadLetters",
        status_code=200,
        opt={"scope": "jobs:write", "example": examples.OUTCOME, "body_example": examples.SELECTION},
    )
    async def redrive(self, jobs: Jobs, principal: Who, data: JSONBody[Selection]) -> Outcome:
        """Give dead letters back to their queues. `dry_run` (the default) only counts them."""
        wanted = data.filter(principal.tenant_id, "dead")
        if data.dry_run:
            return Outcome(await jobs.dead.count(wanted), done=False)
        return Outcome(await jobs.dead.redrive(wanted, actor=principal.actor), done=True)

    @post(
        "/purge",
        operation_id="purgeDeadLetters",
        status_code=200,
        opt={"scope": "jobs:write", "example": examples.OUTCOME, "body_example": examples.SELECTION},
    )
    async def purge(self, jobs: Jobs, principal: Who, data: JSONBody[Selection]) -> Outcome:
        """Delete dead letters for good. `dry_run` (the default) only counts them."""
        wanted = data.filter(principal.tenant_id, None)
        if data.dry_run:
            return Outcome(await jobs.dead.count(wanted), done=False)
        return Outcome(await jobs.dead.purge(wanted, actor=principal.actor), done=True)


handlers = [JobRoutes, DeadLetterRoutes]
