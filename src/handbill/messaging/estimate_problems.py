"""What an estimate's counts mean: problems by name, and how far and how long sending goes. Pure."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec

from handbill.messaging.estimate_model import Estimate, EstimateProblem
from handbill.messaging.plan import Campaign

DAY_S = 86_400


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How fast and how far the campaign's senders may go, and what stops them."""

    portfolio: str
    is_stopped: bool
    is_token_dead: bool
    senders: int
    paused_senders: int
    per_second: int
    tenant_per_second: int
    """0: no limit but the senders' own."""
    tier: int | None
    """Different people in 24 hours; None: no limit."""
    reached: int
    """How many of them are used already."""


class Sending(msgspec.Struct, frozen=True):
    """What the limits make of the people who are ready."""

    over_tier: int
    unaffordable: int
    seconds: int | None


def plan_sending(campaign: Campaign, limits: Limits, *, ready: int, new: int) -> Sending:
    """`ready` people, `new` of whom would take a place in the tier."""
    over = 0 if limits.tier is None else max(new - max(limits.tier - limits.reached, 0), 0)
    per_second = limits.per_second
    if limits.tenant_per_second:
        per_second = min(per_second, limits.tenant_per_second)
    seconds = None if per_second == 0 else -(-ready // per_second)
    if seconds is not None and limits.tier is not None and over:
        seconds = max(seconds, -(-over // limits.tier) * DAY_S)
    return Sending(over, max(ready - _affordable(campaign, ready), 0), seconds)


def _affordable(campaign: Campaign, ready: int) -> int:
    if campaign.spend_cap is None or campaign.price == 0:
        return ready
    left = max(campaign.spend_cap - campaign.spent, Decimal(0))
    return int(left // campaign.price)


def find_problems(campaign: Campaign, estimate: Estimate, limits: Limits) -> list[EstimateProblem]:
    """What stands in the way, but for the template's own problems: the whole campaign first, then groups of people."""
    found = _of_the_campaign(campaign, estimate, limits)
    found += [
        EstimateProblem(reason, describe_skip(reason), people) for reason, people in sorted(estimate.skipped.items())
    ]
    if estimate.later["tier"]:
        detail = f"beyond the {limits.tier} new people a day that the provider allows; they get it on a later day"
        found.append(EstimateProblem("tier", detail, estimate.later["tier"]))
    if estimate.later["quiet_hours"]:
        found.append(
            EstimateProblem("quiet_hours", "in their quiet hours when it begins", estimate.later["quiet_hours"])
        )
    if estimate.unaffordable:
        detail = "spend_cap does not pay for them; the campaign pauses before them"
        found.append(EstimateProblem("spend_cap", detail, estimate.unaffordable))
    return found


def _of_the_campaign(campaign: Campaign, estimate: Estimate, limits: Limits) -> list[EstimateProblem]:
    found = []
    if estimate.audience == 0:
        found.append(EstimateProblem("audience_empty", "nobody is in the audience"))
    elif estimate.ready == 0:
        found.append(EstimateProblem("nobody_ready", "everybody in the audience would be skipped"))
    if limits.is_stopped:
        found.append(EstimateProblem("sending_stopped", "sending is stopped for this tenant; switch it on again"))
    if limits.is_token_dead:
        found.append(EstimateProblem("token_dead", "the provider refuses the connection's token; give it a new one"))
    if limits.senders < len(campaign.numbers):
        missing = len(campaign.numbers) - limits.senders
        found.append(
            EstimateProblem("senders_gone", f"{missing} of the campaign's numbers belong to the connection no more")
        )
    if limits.paused_senders:
        found.append(EstimateProblem("senders_paused", f"{limits.paused_senders} of the campaign's numbers are paused"))
    if campaign.expires_at is not None and estimate.seconds is not None:
        ends = estimate.begins_at + timedelta(seconds=estimate.seconds)
        if ends > campaign.expires_at:
            found.append(EstimateProblem("expires_before_end", "the campaign expires before everybody is written to"))
    if not estimate.is_complete:
        found.append(EstimateProblem("estimate_partial", "the audience is larger than an estimate looks at"))
    return found


_SKIPS = {
    "consent_missing": "have not agreed to messages on this channel",
    "consent_denied": "do not want messages on this channel",
    "contact_gone": "are deleted",
    "person_cap": "have had as many messages as person_cap allows",
    "window_closed": "have not written to this number in the last 24 hours, so free text may not be sent to them",
    "variable_missing": "lack a value for a variable, and there is no fallback",
    "text_too_long": "have values with which the text grows too long",
    "template_gone": "cannot get it because the template is not known",
}


def describe_skip(reason: str) -> str:
    """The reason of a skipped message, as the end of a sentence about people."""
    if reason.startswith("suppressed_"):
        return f"have a suppressed address ({reason.removeprefix('suppressed_')})"
    return _SKIPS.get(reason, reason)
