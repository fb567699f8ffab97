"""`handbill campaign`: drafts, what a campaign of messages will come to, and what it came to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import msgspec
import typer

from handbill.cli.frame import JsonFlag, TenantOption, show, table, with_house
from handbill.kit.errors import Invalid

if TYPE_CHECKING:
    from handbill.messaging.service import MessagingService, NewOptOutWords, OptOutWords
    from handbill.wiring.house import House

T = TypeVar("T")
campaign = typer.Typer(no_args_is_help=True, help="Campaigns of messages: drafts, estimates, outcomes, opt-out words.")
CampaignArgument = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]
IfVersionOption = Annotated[int | None, typer.Option("--if-version", help="Only if it still has this version.")]
ACTOR = "cli"


def mount(app: typer.Typer) -> None:
    app.add_typer(campaign, name="campaign")


def _of(tenant: str, verb: Callable[[MessagingService, int], Awaitable[T]]) -> T:
    """Find the tenant, then do one thing with its campaigns."""

    async def work(house: House) -> T:
        return await verb(house.messaging, (await house.tenants.find_tenant(tenant)).tenant_id)

    return with_house(work)


@campaign.command("show")
def show_one(campaign_id: CampaignArgument, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """How a campaign stands: messages by state and reason."""
    wanted = _id(campaign_id)
    found = _of(tenant, lambda messaging, number: messaging.campaigns.outcomes(number, wanted))
    rows = [
        (state, count, ", ".join(f"{why} {n}" for why, n in sorted(found.reasons.get(state, {}).items())))
        for state, count in sorted(found.states.items())
    ]
    show(found, as_json, lambda: table(("state", "messages", "why"), rows))


@campaign.command("estimate")
def estimate(campaign_id: CampaignArgument, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """What would happen if it began now: who would be skipped and why, how long it takes, what it costs."""
    wanted = _id(campaign_id)
    found = _of(tenant, lambda messaging, number: messaging.campaigns.estimate(number, wanted))
    rows: list[tuple[str, object, str]] = [
        ("audience", found.audience, "" if found.is_complete else "looked at; there are more"),
        ("ready", found.ready, f"{found.cost} {found.currency}"),
    ]
    rows += [
        (problem.code, "" if problem.people is None else problem.people, problem.detail) for problem in found.problems
    ]
    show(found, as_json, lambda: table(("", "people", ""), rows))


@campaign.command("verify")
def verify(campaign_id: CampaignArgument, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """Prove that each recipient has exactly one outcome, and compare with the estimate. Exit code 1 when it fails."""
    wanted = _id(campaign_id)
    proof = _of(tenant, lambda messaging, number: messaging.campaigns.verify(number, wanted))
    figures = ("audience", "messages", "sent", "failed", "skipped", "unknown", "open", "twice")
    rows: list[tuple[str, object, str]] = [(name, getattr(proof, name), "") for name in figures]
    rows += [("fault", fault, "") for fault in proof.faults] or [("holds", "yes", "")]
    rows += [(one.name, one.actual, f"estimated {one.estimated}. {one.explanation}") for one in proof.differences] or [
        ("estimate", "none" if proof.estimate is None else "all came true", "")
    ]
    show(proof, as_json, lambda: table(("", proof.state, ""), rows))
    if not proof.holds:
        raise typer.Exit(1)


@campaign.command("edit")
def edit(
    campaign_id: CampaignArgument,
    tenant: TenantOption,
    change: Annotated[
        str, typer.Option(help='What changes, as JSON: {"name": "Autumn"}; as the PATCH route takes it.')
    ],
    if_version: IfVersionOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a draft: what is given and nothing else."""
    from handbill.messaging.service import CampaignPatch

    wanted = _id(campaign_id)
    try:
        patch = msgspec.json.decode(change, type=CampaignPatch)
    except msgspec.DecodeError as error:
        raise Invalid(f"The change cannot be taken: {error}. Nothing was changed.") from None
    found = _of(
        tenant,
        lambda messaging, number: messaging.drafts.change(number, wanted, patch, actor=ACTOR, version=if_version),
    )
    show(found, as_json, lambda: f"{found.name} is changed (version {found.version}).")


@campaign.command("clone")
def clone(
    campaign_id: CampaignArgument,
    tenant: TenantOption,
    name: Annotated[str | None, typer.Option(help="The copy's name.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """A draft like this campaign, whatever its state."""
    wanted = _id(campaign_id)
    if name is not None and not 1 <= len(name) <= 200:
        raise Invalid("A name has 1 to 200 characters. Nothing was copied.")
    made = _of(tenant, lambda messaging, number: messaging.drafts.clone(number, wanted, name, actor=ACTOR))
    show(made, as_json, lambda: f"{made.name} is a draft: {made.campaign_id}")


@campaign.command("delete")
def delete(
    campaign_id: CampaignArgument,
    tenant: TenantOption,
    if_version: IfVersionOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete a draft. What was started stays: it is the record of who was written to."""
    wanted = _id(campaign_id)
    _of(tenant, lambda messaging, number: messaging.drafts.delete(number, wanted, actor=ACTOR, version=if_version))
    show({"campaign_id": campaign_id, "status": "deleted"}, as_json, lambda: "The draft is deleted.")


@campaign.command("words")
def words(
    tenant: TenantOption,
    stop: Annotated[list[str] | None, typer.Option(help="An opt-out word of your own; may be repeated.")] = None,
    start: Annotated[list[str] | None, typer.Option(help="An opt-in word of your own; may be repeated.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A default word that does nothing; may be repeated.")
    ] = None,
    language: Annotated[list[str] | None, typer.Option(help="Whose defaults count, e.g. de; may be repeated.")] = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="Take all own words and choices away first.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the opt-out and opt-in words of a tenant. Each list that is given takes the place of what was there."""
    given = {"stop": stop, "start": start, "without": without, "languages": language}
    changes = {name: value for name, value in given.items() if value}

    async def verb(messaging: MessagingService, number: int) -> OptOutWords:
        before = await messaging.opt_out_words.read(number)
        if not changes and not defaults:
            return before
        kept = {} if defaults else {name: getattr(before, name) for name in given}
        new = _new_words({**kept, **changes})
        return await messaging.opt_out_words.replace(number, new, actor=ACTOR, version=before.version)

    found = _of(tenant, verb)
    rows = [("stop", ", ".join(found.all_stop)), ("start", ", ".join(found.all_start))]
    show(found, as_json, lambda: table(("", "words"), rows))


def _new_words(fields: dict[str, object]) -> NewOptOutWords:
    from handbill.cli.frame import valid
    from handbill.messaging.service import NewOptOutWords

    return valid(NewOptOutWords, **fields)


@campaign.command("fairness")
def fairness(
    window: Annotated[int, typer.Option(min=10, max=3600, help="Seconds to look back.")] = 60, as_json: JsonFlag = False
) -> None:
    """Rate, share and wait of every tenant that sent in the last while, and Jain's index."""
    found = with_house(lambda house: house.messaging.fairness.shares(window))
    rows = [
        (
            one.tenant_id,
            one.messages,
            f"{one.rate:.2f}",
            f"{one.share or 0:.3f}",
            f"{one.wait_s:.2f}",
            f"{one.wait_p95_s:.2f}",
        )
        for one in found.tenants
    ]
    columns = ("tenant", "messages", "a second", "share", "mean wait s", "p95 wait s")
    show(found, as_json, lambda: table(columns, [*rows, ("jain", "", "", f"{found.jain or 0:.3f}", "", "")]))


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"{text} is no campaign's id.") from None
