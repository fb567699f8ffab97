"""A campaign's outcome beside the estimate it was started with: which figures differ, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from handbill.messaging.errors import by_code
from handbill.messaging.estimate_model import Estimate, OutcomeDifference
from handbill.messaging.plan import SENT

OPEN = ("pending", "claimed", "sending")
Reasons = Mapping[str, Mapping[str, int]]


def find_differences(
    estimate: Estimate | None, audience: int, states: Mapping[str, int], reasons: Reasons
) -> list[OutcomeDifference]:
    """Every figure that differs. Those of messages add up: what one has too many, the others have too few."""
    if estimate is None:
        return []
    actual = count_outcomes(states, reasons)
    expected = {"sent": estimate.ready, **{f"skipped:{why}": count for why, count in estimate.skipped.items()}}
    rows = [("audience", estimate.audience, audience)]
    rows += [
        (name, expected.get(name, 0), actual.get(name, 0))
        for name in sorted(expected.keys() | actual.keys(), key=_place)
    ]
    part = "" if estimate.is_complete else " The estimate looked at a part of the audience only."
    return [
        OutcomeDifference(name, estimated, count, _explain(name, estimated, count, actual) + part)
        for name, estimated, count in rows
        if estimated != count
    ]


def count_outcomes(states: Mapping[str, int], reasons: Reasons) -> dict[str, int]:
    """Messages by what became of them: sent, unknown, open, and each reason of failed and skipped ones."""
    found = {
        "sent": sum(states.get(state, 0) for state in SENT),
        "unknown": states.get("unknown", 0),
        "open": sum(states.get(state, 0) for state in OPEN),
    }
    for state in ("failed", "skipped"):
        for why, count in reasons.get(state, {}).items():
            found[f"{state}:{why}"] = count
    return {name: count for name, count in found.items() if count}


def _place(name: str) -> tuple[bool, str]:
    return name != "sent", name


def _explain(name: str, estimated: int, actual: int, outcomes: Mapping[str, int]) -> str:
    kind, _, why = name.partition(":")
    if name == "audience":
        return "Contacts joined or left the audience after the estimate, or not all of it is written down yet."
    if name == "sent":
        parts = [f"{other} {count}" for other, count in sorted(outcomes.items()) if other != "sent"]
        if actual > estimated:
            return "More people could be written to than at the time of the estimate."
        return f"What became of the others: {', '.join(parts) or 'they are not in the audience any more'}."
    if name == "open":
        return "These have no outcome yet: they wait for quiet hours, the tier, a retry, or the campaign is paused."
    if name == "unknown":
        return "The provider's answer is missing: they may have been sent. A webhook tells, or they end as failed."
    if kind == "failed":
        return _explain_failure(why)
    return _explain_skip(why)


def _explain_failure(why: str) -> str:
    code = why.removeprefix("provider_")
    if why.startswith("provider_") and code.isdecimal():
        return f"The provider refused them: {by_code(int(code)).says}."
    if why == "not_written":
        return "The provider could not be reached, several times."
    if why == "unknown":
        return "The provider's answer was missing, and no webhook told until the deadline."
    return f"They failed with {why}."


_SKIPS = {
    "person_cap": "Other campaigns wrote to these people after the estimate, or earlier messages left the period.",
    "window_closed": "The 24 hours of some ended before their turn, or some wrote to you in between.",
    "contact_gone": "Contacts were deleted after the estimate.",
    "cancelled": "The campaign was cancelled before their turn.",
    "expired": "The campaign expired before their turn.",
    "erased": "These people were erased.",
    "template_gone": "The template was deleted after the estimate.",
}


def _explain_skip(why: str) -> str:
    if why.startswith("consent_"):
        return "Consent was given or withdrawn after the estimate."
    if why.startswith("suppressed_"):
        return "Addresses were suppressed, or their suppression ended, after the estimate."
    if why in ("variable_missing", "text_too_long"):
        return "Contacts or the template changed after the estimate."
    return _SKIPS.get(why, f"They were skipped with {why}.")
