"""`handbill campaign`: what a campaign of messages came to, and the proof that everybody has exactly one outcome."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from handbill.cli.frame import JsonFlag, TenantOption, for_tenant, show, table, with_house
from handbill.kit.errors import Invalid

campaign = typer.Typer(no_args_is_help=True, help="Campaigns of messages: show one, prove one, see who waits.")
CampaignArgument = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]


def mount(app: typer.Typer) -> None:
    app.add_typer(campaign, name="campaign")


@campaign.command("show")
def show_one(campaign_id: CampaignArgument, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """How a campaign stands: messages by state and reason."""
    wanted = _id(campaign_id)
    found = for_tenant(tenant, lambda house, number: house.messaging.campaigns.outcomes(number, wanted))
    rows = [
        (state, count, ", ".join(f"{why} {n}" for why, n in sorted(found.reasons.get(state, {}).items())))
        for state, count in sorted(found.states.items())
    ]
    show(found, as_json, lambda: table(("state", "messages", "why"), rows))


@campaign.command("verify")
def verify(campaign_id: CampaignArgument, tenant: TenantOption, as_json: JsonFlag = False) -> None:
    """Prove that each recipient has exactly one outcome. Exit code 1 when the proof fails."""
    wanted = _id(campaign_id)
    proof = for_tenant(tenant, lambda house, number: house.messaging.campaigns.verify(number, wanted))
    figures = ("audience", "messages", "sent", "failed", "skipped", "unknown", "open", "twice")
    rows = [(name, getattr(proof, name)) for name in figures]
    rows += [("fault", fault) for fault in proof.faults] or [("holds", "yes")]
    show(proof, as_json, lambda: table(("", proof.state), rows))
    if not proof.holds:
        raise typer.Exit(1)


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
