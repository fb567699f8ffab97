"""`handbill events`: history in from a file, parked events back on their way, and where one event went."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from handbill.cli.events_import import import_events
from handbill.cli.frame import JsonFlag, show, table, with_house
from handbill.cli.waiting import WaitOption, completeness, wait_until_ended
from handbill.events.service import Chosen, OnFailure, ParkedRequest, Replayed, ReplayOptions
from handbill.insights.model import Whereabouts
from handbill.insights.service import Told, Wanted
from handbill.kit.errors import Broken
from handbill.kit.read_waits import WaitFor, read_waiting
from handbill.wiring.house import House

TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's slug or number.")]
ACTOR = "operator"

events = typer.Typer(
    no_args_is_help=True, help="Import history, replay parked events, follow the live tail, explain one event."
)
parked = typer.Typer(no_args_is_help=True, help="Events that could not be counted, and their way back.")
events.add_typer(parked, name="parked")


def mount(app: typer.Typer) -> None:
    app.add_typer(events, name="events")


events.command("import")(import_events)


@events.command()
def explain(event_id: str, tenant: TenantOption, wait: WaitOption = None, as_json: JsonFlag = False) -> None:
    """Where did this event go? Counted, parked or waiting; in the event store; and whose it is now."""

    async def ask(house: House) -> Whereabouts:
        asked = WaitFor((await house.tenants.find_tenant(tenant)).tenant_id, wait, "exported")
        return await read_waiting(house.read_waits, asked, lambda: house.insights.explain(asked.tenant_id, event_id))

    told = with_house(ask)
    show(told, as_json, lambda: "\n".join(_whereabouts(told)))


def _whereabouts(told: Whereabouts) -> list[str]:
    lines = [f"{told.outcome}: {told.said}"]
    if told.stored is not None:
        lines.append(f"event store: {told.stored.state.replace('_', ' ')}")
    if told.person_id is not None:
        lines.append(f"person: {told.person_id}")
    lines += [f"{kind}: {name}" for kind, name in told.names.items()]
    return lines + completeness(told)


@events.command()
def tail(
    tenant: TenantOption,
    event: Annotated[str | None, typer.Option(help="Only events of this name.")] = None,
    distinct_id: Annotated[str | None, typer.Option("--id", help="Only events of this distinct id.")] = None,
    most: Annotated[int | None, typer.Option("--count", min=1, help="Stop after so many lines.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show events as they are accepted, and what the pipeline parks or drops, until Ctrl-C."""

    async def follow(house: House) -> None:
        found = await house.tenants.find_tenant(tenant)
        left = most
        async with aclosing(house.insights.watch(found.tenant_id, Wanted(event, distinct_id))) as told:
            async for one in told:
                if one.kind == "open" and not as_json:
                    Console(stderr=True).print("Waiting for events; Ctrl-C ends it.")
                if one.value is None:
                    continue
                line = msgspec.json.encode({"kind": one.kind, **msgspec.to_builtins(one.value)})
                print(line.decode() if as_json else _seen(one), flush=True)
                left = None if left is None else left - 1
                if left == 0:
                    return

    with_house(follow)


@events.command()
def lost(limit: Annotated[int, typer.Option(min=1, max=1000)] = 100, as_json: JsonFlag = False) -> None:
    """Counted events that are not in ClickHouse and cannot be exported any more, the latest first."""
    rows = with_house(lambda house: house.events.lost(limit=limit))
    lines = [(row.id, row.lane, row.events, row.created_at, row.lost_at) for row in rows]
    show(rows, as_json, lambda: table(("batch", "lane", "events", "counted", "found lost"), lines))


def _seen(told: Told) -> str:
    """One line for one thing that happened."""
    value = told.value
    if told.kind == "parked":
        return f"parked    {value.kind} {value.event_id} {value.reason}"
    if told.kind == "missed":
        return f"missed    {value.events}{' or more' if value.more else ''}"
    if told.kind == "dropped":
        return f"dropped   {value.events} {value.kind} {value.reason}"
    return f"{value.status:9} {value.at:%H:%M:%S} {value.event} {value.distinct_id or ''} {value.event_id}".rstrip()


@parked.command("ls")
def parked_ls(
    tenant: TenantOption,
    reason: Annotated[str | None, typer.Option(help="Only those parked for this reason.")] = None,
    after: Annotated[UUID | None, typer.Option(help="The id of the last row of the page before.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Events that could not be counted, oldest first."""

    async def ask(house: House) -> Any:
        found = await house.tenants.find_tenant(tenant)
        return await house.events.parked(found.tenant_id, reason=reason, replayed=False, after=after, limit=limit)

    rows = with_house(ask)
    lines = [(row.id, row.kind, row.event_id, row.reason, row.detail, row.parked_at) for row in rows]
    show(rows, as_json, lambda: table(("id", "kind", "event", "reason", "detail", "parked"), lines))


@parked.command()
def replay(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Slug or number; without it, everybody's.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only those parked for this reason.")] = None,
    on_failure: Annotated[
        OnFailure, typer.Option(help="Those still bad: park them again, or stop there.")
    ] = OnFailure.PARK,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also those parked more than 35 days ago.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Send parked events through the whole pipeline again; those still bad are parked again.

    For a tenant the worker does it, and this waits for its end: Ctrl-C ends the waiting, not the replay. Everybody's,
    with those that belong to nobody, are replayed by this command itself.
    """
    options = ReplayOptions(on_failure, dry_run, force)
    if tenant is None:
        done = with_house(lambda house: _replay_all(house, reason, options))
        show(done, as_json, lambda: _replayed_line(msgspec.to_builtins(done)))
        return

    async def work(house: House) -> ParkedRequest:
        tenant_id, requests = (await house.tenants.find_tenant(tenant)).tenant_id, house.events.parked_requests
        made = await requests.replay(tenant_id, Chosen(tenant_id, reason), options, actor=ACTOR)
        return await _wait(house, tenant_id, made, quiet=as_json)

    ended = with_house(work)
    show(ended, as_json, lambda: _replayed_line(ended.report))
    _check(ended)


@parked.command()
def drop(
    tenant: TenantOption,
    reason: Annotated[str | None, typer.Option(help="Only those parked for this reason.")] = None,
    ids: Annotated[list[UUID] | None, typer.Option("--id", help="Only this one; may be given again.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Give up parked events for good; the audit log keeps how many they were.

    The worker does it, and this waits for its end: Ctrl-C ends the waiting, not the drop.
    """
    if not yes:
        typer.confirm("These events will never be counted. Go on?", abort=True)

    async def work(house: House) -> ParkedRequest:
        tenant_id, requests = (await house.tenants.find_tenant(tenant)).tenant_id, house.events.parked_requests
        made = await requests.drop(tenant_id, Chosen(tenant_id, reason, tuple(ids or ())), actor=ACTOR)
        return await _wait(house, tenant_id, made, quiet=as_json)

    ended = with_house(work)
    show(ended, as_json, lambda: f"{ended.report['dropped']} dropped.")
    _check(ended)


async def _replay_all(house: House, reason: str | None, options: ReplayOptions) -> Replayed:
    """Everybody's, in this process: a request to the worker is one tenant's."""
    return await house.events.dead.replay(
        Chosen(None, reason), on_failure=options.on_failure, dry_run=options.dry_run, force=options.force
    )


async def _wait(house: House, tenant_id: int, made: ParkedRequest, *, quiet: bool) -> ParkedRequest:
    """Until the worker has ended it, with a bar of how many events it has looked at."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(made.action, total=None)

        def draw(request: ParkedRequest) -> None:
            waits = f", waits: {request.error}" if request.error else ""
            looked_at = request.report.get("matched", request.report.get("dropped", 0))
            bar.update(task, description=f"{made.action}{waits}", total=request.total, completed=looked_at)

        requests = house.events.parked_requests
        return await wait_until_ended(
            lambda: requests.get(tenant_id, made.parked_request_id), f"{made.action} {made.parked_request_id}", draw
        )


def _replayed_line(report: Mapping[str, Any]) -> str:
    line = f"{report['matched']} matched, {report['sent']} sent again, {report['unreadable']} cannot be read."
    if report["shipped"] or report["unshipped"]:
        line += f" ClickHouse took {report['shipped']} that it lacked; {report['unshipped']} wait for it."
    return line


def _check(ended: ParkedRequest) -> None:
    """Raises Broken for a request that failed: its counts are what was done before."""
    if ended.status == "failed":
        raise Broken(f"The {ended.action} failed: {ended.error}.", code=ended.error)
