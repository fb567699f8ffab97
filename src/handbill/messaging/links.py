"""Connections as values: what a person gives, what is shown, and the safe that keeps the secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from handbill.messaging.model import Account, Channel, Credentials
from handbill.messaging.plan import Digits, Name

MAX_NUMBERS = 1_000
"""Numbers of one connection, and so of a campaign."""
Secret = Annotated[str, Meta(min_length=1, max_length=2000, pattern=r"^[\x21-\x7e]+$")]


class Safe(Protocol):
    """Where secrets are kept: seals them for a row, and opens them for a call."""

    def sealed(self, tenant_id: int, secret: str, credentials: Credentials) -> bytes: ...

    def forget(self, tenant_id: int, secret: str) -> None: ...

    def lend(self, tenant_id: int, secret: str, credentials: Credentials) -> None: ...

    async def credentials(self, account: Account) -> Credentials: ...


TokenState = Literal["valid", "dead"]
TokenEnd = Annotated[
    datetime,
    Meta(tz=True, description="When the token ends, if you know. What the provider itself tells takes its place."),
]


class NewConnection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The four values of a WhatsApp number, as its provider shows them."""

    name: Name
    waba_id: Digits
    numbers: Annotated[list[Digits], Meta(min_length=1, max_length=MAX_NUMBERS)]
    token: Secret
    app_secret: Secret
    portfolio: Digits | None = None
    """Accounts of one business share its tier: give the same id to all of them."""
    token_ends_at: TokenEnd | None = None


class ConnectionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | UnsetType = UNSET
    portfolio: Digits | UnsetType = UNSET
    token: Secret | UnsetType = UNSET
    app_secret: Secret | UnsetType = UNSET
    """The secret of the provider's app, which proves webhooks. The one before it is valid for another day."""
    token_ends_at: TokenEnd | UnsetType | None = UNSET
    """Left out beside a new token, it is what the provider tells of that token."""

    def end_after(self, before: datetime | None) -> datetime | None:
        """When the token ends after this change, where the provider tells no end."""
        if self.token_ends_at is not UNSET:
            return self.token_ends_at
        return before if self.token is UNSET else None


class NewNumber(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number_id: Digits


class NumberView(msgspec.Struct, frozen=True):
    number_id: str
    display: str
    """The phone number as people read it."""
    quality: str
    """The provider's rating of the number, e.g. GREEN."""
    per_second: int
    """Messages a second that this number may send."""
    tier: int | None
    """To how many people a day the business may write first; null: not limited."""
    paused_until: datetime | None
    """Until when nothing is sent from this number; null: it is not paused."""
    pause_reason: str | None
    """Why it is paused; null if it is not."""


class Connection(msgspec.Struct, frozen=True):
    connection_id: UUID
    name: str
    channel: Channel
    waba_id: str
    portfolio: str
    numbers: list[NumberView]
    """The sending numbers of the connection and how they stand."""
    webhook: str
    """The path of this connection's webhook."""
    webhook_url: str | None
    """Its whole address, to give to the provider; null while HANDBILL_API__PUBLIC_URL is not set."""
    verify_token: str
    """What to give to the provider beside the webhook's address: it proves that the subscription is yours."""
    version: int
    created_at: datetime
    token_state: TokenState = "valid"  # noqa: S105 - a state, not a password
    """`dead`: the provider refuses the token. Nothing is sent until there is a new one."""
    token_note: str | None = None
    """Why the provider refuses the token; null while it does not."""
    token_ends_at: datetime | None = None
    """When the token ends; null: never, or not known."""
    token_checked_at: datetime | None = None
    """When the provider was last asked for the token's end; null: never."""


class TemplateView(msgspec.Struct, frozen=True):
    connection_id: UUID
    name: str
    """The name of the template at the provider."""
    language: str
    template_id: str
    """The provider's id of the template."""
    category: str
    """The provider's category, e.g. MARKETING or UTILITY."""
    state: str
    """The provider's verdict; only APPROVED templates can be sent."""
    components: list[dict[str, object]]
    """The parts of the template as the provider has them."""
    named: bool
    """Whether its variables have names; else they are numbered."""
    reason: str
    """Why the provider rejected or paused it; empty if it did not."""
    changed_at: datetime
    """When it was last read from the provider, or when a notice changed its state."""


class Switch(msgspec.Struct, frozen=True):
    """Whether anything of this tenant is sent at all, and how fast."""

    stopped: bool = False
    """Whether nothing at all is sent for this tenant."""
    reason: str | None = None
    """Why it is stopped; null while it is not."""
    per_second: int | None = None
    """Messages a second for the whole tenant; 0 is no limit but the numbers' own, null is what the tier says."""
    updated_at: datetime | None = None


class NewSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stopped: bool
    """True stops all sending of this tenant; false lets it go on."""
