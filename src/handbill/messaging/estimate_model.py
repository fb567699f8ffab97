"""What a campaign will come to, what it came to, and the difference between the two, as values."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from handbill.messaging.plan import State


class EstimateProblem(msgspec.Struct, frozen=True):
    """Something that keeps people from getting the message, or the campaign from being sent."""

    code: str
    """A stable name: the reason that messages would be skipped for, or what is wrong with the campaign."""
    detail: str
    """The same in words."""
    people: int | None = None
    """How many people it concerns; null where it concerns the whole campaign."""
    is_blocking: bool = False
    """Whether the campaign cannot be started before this is put right."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen if the campaign began at `begins_at` and nothing changed until its end."""

    estimated_at: datetime
    """When this was counted."""
    begins_at: datetime
    """When the campaign would begin; consent, suppressions, caps and quiet hours are those of this moment."""
    audience: int
    """How many people would be written down, each address once."""
    ready: int
    """How many of them would be written to."""
    skipped: dict[str, int]
    """How many would be skipped, by the reason that their messages would have."""
    missing: dict[str, int]
    """For each variable, how many of the people skipped with `variable_missing` lack it."""
    too_long: int
    """For how many people the filled text is too long."""
    later: dict[str, int]
    """How many of those ready would have to wait: `quiet_hours` at the beginning, `tier` for another day."""
    unaffordable: int
    """How many of those ready `spend_cap` cannot pay for: the campaign would be paused before them."""
    seconds: int | None
    """How long sending takes at least, at the speed of the tenant and its senders; null while nothing can be sent."""
    price: Decimal
    cost: Decimal
    """Price times the messages that would be sent."""
    currency: str
    within_cap: bool
    """Whether the cost stays within `spend_cap`."""
    problems: list[EstimateProblem]
    """What stands in the way of the campaign or of some of its people, most important first."""
    is_complete: bool
    """Whether everybody was looked at. If not, all figures are of the part of the audience that was."""


class OutcomeDifference(msgspec.Struct, frozen=True):
    """One figure that did not come out as it was estimated."""

    name: str
    """`audience`, `sent`, `open`, `unknown`, `failed:REASON` or `skipped:REASON`."""
    estimated: int
    """What was estimated when the campaign was started."""
    actual: int
    """What it came to so far."""
    explanation: str
    """Where the difference comes from, in words."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The proof for one campaign. `holds`: everybody has exactly one outcome, and each that was not sent a reason."""

    campaign_id: UUID
    state: State
    """The state that the campaign is in."""
    audience: int
    """How many recipients were written down."""
    messages: int
    """How many messages there are for them."""
    sent: int
    """Messages that the provider accepted."""
    failed: int
    """Messages that failed for good."""
    skipped: int
    """Messages that were not sent on purpose."""
    unknown: int
    """Messages that may have been sent: the answer of the provider is missing."""
    open: int
    """Messages that have no outcome yet."""
    twice: int
    """Messages beyond the first to the same address; must be 0."""
    without_reason: int
    """Messages that were not sent and do not say why; must be 0."""
    without_attempt: int
    """Messages that were sent without an attempt on record; must be 0."""
    skipped_though_sent: int
    """Messages that count as skipped and were sent; must be 0."""
    holds: bool
    """Whether everything adds up: each recipient has exactly one outcome."""
    faults: list[str]
    """What does not add up, in words."""
    estimate: Estimate | None
    """What was estimated when the campaign was started; null: it was not started, or could not be estimated then."""
    differences: list[OutcomeDifference]
    """Each figure that differs from the estimate, and why. Empty without an estimate, or when all of it came true."""
