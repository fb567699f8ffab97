"""`handbill jobs` and `handbill dead`: the operator's hands on queues, jobs and dead letters, across all tenants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer
from msgspec.structs import replace

from handbill.cli.frame import JsonFlag, show, table, with_house
from handbill.jobs.service import Filter
from handbill.kit.errors import Invalid, NotFound

if TYPE_CHECKING:
    from handbill.wiring.house import House

T = TypeVar("T")

ACTOR = "cli"

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Only this tenant: its slug or number.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Rows at most.")]

jobs = typer.Typer(no_args_is_help=True, help="Look into queues and jobs; retry, pause, drain.")
dead = typer.Typer(no_args_is_help=True, help="Jobs that failed for good: list, redrive, purge.")


def mount(app: typer.Typer) -> None:
    app.add_typer(jobs, name="jobs")
    app.add_typer(dead, name="dead")


def _for_tenant(name: str | None, verb: Callable[[House, int | None], Awaitable[T]]) -> T:
    """Do something for one tenant, given its slug or number, or without a name for all of them."""

    async def work(house: House) -> T:
        return await verb(house, None if name is None else await _tenant_id(house, name))

    return with_house(work)


async def _tenant_id(house: House, name: str) -> int:
    try:
        return (await house.tenants.find_tenant(name)).tenant_id
    except NotFound:
        if name.isdigit() and 0 < int(name) < 2**31:
            return int(name)  # another program may have put a number into its job that is no tenant's
        raise


@jobs.command("ls")
def jobs_ls(
    queue: Annotated[str | None, typer.Argument(help="List this queue's jobs; without it, all queues.")] = None,
    state: Annotated[str, typer.Option(help="pending (in the outbox), waiting, active, failed...")] = "pending",
    tenant: TenantOption = None,
    limit: LimitOption = 50,
    as_json: JsonFlag = False,
) -> None:
    """All queues with their counts, or the jobs of one."""
    if queue is None:
        found = with_house(lambda house: house.jobs.overview())
        columns = ("queue", "pending", "oldest s", "waiting", "active", "delayed", "failed", "dead", "paused")
        rows = [
            (
                one.queue,
                one.pending,
                f"{one.oldest_s:.0f}",
                one.jobs.waiting + one.jobs.prioritized,
                one.jobs.active,
                one.jobs.delayed,
                one.jobs.failed,
                one.dead,
                "yes" if one.jobs.paused else "",
            )
            for one in found
        ]
        show(found, as_json, lambda: table(columns, rows))
        return
    page = _for_tenant(tenant, lambda house, tenant_id: house.jobs.list_jobs(queue, state, tenant_id, None, limit))
    lines = [(one.id, one.name, one.state, one.tenant_id, one.attempts_made, one.created_at) for one in page.items]
    show(page.items, as_json, lambda: table(("id", "name", "state", "tenant", "attempts", "created"), lines))


@jobs.command("show")
def jobs_show(queue: QueueArgument, job: JobArgument, as_json: JsonFlag = False) -> None:
    """Everything about one job: data, result, traceback, log lines."""
    found = with_house(lambda house: house.jobs.job(queue, job, None))
    fields = [
        (name, getattr(found, name)) for name in found.__struct_fields__ if getattr(found, name) not in (None, [])
    ]
    show(found, as_json, lambda: table(("field", "value"), fields))


@jobs.command("retry")
def jobs_retry(queue: QueueArgument, job: JobArgument, as_json: JsonFlag = False) -> None:
    """Run a failed or completed job again, with all its attempts."""
    found = with_house(lambda house: house.jobs.retry(queue, job, None, actor=ACTOR))
    show(found, as_json, lambda: f"{job} is {found.state} again.")


@jobs.command("promote")
def jobs_promote(queue: QueueArgument, job: JobArgument, as_json: JsonFlag = False) -> None:
    """Run a delayed job now."""
    found = with_house(lambda house: house.jobs.promote(queue, job, None, actor=ACTOR))
    show(found, as_json, lambda: f"{job} waits no longer.")


@jobs.command("remove")
def jobs_remove(queue: QueueArgument, job: JobArgument, as_json: JsonFlag = False) -> None:
    """Remove a job that is not running."""
    with_house(lambda house: house.jobs.remove(queue, job, None, actor=ACTOR))
    show({"queue": queue, "removed": job}, as_json, lambda: f"{job} is removed.")


@jobs.command("pause")
def jobs_pause(queue: QueueArgument, as_json: JsonFlag = False) -> None:
    """Start no more jobs of this queue. What runs ends; work goes on being recorded."""
    with_house(lambda house: house.jobs.pause(queue))
    show({"queue": queue, "paused": True}, as_json, lambda: f"{queue} is paused.")


@jobs.command("resume")
def jobs_resume(queue: QueueArgument, as_json: JsonFlag = False) -> None:
    """Start jobs of this queue again."""
    with_house(lambda house: house.jobs.resume(queue))
    show({"queue": queue, "paused": False}, as_json, lambda: f"{queue} runs again.")


@jobs.command("drain")
def jobs_drain(
    queue: QueueArgument,
    delayed: Annotated[bool, typer.Option("--delayed", help="Delayed jobs too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove everything that waits in this queue and in the outbox for it. There is no way back."""
    if not yes and not typer.confirm(f"Remove all waiting jobs of {queue}?"):
        raise typer.Exit(1)
    count = with_house(lambda house: house.jobs.drain(queue, delayed=delayed))
    show({"queue": queue, "removed": count}, as_json, lambda: f"{count} jobs of {queue} are removed.")


QueueOption = Annotated[str | None, typer.Option("--queue", help="Only of this queue.")]
NameOption = Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only with this text in the reason.")]
BeforeOption = Annotated[datetime | None, typer.Option("--before", help="Only failed before this time (UTC).")]
IdsArgument = Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...", help="These letters only.")]
AllOption = Annotated[bool, typer.Option("--all", help="Without any other condition: all of them.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]


def _filter(
    ids: list[UUID] | None,
    queue: str | None,
    name: str | None,
    reason: str | None,
    before: datetime | None,
    tenant: str | None,
    status: str | None,
    everything: bool,
) -> Filter:
    from datetime import UTC

    """The conditions without the tenant, whose number is looked up later."""
    if not (everything or ids or queue or name or reason or before or tenant):
        raise Invalid("Name at least one condition, or --all. Nothing was changed.")
    moment = None if before is None else before.replace(tzinfo=before.tzinfo or UTC)
    return Filter(None, queue, name, status, reason, moment, tuple(ids) if ids else None)


@dead.command("ls")
def dead_ls(
    queue: QueueOption = None,
    name: NameOption = None,
    reason: ReasonOption = None,
    tenant: TenantOption = None,
    status: Annotated[str | None, typer.Option(help="dead or redriven; both by default.")] = None,
    limit: LimitOption = 50,
    as_json: JsonFlag = False,
) -> None:
    """Dead letters, newest first."""
    wanted = Filter(queue=queue, name=name, reason=reason, status=status)
    page = _for_tenant(
        tenant, lambda house, tenant_id: house.jobs.dead.page(replace(wanted, tenant_id=tenant_id), None, limit)
    )
    rows = [
        (one.id, one.queue, one.name, one.tenant_id, one.attempts, one.status, one.failed_at, one.reason[:80])
        for one in page.items
    ]
    columns = ("id", "queue", "name", "tenant", "attempts", "status", "failed", "reason")
    show(page.items, as_json, lambda: table(columns, rows))


@dead.command("redrive")
def dead_redrive(
    ids: IdsArgument = None,
    queue: QueueOption = None,
    name: NameOption = None,
    reason: ReasonOption = None,
    before: BeforeOption = None,
    tenant: TenantOption = None,
    everything: AllOption = False,
    dry_run: DryOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Give dead letters back to their queues. Effects that were done are not done again."""
    wanted = _filter(ids, queue, name, reason, before, tenant, "dead", everything)

    def work(house: House, tenant_id: int | None) -> Awaitable[int]:
        chosen = replace(wanted, tenant_id=tenant_id)
        return house.jobs.dead.count(chosen) if dry_run else house.jobs.dead.redrive(chosen, actor=ACTOR)

    count = _for_tenant(tenant, work)
    words = "would be redriven" if dry_run else "are redriven"
    show({"count": count, "done": not dry_run}, as_json, lambda: f"{count} dead letters {words}.")


@dead.command("purge")
def dead_purge(
    ids: IdsArgument = None,
    queue: QueueOption = None,
    name: NameOption = None,
    reason: ReasonOption = None,
    before: BeforeOption = None,
    tenant: TenantOption = None,
    everything: AllOption = False,
    dry_run: DryOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete dead letters for good."""
    wanted = _filter(ids, queue, name, reason, before, tenant, None, everything)

    def work(house: House, tenant_id: int | None) -> Awaitable[int]:
        chosen = replace(wanted, tenant_id=tenant_id)
        return house.jobs.dead.count(chosen) if dry_run else house.jobs.dead.purge(chosen, actor=ACTOR)

    count = _for_tenant(tenant, work)
    words = "would be purged" if dry_run else "are purged"
    show({"count": count, "done": not dry_run}, as_json, lambda: f"{count} dead letters {words}.")
