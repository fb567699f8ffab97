"""`handbill contacts`: a file from this machine into a tenant's contacts, its report, and the way back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from handbill.cli.frame import JsonFlag, out, show, table, valid, with_house
from handbill.kit.errors import Fault, Invalid

if TYPE_CHECKING:
    from handbill.contacts.model import Import, ImportView
    from handbill.wiring.house import House

T = TypeVar("T")

ACTOR = "cli"
ENDS = ("done", "failed", "cancelled", "undone")
LOOK_S = 0.5
_SOURCE_CHARS = 200

contacts = typer.Typer(no_args_is_help=True, help="Import contacts, read an import's report, undo it.")
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's slug or number.")]
ImportArgument = Annotated[str, typer.Argument(metavar="IMPORT", help="The import's id.")]
WaitFlag = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the worker is done with it.")]


def mount(app: typer.Typer) -> None:
    app.add_typer(contacts, name="contacts")


def _of(slug: str, verb: Callable[[House, int], Awaitable[T]]) -> T:
    async def work(house: House) -> T:
        found = await house.tenants.find_tenant(slug)
        return await verb(house, found.tenant_id)

    return with_house(work)


@contacts.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)],
    tenant: TenantOption,
    region: Annotated[str, typer.Option(help="Where national numbers are dialled, e.g. BR.")] = "",
    key: Annotated[str, typer.Option(help="What tells contacts apart: phone, email or external_id.")] = "",
    policy: Annotated[str, typer.Option(help="skip, update, update_blanks or replace.")] = "update",
    tag: Annotated[list[str] | None, typer.Option(help="A tag for all of them; may be repeated.")] = None,
    column: Annotated[
        list[str] | None, typer.Option("--map", help="NUMBER=TARGET, columns counted from 0; may be repeated.")
    ] = None,
    consent: Annotated[
        list[str] | None,
        typer.Option(help="A channel (whatsapp, sms, email) on which they agreed to be written to; may be repeated."),
    ] = None,
    source: Annotated[str, typer.Option(help="Where they agreed, with --consent; by default the file's name.")] = "",
    proof: Annotated[str, typer.Option(help="What proves it, with --consent.")] = "",
    skip_rows: Annotated[
        int | None, typer.Option(help="Rows above the header to leave out; by default what is seen.")
    ] = None,
    member: Annotated[str | None, typer.Option(help="Which file of a .zip is meant, if it holds several.")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what would happen.")] = False,
    wait: WaitFlag = True,
    as_json: JsonFlag = False,
) -> None:
    """Upload a file, plan it, and let the worker import it."""
    from handbill.contacts.model import PlanPatch
    from handbill.contacts.service import file_chunks

    wanted: dict[str, Any] = {"policy": policy, "tags": tag or [], "columns": _columns(column or [])}
    if key:
        wanted["key"] = key
    if granted := _consent(file, consent or [], source, proof):
        wanted["consent"] = granted
    if skip_rows is not None:
        wanted["skip_rows"] = skip_rows
    patch = valid(PlanPatch, **wanted)

    async def work(house: House, number: int) -> Any:
        imports = house.contacts.imports
        made = await imports.upload(
            number, file_chunks(file), actor=ACTOR, name=file.name, region=region.upper() or None, member=member
        )
        made = await imports.change(number, made.import_id, patch, actor=ACTOR)
        if preview:
            found = await imports.preview(number, made.import_id)
            await imports.cancel(number, made.import_id, actor=ACTOR)
            return found
        await imports.start(number, made.import_id, actor=ACTOR)
        return await _ended(house, number, made.import_id, wait)

    found = _of(tenant, work)
    if preview:
        rows = [(row.row, row.outcome, row.reason or "", ", ".join(row.notes), row.values) for row in found.rows]
        show(found, as_json, lambda: table(("row", "outcome", "reason", "notes", "values"), rows))
    else:
        show(found, as_json, lambda: _line(found))
        _exit(found, wait)


@contacts.command("report")
def report(
    import_id: ImportArgument,
    tenant: TenantOption,
    rejected: Annotated[Path | None, typer.Option("--csv", help="Write the rejected rows to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """What became of an import's rows, by cause, and what to do about each."""
    number = _id(import_id)

    async def work(house: House, owner: int) -> Any:
        found = await house.contacts.imports.report(owner, number)
        if rejected is not None:
            with rejected.open("w", encoding="utf-8-sig", newline="") as file:
                async for part in house.contacts.imports.rejected_csv(owner, number):
                    file.write(part)
        return found

    found = _of(tenant, work)
    rows = [(one.severity, one.code, one.field, one.rows, one.meaning, one.fix) for one in found.causes]
    show(found, as_json, lambda: table(("", "code", "field", "rows", "meaning", "what to do"), rows))
    if not as_json:
        out.print(_line(found.info))


@contacts.command("undo")
def undo(import_id: ImportArgument, tenant: TenantOption, wait: WaitFlag = True, as_json: JsonFlag = False) -> None:
    """Put back what still is as the import left it; the rest is counted as kept."""
    number = _id(import_id)

    async def work(house: House, owner: int) -> Import:
        await house.contacts.imports.undo(owner, number, actor=ACTOR)
        return await _ended(house, owner, number, wait)

    found = _of(tenant, work)
    show(found, as_json, lambda: _line(found))
    _exit(found, wait)


async def _ended(house: House, tenant: int, import_id: UUID, wait: bool) -> Import:
    """The worker does the work; this only looks."""
    last = ""
    while True:
        view = await house.contacts.imports.read(tenant, import_id)
        if not wait or view.info.status in ENDS:
            return view.info
        if (said := _progress(view)) != last and sys.stderr.isatty():
            print(said, file=sys.stderr, flush=True)
        last = said
        await asyncio.sleep(LOOK_S)


def _progress(view: ImportView) -> str:
    at = view.progress
    eta = f", {at.eta_s:.0f} s left" if at.eta_s is not None else ""
    return f"{at.phase}: {at.parsed} of {at.rows} rows read, {at.merged} merged{eta}"


def _line(one: Import) -> str:
    told = one.counts
    counts = ", ".join(f"{getattr(told, name)} {name}" for name in told.__struct_fields__ if getattr(told, name))
    why = f" ({one.error})" if one.error else ""
    return f"Import {one.import_id} is {one.status}{why}: {counts or 'nothing yet'}."


def _exit(one: Import, wait: bool) -> None:
    if wait and one.status == "failed":
        raise typer.Exit(1)


def _columns(words: list[str]) -> list[dict[str, Any]]:
    found = []
    for word in words:
        index, sign, target = word.partition("=")
        if not sign or not index.isdigit():
            raise Invalid(
                "A column is mapped as NUMBER=TARGET; nothing was imported.", faults=[Fault("--map", f"not {word!r}")]
            )
        found.append({"index": int(index), "target": target or None})
    return found


def _consent(file: Path, channels: list[str], source: str, proof: str) -> dict[str, Any] | None:
    if not channels:
        if source or proof:
            raise Invalid(
                "A source or a proof belongs to a consent; nothing was imported.",
                faults=[Fault("--consent", "name a channel: whatsapp, sms or email")],
            )
        return None
    return {"channels": channels, "source": source or f"file {file.name}"[:_SOURCE_CHARS], "proof": proof or None}


def _id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise Invalid("That is no import's id.", faults=[Fault("IMPORT", f"not {word!r}")]) from None
