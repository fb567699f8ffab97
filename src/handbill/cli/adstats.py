"""`handbill adstats`: sync now, read a range again, work days out anew, and say why one is what it is."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from handbill.cli.frame import JsonFlag, show, table, with_house
from handbill.kit.errors import Fault, Invalid, NotFound

if TYPE_CHECKING:
    from handbill.adstats.model import BackfillView, SyncAnswer, Written
    from handbill.adstats.service import Explained
    from handbill.wiring.house import House

ACTOR = "cli"
POLL_S = 0.5

SellerArgument = Annotated[str, typer.Argument(metavar="SELLER", help="The tenant: its slug, number or public id.")]
adstats = typer.Typer(no_args_is_help=True, help="Ad figures: sync, backfill, rebuild, explain.")


def mount(app: typer.Typer) -> None:
    app.add_typer(adstats, name="adstats")


@adstats.command("sync")
def sync(
    seller: SellerArgument,
    day: Annotated[str | None, typer.Option("--date", help="YYYY-MM-DD; without it, today.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Put one day of a seller into the queue, all levels."""
    wanted = None if day is None else _day(day)

    async def work(house: House) -> SyncAnswer:
        return await house.adstats.dispatch.sync(await _tenant(house, seller), wanted, actor=ACTOR)

    told = with_house(work)
    rows = [(job.id, job.state) for job in told.jobs]
    show(told, as_json, lambda: table(("job", "state"), rows))


@adstats.command("backfill")
def backfill(
    seller: SellerArgument,
    first: Annotated[str, typer.Option("--from", help="The first day, YYYY-MM-DD.")],
    last: Annotated[str, typer.Option("--to", help="The last day, YYYY-MM-DD.")],
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done; a worker must be running.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Read a range of days again, newest first."""

    async def work(house: House) -> BackfillView:
        tenant = await _tenant(house, seller)
        found = await house.adstats.dispatch.backfill(tenant, _day(first), _day(last), actor=ACTOR)
        while wait and found.state == "running":
            await asyncio.sleep(POLL_S)
            found = await house.adstats.dispatch.progress(tenant, found.backfill_id)
        return found

    told = with_house(work)
    row = (told.backfill_id, told.state, f"{told.done} of {told.parts}", told.failed, "; ".join(told.errors))
    show(told, as_json, lambda: table(("backfill", "state", "parts", "failed", "why"), [row]))


@adstats.command("explain")
def explain(
    seller: SellerArgument,
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="A campaign, ad set or ad, by our id.")],
    day: Annotated[str, typer.Option("--date", help="YYYY-MM-DD, a day of the ad account.")],
    as_json: JsonFlag = False,
) -> None:
    """What the platform told about one day, what we believed when, and what adding it all up would claim."""

    async def work(house: House) -> Explained:
        return await house.adstats.explain(await _tenant(house, seller), _uuid(entity), _day(day))

    told = with_house(work)
    rows: list[tuple[object, ...]] = [
        ("told", f"{one.fetched_at:%F %T}", f"seen {one.seen} times", one.spend, one.purchases, one.purchase_value)
        for one in told.told
    ]
    rows += [("believed", one.believed_on, "", one.spend, one.purchases, one.purchase_value) for one in told.beliefs]
    if (now := told.now) is not None:
        rows.append(("now", f"mode {told.mode}", f"factor {now.factor}", now.spend, now.purchases, now.purchase_value))
    rows.append(("added up", "", f"factor {told.literal_factor}", told.literal_spend, "", ""))
    show(told, as_json, lambda: table(("what", "when", "how", "spend", "purchases", "value"), rows))


@adstats.command("rebuild")
def rebuild(
    seller: SellerArgument,
    first: Annotated[str, typer.Option("--from", help="The first day, YYYY-MM-DD.")],
    last: Annotated[str, typer.Option("--to", help="The last day, YYYY-MM-DD.")],
    as_json: JsonFlag = False,
) -> None:
    """Work days and sellpages out anew from the answers that are kept, as the mode says; no platform is asked."""

    async def work(house: House) -> Written:
        return await house.adstats.syncing.rebuild(await _tenant(house, seller), _day(first), _day(last))

    told = with_house(work)
    show(told, as_json, lambda: f"{told.daily} days and {told.sellpage} days of sellpages changed.")


async def _tenant(house: House, seller: str) -> int:
    """By the public id that stands in job ids and logs, or as everywhere else by slug or number."""
    try:
        public = UUID(seller)
    except ValueError:
        return (await house.tenants.find_tenant(seller)).tenant_id
    found = await house.adstats.tenant_of(public)
    if found is None:
        raise NotFound(f"There is no tenant {seller}.", code="TENANT_NOT_FOUND")
    return found


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is no day; write YYYY-MM-DD.", faults=[Fault("date", "YYYY-MM-DD")]) from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text!r} is no id.", faults=[Fault("id", "a UUID")]) from None
