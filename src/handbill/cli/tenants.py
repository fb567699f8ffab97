"""`handbill tenant`, `handbill key`, `handbill user`: the operator's work across tenants, which no route offers."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar
from uuid import UUID

import msgspec
import typer

from handbill.cli.frame import JsonFlag, show, table, valid, with_house
from handbill.kit.errors import Invalid, NotFound

if TYPE_CHECKING:
    from handbill.tenants.model import KeyMade
    from handbill.wiring.house import House

T = TypeVar("T")


class NewTier(msgspec.Struct, frozen=True):
    tier: Literal["standard", "enterprise"]


ACTOR = "cli"
TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's slug or number.")]

tenant = typer.Typer(no_args_is_help=True, help="Create, list, limit, suspend and resume tenants.")
key = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke a tenant's keys.")
user = typer.Typer(no_args_is_help=True, help="Create and list a tenant's users, set their passwords.")


def mount(app: typer.Typer) -> None:
    app.add_typer(tenant, name="tenant")
    app.add_typer(key, name="key")
    app.add_typer(user, name="user")


def _of(slug: str, verb: Callable[[House, int], Awaitable[T]]) -> T:
    """Find the tenant, then do one thing with it."""

    async def work(house: House) -> T:
        found = await house.tenants.find_tenant(slug)
        return await verb(house, found.tenant_id)

    return with_house(work)


@tenant.command("create")
def tenant_create(
    name: str,
    slug: Annotated[str, typer.Option(help="Short name in addresses; made from the name if not given.")] = "",
    tier: Annotated[str, typer.Option(help="standard or enterprise.")] = "standard",
    time_zone: Annotated[str, typer.Option(help="IANA name; the tenant's days begin there.")] = "UTC",
    as_json: JsonFlag = False,
) -> None:
    """Create a tenant."""
    from handbill.tenants.model import NewTenant

    new = valid(NewTenant, name=name, slug=slug or _slug(name), tier=tier, time_zone=time_zone)
    made = with_house(lambda house: house.tenants.create_tenant(new, actor=ACTOR))
    show(made, as_json, lambda: f"Tenant {made.slug} is there (number {made.tenant_id}, id {made.public_id}).")


def _slug(name: str) -> str:
    words = "".join(letter if letter.isalnum() and letter.isascii() else " " for letter in name.lower()).split()
    if not words:
        raise Invalid(f"No slug can be made from {name!r}. Nothing was created. Give one with --slug.")
    return "-".join(words)[:60].rstrip("-")


@tenant.command("ls")
def tenant_ls(as_json: JsonFlag = False) -> None:
    """List all tenants."""
    found = with_house(lambda house: house.tenants.list_tenants())
    rows = [(one.tenant_id, one.slug, one.name, one.tier, one.time_zone, one.status) for one in found]
    show(found, as_json, lambda: table(("number", "slug", "name", "tier", "time zone", "status"), rows))


@tenant.command("suspend")
def tenant_suspend(slug: TenantArgument, as_json: JsonFlag = False) -> None:
    """Refuse everything that comes with this tenant's keys, until resumed. Its data stays."""
    _of(slug, lambda house, number: house.tenants.suspend(number, actor=ACTOR))
    show({"tenant": slug, "status": "suspended"}, as_json, lambda: f"{slug} is suspended; its data is kept.")


@tenant.command("resume")
def tenant_resume(slug: TenantArgument, as_json: JsonFlag = False) -> None:
    """Let a suspended tenant in again."""
    _of(slug, lambda house, number: house.tenants.resume(number, actor=ACTOR))
    show({"tenant": slug, "status": "active"}, as_json, lambda: f"{slug} is active again.")


@tenant.command("limits")
def tenant_limits(
    slug: TenantArgument,
    events_per_day: Annotated[int | None, typer.Option(min=0, help="Product events a day (UTC); 0: no limit.")] = None,
    events_per_second: Annotated[
        float | None, typer.Option(min=0, help="Product events a second; 0: no limit.")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="standard or enterprise: how fast it sends messages.")] = None,
    messages_per_second: Annotated[
        str | None, typer.Option(metavar="N|tier", help="Messages a second; 0: no limit; tier: what the tier says.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what this tenant may send where that differs from the settings, and change what is given.

    It takes effect at once. Only whoever runs the installation may do this: no route offers it to a tenant.
    """
    given = {"events_per_day": events_per_day, "events_per_second": events_per_second}
    wanted = {name: float(value) for name, value in given.items() if value is not None}
    new_tier = None if tier is None else valid(NewTier, tier=tier).tier
    pace = _messages_per_second(messages_per_second)

    async def verb(house: House, number: int) -> dict[str, float | str]:
        before = (await house.tenants.directory.profile(number)).settings.limits
        if wanted:
            await house.tenants.set_limits(number, {**before, **wanted}, actor=ACTOR)
        if new_tier is not None:
            await house.tenants.set_tier(number, new_tier, actor=ACTOR)
        if messages_per_second is not None:
            await house.messaging.connections.set_pace(number, pace, actor=ACTOR)
        tenant, settings = await house.tenants.get_tenant(number)
        switch = await house.messaging.connections.switch(number)
        own = {} if switch.per_second is None else {"messages_per_second": float(switch.per_second)}
        return {**settings.limits, **own, "tier": tenant.tier}

    found = _of(slug, verb)
    rows = [(name, value if isinstance(value, str) else f"{value:g}") for name, value in sorted(found.items())]
    show({"tenant": slug, "limits": found}, as_json, lambda: table(("limit", "value"), rows))


def _messages_per_second(text: str | None) -> int | None:
    if text is None or text == "tier":
        return None
    if not text.isdecimal() or len(text) > 6:
        raise Invalid(f"--messages-per-second is a whole number or `tier`, not {text!r}. Nothing was changed.")
    return int(text)


@key.command("create")
def key_create(
    slug: TenantArgument,
    kind: Annotated[str, typer.Option(help="write (publishable: track and decide) or secret.")] = "secret",
    name: Annotated[str, typer.Option(help="What it is for.")] = "made on the command line",
    scopes: Annotated[str, typer.Option(help="Scopes of a secret key, separated by commas; all by default.")] = "",
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="Expires after so many days; never by default.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a key. A secret key is shown this once and never again; a write key is public."""
    from handbill.tenants.model import NewKey

    words = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    expires_at = None if days is None else (datetime.now(UTC) + timedelta(days=days)).isoformat()
    granted = words or (["*"] if kind == "secret" else [])
    new = valid(NewKey, kind=kind, name=name, scopes=granted, expires_at=expires_at)
    made = _of(slug, lambda house, number: house.tenants.create_key(number, new, actor=ACTOR))
    show(made, as_json, lambda: f"{made.key}\n{_advice(made)}")


def _advice(made: KeyMade) -> str:
    if made.info.kind == "secret":
        return "Keep it now: a secret key is not shown again."
    return "A write key is public: it goes into pages and apps, and only tracks and decides."


@key.command("ls")
def key_ls(slug: TenantArgument, as_json: JsonFlag = False) -> None:
    """List a tenant's keys, without the keys themselves."""
    found = _of(slug, lambda house, number: house.tenants.list_keys(number))
    rows = [
        (one.key_id, one.kind, one.name, ",".join(sorted(one.scopes)), one.last_used_at, one.expires_at)
        for one in found
    ]
    show(found, as_json, lambda: table(("id", "kind", "name", "scopes", "last used", "expires"), rows))


@key.command("rotate")
def key_rotate(
    slug: TenantArgument,
    key_id: UUID,
    overlap: Annotated[int, typer.Option(help="Seconds for which the old key still works.")] = 86_400,
    as_json: JsonFlag = False,
) -> None:
    """Make a key's successor; the old one works for a while longer."""
    made = _of(slug, lambda house, number: house.tenants.rotate_key(number, key_id, overlap_s=overlap, actor=ACTOR))
    show(made, as_json, lambda: f"{made.key}\nThe old key works for {overlap} s more.")


@key.command("revoke")
def key_revoke(slug: TenantArgument, key_id: UUID, as_json: JsonFlag = False) -> None:
    """End a key at once."""
    _of(slug, lambda house, number: house.tenants.revoke_key(number, key_id, actor=ACTOR))
    show({"key": str(key_id), "status": "revoked"}, as_json, lambda: f"The key {key_id} is revoked.")


@user.command("create")
def user_create(
    slug: TenantArgument,
    email: str,
    name: Annotated[str, typer.Option(help="The person's name.")] = "",
    role: Annotated[str, typer.Option(help="owner, operator or viewer.")] = "operator",
    as_json: JsonFlag = False,
) -> None:
    """Create a user; the password is asked for, or read from standard input."""
    from handbill.tenants.model import NewUser

    new = valid(NewUser, email=email, password=_password(), name=name, role=role)
    made = _of(slug, lambda house, number: house.tenants.accounts.create_user(number, new, actor=ACTOR))
    show(made, as_json, lambda: f"{made.email} is {made.role} of {slug}.")


@user.command("ls")
def user_ls(slug: TenantArgument, as_json: JsonFlag = False) -> None:
    """List a tenant's users."""
    found = _of(slug, lambda house, number: house.tenants.accounts.list_users(number))
    rows = [(one.user_id, one.email, one.name, one.role) for one in found]
    show(found, as_json, lambda: table(("id", "e-mail", "name", "role"), rows))


@user.command("passwd")
def user_passwd(
    email: str,
    slug: Annotated[str | None, typer.Option("--tenant", help="Needed where several tenants have the address.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Set a user's password; it is asked for, or read from standard input. Ends the user's sessions."""
    password = _password()

    async def work(house: House) -> None:
        found = await house.tenants.accounts.find(email, slug)
        if not found:
            raise NotFound(f"No user has the address {email}. Nothing was changed.", code="USER_NOT_FOUND")
        if len(found) > 1:
            slugs = ", ".join([(await house.tenants.get_tenant(one.tenant_id))[0].slug for one in found])
            raise Invalid(f"Users of {slugs} have the address {email}; name one with --tenant. Nothing was changed.")
        await house.tenants.accounts.set_password(found[0].tenant_id, found[0].user_id, password, actor=ACTOR)

    with_house(work)
    show({"user": email}, as_json, lambda: f"The password of {email} is set.")


def _password() -> str:
    """Never an argument: those are visible to every user of the machine."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise Invalid("The two passwords differ. Nothing was changed.")
    return first
