"""`handbill adstats`: connect and correct accounts, sync now, read a range again, and say why a day is what it is."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from handbill.cli.frame import JsonFlag, show, table, valid, with_house
from handbill.kit.errors import Fault, Invalid, NotFound
from handbill.kit.pages import LIMIT_MAX

if TYPE_CHECKING:
    from handbill.adstats.model import BackfillView, Connection, SyncAnswer, Written
    from handbill.adstats.service import Explained
    from handbill.kit.pages import Page
    from handbill.wiring.house import House

ACTOR = "cli"
POLL_S = 0.5

SellerArgument = Annotated[str, typer.Argument(metavar="SELLER", help="The tenant: its slug, number or public id.")]
CurrencyOption = Annotated[str | None, typer.Option("--currency", help="Like EUR, where the platform tells none.")]
ZoneOption = Annotated[str | None, typer.Option("--zone", help="Like Europe/Paris, where the platform tells none.")]
adstats = typer.Typer(no_args_is_help=True, help="Ad figures: accounts, sync, backfill, rebuild, explain.")


def mount(app: typer.Typer) -> None:
    app.add_typer(adstats, name="adstats")


@adstats.command("connect")
def connect(
    seller: SellerArgument,
    account: Annotated[str, typer.Option("--account", help="The account's number at the platform, without act_.")],
    name: Annotated[str, typer.Option("--name", help="What you call it.")],
    provider: Annotated[str, typer.Option("--provider", help="META, or MOCK to try without an account.")] = "META",
    currency: CurrencyOption = None,
    zone: ZoneOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Connect an ad account. Its currency, time zone and access are asked of the platform.

    The token of a META account is asked for, or read from standard input.
    """
    from handbill.adstats.model import NewConnection

    given = {"currency": currency, "time_zone": zone, "access_token": None if provider == "MOCK" else _token()}
    new = valid(
        NewConnection, provider=provider, external_id=account, name=name,
        **{field: value for field, value in given.items() if value is not None},
    )  # fmt: skip

    async def work(house: House) -> Connection:
        return await house.adstats.connections.create(await _tenant(house, seller), new, actor=ACTOR)

    made = with_house(work)
    _show_connections(made, [made], as_json)


@adstats.command("accounts")
def accounts(
    seller: SellerArgument,
    cursor: Annotated[str | None, typer.Option("--cursor", help="The next page, as printed by the one before.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """The ad accounts of a seller, with what their platforms say of them."""

    async def work(house: House) -> Page[Connection]:
        return await house.adstats.connections.list_page(await _tenant(house, seller), cursor, LIMIT_MAX)

    page = with_house(work)
    _show_connections(page, page.items, as_json)
    if page.next and not as_json:
        print(f"next page: --cursor {page.next}")


@adstats.command("correct")
def correct(
    seller: SellerArgument,
    connection: Annotated[str, typer.Argument(metavar="CONNECTION", help="The account's id here.")],
    currency: CurrencyOption = None,
    zone: ZoneOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Correct the currency or time zone of an ad account; docs/adstats.md says which days change."""
    from handbill.adstats.model import ConnectionPatch

    given = {"currency": currency, "time_zone": zone}
    patch = valid(ConnectionPatch, **{field: value for field, value in given.items() if value is not None})

    async def work(house: House) -> Connection:
        tenant_id = await _tenant(house, seller)
        return await house.adstats.connections.change(tenant_id, _uuid(connection), patch, version=None, actor=ACTOR)

    changed = with_house(work)
    _show_connections(changed, [changed], as_json)


@adstats.command("disconnect")
def disconnect(
    seller: SellerArgument,
    connection: Annotated[str, typer.Argument(metavar="CONNECTION", help="The account's id here.")],
    as_json: JsonFlag = False,
) -> None:
    """End the syncs of an ad account and delete its token. Its figures stay; connecting it again goes on with them."""

    async def work(house: House) -> None:
        tenant_id = await _tenant(house, seller)
        await house.adstats.connections.delete(tenant_id, _uuid(connection), version=None, actor=ACTOR)

    with_house(work)
    show({"connection_id": connection, "is_active": False}, as_json, lambda: f"{connection} is read no more.")


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


def _show_connections(value: Connection | Page[Connection], connections: Sequence[Connection], as_json: bool) -> None:
    rows = [_connection_row(one) for one in connections]
    columns = ("connection", "platform", "account", "name", "currency", "zone", "token", "verified")
    show(value, as_json, lambda: table(columns, rows))


def _connection_row(one: Connection) -> tuple[object, ...]:
    token = one.token_state if one.is_active else "disconnected"
    verified = f"{one.verified_at:%F %T}" if one.verified_at else "no"
    return (
        one.connection_id, one.provider, one.external_id, one.name, one.currency, one.time_zone, token, verified
    )  # fmt: skip


def _token() -> str:
    """Never an argument: those are visible to every user of the machine."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    return getpass.getpass("Access token: ").strip()


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
