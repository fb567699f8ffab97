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
    """Only people of this segment."""
    tags_any: Tags = []
    """Only contacts with at least one of these tags."""
    tags_all: Tags = []
    """Only contacts with all of these tags."""
    tags_none: Tags = []
    """Only contacts with none of these tags."""
    contact_ids: Annotated[list[UUID], Meta(max_length=10_000)] = []
    """Only these contacts, at most 10,000."""


class Quiet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is sent from `since` until `until`, by the clock of the tenant's zone or of each contact's."""

    since: time
    """The time of day at which quiet begins, without a zone."""
    until: time
    """The time of day at which quiet ends, without a zone."""
    by: Literal["tenant", "contact"] = "tenant"
    """Whose clock decides: the tenant's, or that of each contact."""
    zone: Zone | None = None
    """The time zone of the clock, by its IANA name; null: the tenant's own."""


class PersonCap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `count` messages of any campaign to one address in `hours`; whoever has had them is skipped."""

    count: Annotated[int, Meta(ge=1, le=1_000)]
    """At most so many messages to one address."""
    hours: Annotated[int, Meta(ge=1, le=8_760)]
    """The rolling window in hours."""


class UsedTemplate(msgspec.Struct, frozen=True, tag="template", forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=512)]
    """The name of an approved template of the connection."""
    language: Annotated[str, Meta(min_length=1, max_length=20)]
    """The language of the template, e.g. pt_BR."""


class UsedText(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Free text reaches only people who wrote to us within 24 hours."""

    body: Annotated[str, Meta(min_length=1, max_length=4096)]
    """The text of the message."""


class BindingIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    field: Annotated[str, Meta(max_length=200)] | None = None
    """The field of the contact that fills the variable: `name`, `first_name`, `last_name`, `email`, `phone`,
    `external_id`, `locale` or `attributes.NAME`; null: always `fallback`."""
    fallback: Annotated[str, Meta(max_length=1024)] | None = None
    """What fills it where the contact lacks the field; null: the message is skipped."""


class NewCampaign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    connection_id: UUID
    content: UsedTemplate | UsedText
    numbers: Annotated[list[Digits], Meta(max_length=1000)] = []
    """The sending numbers, by the provider's ids; none given: every number of the connection."""
    bindings: Annotated[dict[str, BindingIn], Meta(max_length=100)] = {}
    audience: AudienceSpec = msgspec.field(default_factory=AudienceSpec)
    purpose: Literal["marketing", "utility"] = "marketing"
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    quiet: Quiet | None = None
    person_cap: PersonCap | None = None
    price: Decimal = Decimal(0)
    """What one message is expected to cost, as a decimal string."""
    spend_cap: Decimal | None = None
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as it stands."""

    campaign_id: UUID
    name: str
    channel: Channel
    """The channel that its messages go over."""
    connection_id: UUID
    numbers: list[str]
    content: UsedTemplate | UsedText
    bindings: dict[str, BindingIn]
    audience: AudienceSpec
    purpose: Literal["marketing", "utility", "test"]
    state: State
    """Where the campaign is on its way from draft to its end."""
    reason: str | None
    """Why it was paused or ended early; null if it was not."""
    resume_to: State | None
    """The state to which resuming a paused campaign leads; null while it is not paused."""
    scheduled_at: datetime | None
    expires_at: datetime | None
    quiet: Quiet | None
    person_cap: PersonCap | None
    price: Decimal
    spend_cap: Decimal | None
    spent: Decimal
    """Price times the messages that were or may have been sent."""
    currency: str
    audience_done: bool
    """Whether all recipients are written down."""
    audience_size: int
    """How many recipients are written down so far."""
    queued_at: datetime | None
    """When it was started; null: not yet."""
    started_at: datetime | None
    ended_at: datetime | None
    """When it was completed, cancelled or expired; null: not yet."""
    version: int
    created_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def bound(self) -> dict[str, Binding]:
        return {key: Binding(one.field, one.fallback) for key, one in self.bindings.items()}

    @property
    def is_free_text(self) -> bool:
        return isinstance(self.content, UsedText)

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
    """How many messages are in each state."""
    reasons: dict[str, dict[str, int]]
    """For each state, how many messages have which reason."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    message_id: UUID
    """The id of the message."""
    address: str
    contact_id: UUID | None
    number_id: str
    state: MessageState
    """Where the message is on its way from pending to read."""
    reason: str | None
    attempts: int
    due_at: datetime
    """Before this time it is not sent."""
    attempted_at: datetime | None
    """When it was last attempted; null: not yet."""
    settled_at: datetime | None
    """When its outcome was recorded; null: there is none yet."""
    wamid: str | None
    """WhatsApp's id of the message; null before it was accepted."""
    accepted_at: datetime | None
    """When the provider took it; null: not yet."""
    sent_at: datetime | None
    """When the provider sent it on; null: not yet known."""
    failed_at: datetime | None
    delivered_at: datetime | None
    """When it reached the phone; null: not yet known."""
    read_at: datetime | None
    """When the person read it; null: not yet known."""
    error_code: int | None
    """The provider's error code; null without an error."""
    error_details: str | None
    """The provider's explanation of the error."""
    created_at: datetime


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
