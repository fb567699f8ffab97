"""A single message as a value: what is asked for, what is kept of it, what is shown."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from handbill.messaging.model import Channel
from handbill.messaging.plan import Digits, MessageState, UsedTemplate

Purpose = Literal["marketing", "utility"]
Source = Literal["api", "inbox", "job", "cli"]
Outcome = Literal["sent", "failed", "skipped"]
Key = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[\x20-\x7e]+$")]
VariableName = Annotated[str, Meta(min_length=1, max_length=100)]
Value = Annotated[str, Meta(min_length=1, max_length=1024)]
Body = Annotated[str, Meta(min_length=1, max_length=4096)]
DAY_S = 86_400


class TemplateMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An approved template with a value for each of its variables."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    """The name of an approved template of the connection."""
    language: Annotated[str, Meta(min_length=1, max_length=20)]
    """The language of the template, e.g. pt_BR."""
    variables: Annotated[dict[VariableName, Value], Meta(max_length=100)] = {}
    """The value of each variable by its key, e.g. `body.1`, `header.image` or `button.0.1`."""


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One message to one person: a template at any time, or text within 24 hours of the person's own message."""

    to: Annotated[str, Meta(min_length=3, max_length=40)] | None = None
    """The phone number, with + and country code or as the tenant's default region dials it. Or give `contact_id`."""
    contact_id: UUID | None = None
    """The contact to write to, instead of `to`."""
    template: TemplateMessage | None = None
    """The template to send. Or give `text`."""
    text: Body | None = None
    """The text to send, instead of `template`: only within 24 hours of the person's own message to the same number."""
    purpose: Purpose | None = None
    """Why it is written: marketing needs the person's consent, utility only that nothing was denied. null: as the
    template's category says; text is utility."""
    connection_id: UUID | None = None
    """The connection to send from; null: the only one, or for text the one that the person wrote to."""
    number_id: Digits | None = None
    """The sending number by the provider's id; null: the one that the person wrote to last, else any."""
    reply_to: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """The provider's id of the person's message that this one answers; it is quoted above it."""
    ttl_s: Annotated[int, Meta(ge=30, le=7 * DAY_S)] = DAY_S
    """If it could not be sent within so many seconds, it is skipped with the reason `expired`."""
    idempotency_key: Key | None = None
    """Names this message: the same key again sends nothing more. The header `Idempotency-Key` says the same."""


class NewReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An answer to a message in the inbox."""

    wamid: Annotated[str, Meta(min_length=1, max_length=300)]
    """The id of the person's message, as the inbox shows it."""
    text: Body | None = None
    """The text to send, within 24 hours of the person's last message. Or give `template`."""
    template: TemplateMessage | None = None
    """The template to send, instead of `text`."""
    quote: bool = True
    """Whether the person's message is quoted above the answer."""
    ttl_s: Annotated[int, Meta(ge=30, le=7 * DAY_S)] = DAY_S
    """If it could not be sent within so many seconds, it is skipped with the reason `expired`."""
    idempotency_key: Key | None = None
    """Names this answer: the same key again sends nothing more. The header `Idempotency-Key` says the same."""


class SingleMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A single message as it stands."""

    message_id: UUID
    """The id of the message."""
    idempotency_key: str
    """The key that it was accepted under."""
    outcome: Outcome | None
    """How it ended: sent, failed or skipped; null: it has no outcome yet."""
    state: MessageState
    """Where the message is on its way from pending to read."""
    reason: str | None
    address: str
    contact_id: UUID | None
    channel: Channel
    """The channel that it goes over."""
    connection_id: UUID
    """The connection that it is sent from."""
    number_id: str
    template: TemplateMessage | None
    """The template that is sent; null: it is text."""
    text: str | None
    """The text that is sent; null: it is a template, or the person was erased."""
    purpose: Purpose
    reply_to: str | None
    """The provider's id of the message that it answers; null: none."""
    source: Source
    """Where it came from: the API, an answer from the inbox, a job, or the command line."""
    attempts: int
    """How often it was attempted."""
    expires_at: datetime
    """After this time it is not sent any more."""
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
    """When the provider reported that it failed; null: it did not."""
    delivered_at: datetime | None
    """When it reached the phone; null: not yet known."""
    read_at: datetime | None
    """When the person read it; null: not yet known."""
    error_code: int | None
    """The provider's error code; null without an error."""
    error_details: str | None
    """The provider's explanation of the error."""
    created_by: str
    """Who asked for it."""
    created_at: datetime


class VerifiedSingles(msgspec.Struct, frozen=True, kw_only=True):
    """The proof for a tenant's single messages: each key has one message, and each message at most one outcome."""

    messages: int
    """How many single messages were accepted."""
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
    holds: bool
    """Whether everything adds up."""
    faults: list[str]
    """What does not add up, in words."""


class KeptText(msgspec.Struct, frozen=True, tag="text"):
    """That a message is text. The words are in the row's fields, which an erasure empties."""


Kept = UsedTemplate | KeptText
TEXT = "text"
"""The field that holds the words of a text."""
_SENT = frozenset({"accepted", "sent", "delivered", "read"})


def outcome_of(state: MessageState) -> Outcome | None:
    if state in _SENT:
        return "sent"
    return state if state in ("failed", "skipped") else None


def message_of(row: Any) -> SingleMessage:
    """The value behind a row of `read_single` or `list_singles`."""
    content = msgspec.json.decode(row["content"], type=Kept)
    fields: dict[str, str] = msgspec.json.decode(row["fields"])
    template = None
    if isinstance(content, UsedTemplate):
        template = TemplateMessage(content.name, content.language, fields)
    return SingleMessage(
        **{name: row[name] for name in _SAME},
        outcome=outcome_of(row["state"]),
        template=template,
        text=None if template is not None else fields.get(TEXT),
    )


_SAME = tuple(name for name in SingleMessage.__struct_fields__ if name not in ("outcome", "template", "text"))
