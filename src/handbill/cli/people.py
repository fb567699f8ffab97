"""`handbill people`: who somebody is, and what an operator may decide about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.markup import escape

from handbill.cli.frame import JsonFlag, show, table, with_house
from handbill.cli.waiting import WaitOption, completeness, wait_until_ended
from handbill.kit.errors import Broken
from handbill.kit.read_waits import WaitFor, read_waiting
from handbill.people.model import PersonPage
from handbill.tenants.model import Erasure
from handbill.wiring.house import House

TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's slug or number.")]
ACTOR = "operator"

people = typer.Typer(no_args_is_help=True, help="Look at people, join and part them, export and erase.")


def mount(app: typer.Typer) -> None:
    app.add_typer(people, name="people")


async def _tenant(house: House, slug: str) -> int:
    return (await house.tenants.find_tenant(slug)).tenant_id


@people.command("show")
def show_(distinct_id: str, tenant: TenantOption, wait: WaitOption = None, as_json: JsonFlag = False) -> None:
    """The person who has this id: properties, all their ids, and the edges that made them one."""

    async def ask(house: House) -> PersonPage:
        asked = WaitFor(await _tenant(house, tenant), wait, "people")
        return await read_waiting(house.read_waits, asked, lambda: house.people.find(asked.tenant_id, distinct_id))

    found = with_house(ask)
    show(found, as_json, lambda: _page(found))


@people.command()
def merge(source: str, target: str, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """Decide that both ids are one person, who is named by the second."""

    async def work(house: House) -> PersonPage:
        return await house.people.merge(await _tenant(house, tenant), source, target, actor=ACTOR)

    found = with_house(work)
    show(found, as_json, lambda: _page(found))


@people.command()
def void(edge_id: str, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """Take an edge back: people become who they would be if nobody had ever said it."""

    async def work(house: House) -> Any:
        return await house.people.void(await _tenant(house, tenant), edge_id, actor=ACTOR)

    edge = with_house(work)
    show(edge, as_json, lambda: f"{edge.kind} {edge.source} -> {edge.target}: {edge.outcome}")


@people.command()
def restore(edge_id: str, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """Let a voided edge hold again."""

    async def work(house: House) -> Any:
        return await house.people.restore(await _tenant(house, tenant), edge_id, actor=ACTOR)

    edge = with_house(work)
    show(edge, as_json, lambda: f"{edge.kind} {edge.source} -> {edge.target}: {edge.outcome}")


@people.command()
def export(
    distinct_id: str,
    tenant: TenantOption,
    file: Annotated[Path | None, typer.Option("--file", help="Write it there instead of printing it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say as JSON where it was written.")] = False,
) -> None:
    """Everything kept about the person who has this id, in every store, as JSON. The worker collects it."""

    async def work(house: House) -> bytes:
        tenant_id, exports = await _tenant(house, tenant), house.tenants.exports
        made = await exports.request(tenant_id, distinct_id, actor=ACTOR)
        ended = await wait_until_ended(lambda: exports.get(tenant_id, made.export_id), f"export {made.export_id}")
        if ended.status == "failed":
            raise Broken(f"The export failed: {ended.error}.", code=ended.error)
        return await exports.result(tenant_id, made.export_id)

    body = msgspec.json.format(with_house(work), indent=2)
    if file is None:
        print(body.decode())
    else:
        file.write_bytes(body + b"\n")
        show({"file": str(file)}, as_json, lambda: f"Written to {escape(str(file))}.")


@people.command()
def erase(
    distinct_id: str,
    tenant: TenantOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove a person's identifiers and properties from every store, under all their ids. Counts stay.

    The worker does it; this waits for its end. Ctrl-C ends the waiting, not the erasure.
    """
    if not yes:
        typer.confirm(f"Everything that names {distinct_id} will be gone for good. Go on?", abort=True)

    async def work(house: House) -> Erasure:
        tenant_id, erasures = await _tenant(house, tenant), house.tenants.erasures
        made = await erasures.request(tenant_id, distinct_id, actor=ACTOR)
        return await wait_until_ended(lambda: erasures.get(tenant_id, made.erasure_id), f"erasure {made.erasure_id}")

    done = with_house(work)
    lines = [(room, name, count) for room, report in done.report.items() for name, count in report.items()]
    show(done, as_json, lambda: table(("room", "what", "cleared"), lines))
    if done.status == "failed":
        raise typer.Exit(1)


@people.command("rebuild-properties")
def rebuild_properties(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False, as_json: JsonFlag = False
) -> None:
    """Send what people are like to ClickHouse again, of all tenants: after ClickHouse was lost or restored.

    The worker does it in the background. Until it is done, insights miss properties of people.
    """
    if not yes:
        typer.confirm("Properties of people in ClickHouse are cleared and sent again. Go on?", abort=True)

    async def work(house: House) -> dict[str, bool]:
        await house.people.rebuild_properties()
        return {"cleared": True}

    done = with_house(work)
    show(done, as_json, lambda: "Cleared. The worker sends everybody again.")


def _page(found: PersonPage) -> Group:
    """Who it is, and three short tables."""
    person = found.person
    named = f"Person {person.person_id}, named by {person.named_by}, since {person.created_at:%Y-%m-%d %H:%M} UTC"
    edges = [(edge.edge_id, edge.kind, edge.source, edge.target, edge.outcome, edge.at) for edge in found.edges]
    return Group(
        escape(named),
        table(("property", "value"), [(name, repr(value)) for name, value in person.properties.items()]),
        table(("id", "first seen"), [(each.distinct_id, each.first_seen_at) for each in found.distinct_ids]),
        table(("edge", "kind", "source", "target", "outcome", "said"), edges),
        *completeness(found),
    )
