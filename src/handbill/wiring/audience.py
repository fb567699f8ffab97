"""Contacts and messaging meet here: the address book as campaigns see it, and a person forgotten in both."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from handbill.contacts.model import Audience, Channel
from handbill.contacts.model import Recipient as Contact
from handbill.contacts.service import ContactsService, from_whatsapp, spellings
from handbill.infra.postgres import Tx
from handbill.kit.errors import Conflict, NotFound
from handbill.messaging.fields import contact_fields
from handbill.messaging.plan import AudienceSpec
from handbill.messaging.ports import AudiencePage, Recipient, Why
from handbill.messaging.service import MessagingService
from handbill.segments.service import SegmentsService

ZONE_FIELDS = ("time_zone", "timezone", "zone")
"""Attributes of a contact that may say where the person lives."""


class AddressBook:
    """A segment means people; a contact is one of them by its external id, which is a distinct id of the person."""

    def __init__(self, contacts: ContactsService, segments: SegmentsService) -> None:
        self._contacts = contacts
        self._segments = segments

    async def audience(
        self, tenant_id: int, channel: str, spec: AudienceSpec, after: UUID | None, limit: int
    ) -> AudiencePage:
        chosen = Audience(tuple(spec.tags_any), tuple(spec.tags_all), tuple(spec.tags_none), tuple(spec.contact_ids))
        page = await self._contacts.audience(tenant_id, cast(Channel, channel), chosen, after, limit)
        kept = page
        if spec.segment_id is not None:
            names = [one.external_id for one in page if one.external_id]
            inside = await self._inside(tenant_id, spec.segment_id, names)
            kept = [one for one in page if one.external_id in inside]
        return AudiencePage([_recipient(one) for one in kept], page[-1].contact_id if len(page) == limit else None)

    async def _inside(self, tenant_id: int, segment: UUID, names: list[str]) -> set[str]:
        """A segment that is gone is no fault of whoever asks: the campaign's audience is, and that pauses it."""
        try:
            return await self._segments.inside(tenant_id, segment, names)
        except NotFound as error:
            raise Conflict("The audience's segment is gone; nobody was chosen.", code=error.code) from error

    async def recipient(
        self, tenant_id: int, channel: str, *, address: str | None, contact_id: UUID | None
    ) -> Recipient | None:
        found = await self._contacts.recipient(tenant_id, cast(Channel, channel), address, contact_id)
        return None if found is None else Recipient(found.contact_id, found.address)

    async def suppress(
        self, tx: Tx, tenant_id: int, channel: str, address: str, why: Why, until: datetime | None, note: str
    ) -> None:
        await self._contacts.suppress(tenant_id, cast(Channel, channel), address, why, until, note=note, tx=tx)

    async def opt_out(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        await self._contacts.opt_out(tenant_id, cast(Channel, channel), address, source=source, proof=proof, tx=tx)

    async def opt_in(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> bool:
        return await self._contacts.opt_in(
            tenant_id, cast(Channel, channel), address, source=source, proof=proof, tx=tx
        )

    def address(self, channel: str, wire: str) -> str:
        return from_whatsapp(wire)

    def spellings(self, channel: str, address: str) -> tuple[str, ...]:
        return spellings(address)


class Reach:
    """One room of the erasure registry. Messages are found by the address book's word for the person, so it forgets
    only after they did: an erasure that failed between the two is asked for again and still finds them."""

    def __init__(self, contacts: ContactsService, messaging: MessagingService) -> None:
        self._contacts = contacts
        self._messaging = messaging

    async def erase(self, tenant_id: int, subject: str) -> Mapping[str, int]:
        cleared = await self._messaging.erasure.erase(tenant_id, subject)
        return {**cleared, **await self._contacts.erase(tenant_id, subject)}

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        found = await self._contacts.export(tenant_id, subject, most)
        return {**found, **await self._messaging.erasure.export(tenant_id, subject, most)}


def _recipient(one: Contact) -> Recipient:
    own = {
        "name": one.name, "locale": one.locale, "email": one.email, "phone": one.phone, "external_id": one.external_id,
    }  # fmt: skip
    fields = contact_fields(own, one.attributes)
    zone = next((one.attributes[name] for name in ZONE_FIELDS if isinstance(one.attributes.get(name), str)), None)
    return Recipient(one.contact_id, one.address, fields, zone)
