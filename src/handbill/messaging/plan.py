"""Campaigns as values: what a person asks for, what is kept, what is shown."""

from __future__ import annotations

from datetime import datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from handbill.messaging.model import Channel, Content, TemplateSend, Text
from handbill.messaging.render import Binding

State = Literal["draft", "scheduled", "queued", "running", "paused", "completed", "cancelled", "expired"]
MessageState = Literal[
    "pending", "claimed", "sending", "unknown", "accepted", "sent", "failed", "delivered", "read", "skipped"
]
OPEN: tuple[State, ...] = ("scheduled", "queued", "running", "paused")
OVER: tuple[State, ...] = ("completed", "cancelled", "expired")
SENT: tuple[MessageState, ...] = ("accepted", "sent", "delivered", "read")

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Tag = Annotated[str, Meta(min_length=1, max_length=100)]
Tags = Annotated[list[Tag], Meta(max_length=50)]
Digits = Annotated[str, Meta(pattern=r"^[0-9]{1,32}$")]
Zone = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]


class AudienceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who: all that is given must hold. Nothing given means every contact with an address on the channel."""

    segment_id: UUID | None = None
    tags_any: Tags = []
    tags_all: Tags = []
    tags_none: Tags = []
    contact_ids: Annotated[list[UUID], Meta(max_length=10_000)] = []


class Quiet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is sent from `since` until `until`, by the clock of the tenant's zone or of each contact's."""

    since: time
    until: time
    by: Literal["tenant", "contact"] = "tenant"
    zone: Zone | None = None
    """By the tenant's own zone when none is given."""


class PersonCap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `count` messages of any campaign to one address in `hours`; whoever has had them is skipped."""

    count: Annotated[int, Meta(ge=1, le=1_000)]
    hours: Annotated[int, Meta(ge=1, le=8_760)]


class UsedTemplate(msgspec.Struct, frozen=True, tag="template", forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=512)]
    language: Annotated[str, Meta(min_length=1, max_length=20)]


class UsedText(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Free text reaches only people who wrote to us within 24 hours."""

    body: Annotated[str, Meta(min_length=1, max_length=4096)]


class BindingIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    field: Annotated[str, Meta(max_length=200)] | None = None
    fallback: Annotated[str, Meta(max_length=1024)] | None = None


class NewCampaign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    connection_id: UUID
    content: UsedTemplate | UsedText
    numbers: Annotated[list[Digits], Meta(max_length=100)] = []
    """None given: every number of the connection."""
    bindings: Annotated[dict[str, BindingIn], Meta(max_length=100)] = {}
    audience: AudienceSpec = msgspec.field(default_factory=AudienceSpec)
    purpose: Literal["marketing", "utility"] = "marketing"
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    quiet: Quiet | None = None
    person_cap: PersonCap | None = None
    price: Decimal = Decimal(0)
    """What one message is expected to cost."""
    spend_cap: Decimal | None = None
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as it stands."""

    campaign_id: UUID
    name: str
    channel: Channel
    connection_id: UUID
    numbers: list[str]
    content: UsedTemplate | UsedText
    bindings: dict[str, BindingIn]
    audience: AudienceSpec
    purpose: Literal["marketing", "utility", "test"]
    state: State
    reason: str | None
    resume_to: State | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    quiet: Quiet | None
    person_cap: PersonCap | None
    price: Decimal
    spend_cap: Decimal | None
    spent: Decimal
    currency: str
    audience_done: bool
    audience_size: int
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    version: int
    created_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def bound(self) -> dict[str, Binding]:
        return {key: Binding(one.field, one.fallback) for key, one in self.bindings.items()}

    @property
    def wanted_fields(self) -> frozenset[str]:
        """What of a contact the template uses: no more than that is written beside a message."""
        return frozenset(one.field for one in self.bindings.values() if one.field is not None)

    def plain(self) -> Content:
        """The content where nothing has to be filled in."""
        if isinstance(self.content, UsedText):
            return Text(self.content.body)
        return TemplateSend(self.content.name, self.content.language)


class Outcomes(msgspec.Struct, frozen=True):
    """How a campaign's messages stand, by state, and why those that were not sent were not."""

    states: dict[str, int]
    reasons: dict[str, dict[str, int]]


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    message_id: UUID
    address: str
    contact_id: UUID | None
    number_id: str
    state: MessageState
    reason: str | None
    attempts: int
    due_at: datetime
    attempted_at: datetime | None
    settled_at: datetime | None
    wamid: str | None
    accepted_at: datetime | None
    sent_at: datetime | None
    failed_at: datetime | None
    delivered_at: datetime | None
    read_at: datetime | None
    error_code: int | None
    error_details: str | None
    created_at: datetime


class Estimate(msgspec.Struct, frozen=True):
    """Before the first message: how many would go, what they lack, and what it would cost."""

    audience: int
    ready: int
    missing: dict[str, int]
    too_long: int
    price: Decimal
    cost: Decimal
    currency: str
    within_cap: bool
    problems: list[str]
    whole: bool
    """Whether everybody was looked at; false when the audience is larger than the look."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The proof for one campaign. `holds`: everybody has exactly one outcome, and each that was not sent a reason."""

    campaign_id: UUID
    state: State
    audience: int
    messages: int
    sent: int
    failed: int
    skipped: int
    unknown: int
    open: int
    twice: int
    without_reason: int
    without_attempt: int
    skipped_though_sent: int
    holds: bool
    faults: list[str]


def content_json(content: UsedTemplate | UsedText) -> str:
    return msgspec.json.encode(content).decode()


def campaign_of(row: Any) -> Campaign:
    quiet = None
    if row["quiet_from"] is not None:
        quiet = Quiet(row["quiet_from"], row["quiet_to"], row["quiet_by"], row["quiet_zone"])
    cap = None if row["cap_count"] is None else PersonCap(row["cap_count"], row["cap_hours"])
    decode = msgspec.json.decode
    return Campaign(
        **{name: row[name] for name in _SAME},
        numbers=list(row["numbers"]),
        content=decode(row["content_text"], type=UsedTemplate | UsedText),
        bindings=decode(row["bindings_text"], type=dict[str, BindingIn]),
        audience=decode(row["audience_text"], type=AudienceSpec),
        quiet=quiet,
        person_cap=cap,
    )


_SAME = tuple(
    name
    for name in Campaign.__struct_fields__
    if name not in ("numbers", "content", "bindings", "audience", "quiet", "person_cap")
)
