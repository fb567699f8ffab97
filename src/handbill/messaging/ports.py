"""What this room asks of the rooms below it. The wiring hands in who answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from handbill.infra.postgres import Tx
from handbill.messaging.plan import AudienceSpec

Why = Literal["opt_out", "bounce", "complaint", "invalid", "manual"]
"""Why an address is suppressed, in the words of the contacts' room."""


class Recipient(msgspec.Struct, frozen=True):
    """One person of an audience: the address on the channel, and the fields that a template may use."""

    contact_id: UUID | None
    address: str
    fields: dict[str, Any] = {}
    zone: str | None = None


class AudiencePage(msgspec.Struct, frozen=True):
    """A page, and where the next one begins; None at the end. A page may be empty and not the last."""

    recipients: list[Recipient]
    after: UUID | None


class Contacts(Protocol):
    """The address book as campaigns see it. Consent and suppression are asked in SQL, by messaging.may_not_send."""

    async def audience(
        self, tenant_id: int, channel: str, spec: AudienceSpec, after: UUID | None, limit: int
    ) -> AudiencePage: ...

    async def recipient(
        self, tenant_id: int, channel: str, *, address: str | None, contact_id: UUID | None
    ) -> Recipient | None:
        """One person by a number as a person writes it, or by contact; None when there is no such contact with an
        address on the channel. A number that no contact has is a recipient without one. Raises Invalid for no number.
        """
        ...

    async def suppress(
        self, tx: Tx, tenant_id: int, channel: str, address: str, why: Why, until: datetime | None, note: str
    ) -> None: ...

    async def opt_out(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None: ...

    async def opt_in(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> bool:
        """Lift the person's own earlier opt-out; false where there was none. Consent that was never given stays so."""
        ...

    def address(self, channel: str, wire: str) -> str:
        """The normalised address behind a provider's spelling of it."""
        ...

    def spellings(self, channel: str, address: str) -> tuple[str, ...]:
        """Every way a provider may spell the address, itself included: to find it in what came."""
        ...
