"""Values that the core, the providers and the pure rules share. Nothing here knows HTTP or SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

Channel = Literal["whatsapp"]

OPAQUE_LIMIT = 512
"""Characters of our own note that a provider carries through a send and brings back with every webhook."""


class Account(msgspec.Struct, frozen=True):
    """One sending number and what it belongs to. The token is not here: `secret` only says where it is kept."""

    tenant_id: int
    number_id: str
    waba_id: str
    secret: str


class Credentials(msgspec.Struct, frozen=True):
    """What `Account.secret` points at, opened for the length of a call. Never logged, never printed."""

    token: str
    app_secret: str | None = None
    old_app_secret: str | None = None
    """The one before it: webhooks that it signed are taken until `old_until_ms`."""
    old_until_ms: int = 0

    def __repr__(self) -> str:
        return "Credentials(...)"


class Text(msgspec.Struct, frozen=True, tag="text"):
    body: str
    preview_url: bool = False


class Media(msgspec.Struct, frozen=True, tag="media"):
    """By the id of an upload, or by a link that the provider fetches itself."""

    kind: Literal["image", "video", "document", "audio", "sticker"]
    media_id: str | None = None
    link: str | None = None
    caption: str | None = None
    filename: str | None = None


class TemplateSend(msgspec.Struct, frozen=True, tag="template"):
    """A template by name and language, its components already filled in (render.py)."""

    name: str
    language: str
    components: tuple[dict[str, Any], ...] = ()


Content = Text | Media | TemplateSend


class Message(msgspec.Struct, frozen=True):
    """One message to one address. `to` is digits with the country code; `opaque` finds our row when a webhook comes."""

    to: str
    content: Content
    opaque: str
    reply_to: str | None = None


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The provider took it and named it. `address` is the recipient as the provider spells it, where it says so."""

    wamid: str
    address: str | None = None
    held: bool = False
    """Taken, but kept back by the provider until it has looked at the template's quality."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The provider's own error: it was read, and nothing was sent. errors.py says what follows from the code."""

    code: int
    details: str = ""
    http_status: int = 400
    subcode: int | None = None


class Unwritten(msgspec.Struct, frozen=True, tag="unwritten"):
    """No byte of the request left us: no name, no address, no connection. Trying again cannot repeat anything."""

    reason: str


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The request may have arrived and no answer tells: UNKNOWN until a webhook does. No machine sends it again."""

    reason: str
    http_status: int | None = None


Outcome = Accepted | Refused | Unwritten | Lost

TemplateState = Literal[
    "APPROVED", "PENDING", "REJECTED", "PAUSED", "DISABLED", "IN_APPEAL", "PENDING_DELETION", "DELETED", "UNKNOWN"
]


class Template(msgspec.Struct, frozen=True):
    """A template as the provider has it. `components` stay as they came: unknown kinds are kept."""

    id: str
    name: str
    language: str
    category: str
    state: TemplateState
    components: tuple[dict[str, Any], ...] = ()
    named: bool = False
    """Whether its variables have names ({{first_name}}) instead of places ({{1}})."""


class NumberInfo(msgspec.Struct, frozen=True):
    """What the provider says about a number: how it looks, how well it does, how fast and how far it may go."""

    number_id: str
    display: str
    verified_name: str = ""
    quality: str = "UNKNOWN"
    per_second: int = 80
    tier: int | None = 250
    """Different people in 24 hours, for the whole portfolio; None means no limit."""


class TokenInfo(msgspec.Struct, frozen=True):
    valid: bool
    scopes: tuple[str, ...] = ()
    ends_at: datetime | None = None
    """When it expires, or its access to data, whichever is first; None for a token that does not end."""
