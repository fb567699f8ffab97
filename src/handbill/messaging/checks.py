"""What is refused before it is kept, and what a proof says. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from handbill.kit import pages
from handbill.kit.errors import Fault, Invalid
from handbill.kit.zones import find_zone
from handbill.messaging.estimate_model import Estimate, OutcomeDifference, Verified
from handbill.messaging.fields import find_fault
from handbill.messaging.plan import Campaign, NewCampaign, UsedText

FAR = 366 * 2
MOST_MONEY = Decimal(1_000_000_000)


def after_id(cursor: str | None) -> UUID | None:
    """The id inside a cursor of a list that is ordered by id."""
    if cursor is None:
        return None
    (text,) = pages.decode(cursor, [str])
    try:
        return UUID(str(text))
    except ValueError:
        raise Invalid(
            "The cursor is not one of ours; start again without it.",
            code="BAD_CURSOR",
            faults=[Fault("cursor", "not a cursor of this list")],
        ) from None


def plain(field: str, text: str | None) -> list[Fault]:
    """Whether a text can be kept at all."""
    if text is not None and ("\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)):
        return [Fault(field, "holds a character that no text can hold")]
    return []


def refuse(faults: list[Fault], what: str = "nothing was kept") -> None:
    if faults:
        raise Invalid(f"The request is not valid; {what}.", faults=faults)


def time_faults(name: str, at: datetime | None, now: datetime) -> list[Fault]:
    """The fault of a campaign's time, if it has one."""
    if at is None or (at.tzinfo is not None and abs((at - now).days) <= FAR):
        return []
    return [Fault(name, "a time with its zone, at most two years away")]


def new_campaign(new: NewCampaign, now: datetime) -> None:
    faults = plain("name", new.name)
    faults += time_faults("scheduled_at", new.scheduled_at, now) + time_faults("expires_at", new.expires_at, now)
    if not faults and new.expires_at is not None and new.expires_at <= max(new.scheduled_at or now, now):
        faults.append(Fault("expires_at", "after now and after scheduled_at"))
    if isinstance(new.content, UsedText):
        faults += plain("content.body", new.content.body)
    else:
        faults += plain("content.name", new.content.name) + plain("content.language", new.content.language)
    for key, binding in new.bindings.items():
        if len(key) > 100 or plain("bindings", key):
            faults.append(Fault("bindings", "a key is the name of a variable"))
        faults += plain(f"bindings.{key[:50]}", binding.field) + plain(f"bindings.{key[:50]}", binding.fallback)
        if binding.field is not None and (fault := find_fault(binding.field)) is not None:
            faults.append(Fault(f"bindings.{key[:50]}.field", f"{binding.field[:50]!r} {fault[:300]}"))
    for tag in (*new.audience.tags_any, *new.audience.tags_all, *new.audience.tags_none):
        faults += plain("audience", tag)
    if new.quiet is not None:
        if new.quiet.since.tzinfo is not None or new.quiet.until.tzinfo is not None:
            faults.append(Fault("quiet", "times of day without a zone; the zone is its own field"))
        if new.quiet.zone is not None and not is_zone(new.quiet.zone):
            faults.append(Fault("quiet.zone", "is no time zone"))
    for name, amount, places in (("price", new.price, 6), ("spend_cap", new.spend_cap or Decimal(0), 4)):
        faults += _money(name, amount, places)
    if new.spend_cap is not None and not new.price:
        faults.append(Fault("price", "a spend cap needs the price of a message"))
    refuse(faults, "no campaign was made")


def _money(name: str, amount: Decimal, places: int) -> list[Fault]:
    """An amount that its column can hold as it is: no fraction of it is lost without a word."""
    if not amount.is_finite() or not 0 <= amount <= MOST_MONEY or amount != round(amount, places):
        return [Fault(name, f"between 0 and 1,000,000,000, with at most {places} decimals")]
    return []


def is_zone(name: str) -> bool:
    return find_zone(name) is not None


def verified(
    campaign: Campaign, row: dict[str, Any], estimate: Estimate | None, differences: list[OutcomeDifference]
) -> Verified:
    faults: list[str] = []
    if row["twice"]:
        faults.append(f"{row['twice']} recipients have more than one row")
    if row["without_reason"]:
        faults.append(f"{row['without_reason']} messages were not sent and do not say why")
    if row["without_attempt"]:
        faults.append(f"{row['without_attempt']} messages are sent without an attempt")
    if row["skipped_though_sent"]:
        faults.append(f"{row['skipped_though_sent']} messages are skipped and were sent")
    if campaign.audience_done and row["messages"] != campaign.audience_size:
        faults.append(f"{campaign.audience_size} recipients were written down and {row['messages']} have a row")
    outcomes = row["sent"] + row["failed"] + row["skipped"] + row["unknown"] + row["open"]
    if outcomes != row["messages"]:
        faults.append(f"{outcomes} outcomes for {row['messages']} recipients")
    if campaign.state in ("completed", "cancelled", "expired") and row["open"]:
        faults.append(f"the campaign is {campaign.state} and {row['open']} messages are still open")
    return Verified(
        campaign_id=campaign.campaign_id, state=campaign.state, audience=campaign.audience_size, holds=not faults,
        faults=faults, estimate=estimate, differences=differences, **row,
    )  # fmt: skip
