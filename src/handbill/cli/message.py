"""`handbill message`: send one message, see what became of it, prove that each has one outcome."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import typer

from handbill.cli.frame import JsonFlag, TenantOption, for_tenant, show, table, valid
from handbill.kit.errors import Fault, Invalid
from handbill.messaging.service import MessageRequest, NewMessage, SingleMessage

message = typer.Typer(no_args_is_help=True, help="Single messages: send one, see what became of it.")
MessageArgument = Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id.")]


def mount(app: typer.Typer) -> None:
    app.add_typer(message, name="message")


@message.command("send")
def send(
    tenant: TenantOption,
    to: Annotated[str, typer.Option("--to", help="The phone number, with + and country code.")],
    template: Annotated[str | None, typer.Option(help="The name of an approved template.")] = None,
    language: Annotated[str, typer.Option(help="The template's language.")] = "en_US",
    var: Annotated[
        list[str] | None, typer.Option("--var", metavar="KEY=VALUE", help="A variable's value, e.g. body.1=Ada.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text instead of a template: within 24 hours of a message.")] = None,
    purpose: Annotated[str | None, typer.Option(help="marketing or utility; as the template says by default.")] = None,
    connection: Annotated[str | None, typer.Option(help="The connection's id, where there are several.")] = None,
    number: Annotated[str | None, typer.Option(help="The sending number, by the provider's id.")] = None,
    key: Annotated[
        str | None, typer.Option(help="The idempotency key: the same key again sends nothing. A new one by default.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Accept one message to one person; a worker sends it."""
    content = None if template is None else {"name": template, "language": language, "variables": _variables(var)}
    if template is None and var:
        raise Invalid("--var needs --template; nothing was sent.", faults=[Fault("--var", "needs --template")])
    new = valid(
        NewMessage, to=to, template=content, text=text, purpose=purpose, connection_id=connection, number_id=number,
        idempotency_key=key or f"cli:{uuid.uuid4()}",
    )  # fmt: skip
    request = MessageRequest(new.idempotency_key or "", "cli", "cli")
    made = for_tenant(tenant, lambda house, tenant_id: house.messaging.singles.send(tenant_id, new, request))
    show(made, as_json, lambda: _table(made))


@message.command("show")
def show_one(message_id: MessageArgument, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """How a message stands."""
    wanted = _id(message_id)
    found = for_tenant(tenant, lambda house, tenant_id: house.messaging.singles.read(tenant_id, wanted))
    show(found, as_json, lambda: _table(found))


@message.command("verify")
def verify(tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """Prove that each single message of the tenant has exactly one outcome. Exit code 1 when the proof fails."""
    proof = for_tenant(tenant, lambda house, tenant_id: house.messaging.singles.verify(tenant_id))
    rows = [(name, getattr(proof, name)) for name in ("messages", "sent", "failed", "skipped", "unknown", "open")]
    lines: list[tuple[str, object]] = [*rows, *(("fault", fault) for fault in proof.faults)]
    show(proof, as_json, lambda: table(("", ""), lines if proof.faults else [*lines, ("holds", "yes")]))
    if not proof.holds:
        raise typer.Exit(1)


def _table(found: SingleMessage) -> object:
    names = (
        "message_id",
        "idempotency_key",
        "address",
        "number_id",
        "purpose",
        "state",
        "outcome",
        "reason",
        "attempts",
    )
    times = ("created_at", "attempted_at", "accepted_at", "delivered_at", "read_at")
    return table(("", found.state), [(name, getattr(found, name)) for name in (*names, *times)])


def _variables(given: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given or ():
        key, sign, value = one.partition("=")
        if not sign or not key:
            raise Invalid(f"--var {one} is no KEY=VALUE; nothing was sent.", faults=[Fault("--var", "KEY=VALUE")])
        found[key] = value
    return found


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text} is no message's id.") from None
