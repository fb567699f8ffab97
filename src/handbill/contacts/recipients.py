"""One person on one channel: by contact, or by an address as a person writes it."""

from __future__ import annotations

from uuid import UUID

from handbill.contacts import phones, store
from handbill.contacts.book import address_of
from handbill.contacts.imports import DefaultRegion
from handbill.contacts.model import Channel, FoundRecipient
from handbill.infra.postgres import Database
from handbill.kit.errors import Fault, Invalid


class RecipientFinder:
    """Finds whom one message is for."""

    def __init__(self, database: Database, default_region: DefaultRegion) -> None:
        self._database = database
        self._default_region = default_region

    async def find(
        self, tenant_id: int, channel: Channel, address: str | None, contact_id: UUID | None
    ) -> FoundRecipient | None:
        """None for a contact that is not there or has no address on the channel. Raises Invalid for what is no address.

        Of several contacts with one address the one that agreed to the channel speaks for it, then the oldest.
        """
        if contact_id is not None:
            return await self._by_contact(tenant_id, channel, contact_id)
        text = address or ""
        region = None if text.startswith("+") or channel == "email" else await self._default_region(tenant_id)
        wanted = _normalise(channel, text, region)
        numbers, email = (phones.forms(wanted), None) if channel != "email" else ((), wanted)
        async with self._database.tenant(tenant_id) as tx:
            known = await store.recipient_by_address(tx, tenant_id, channel, numbers, email)
        return FoundRecipient(known, wanted)

    async def _by_contact(self, tenant_id: int, channel: Channel, contact_id: UUID) -> FoundRecipient | None:
        async with self._database.tenant(tenant_id) as tx:
            contact = await store.read_contact(tx, tenant_id, contact_id)
        if contact is None:
            return None
        address = {"whatsapp": contact.whatsapp, "email": contact.email}.get(channel, contact.phone)
        return None if address is None else FoundRecipient(contact_id, address)


def _normalise(channel: Channel, address: str, region: str | None) -> str:
    """The address as it stands in the tables; a fault is one of the field `to`."""
    try:
        return address_of(channel, address, region)
    except Invalid as error:
        reason = error.faults[0].reason if error.faults else error.detail
        faults = [Fault("to", reason)]
        raise Invalid("The address cannot be used; nothing was sent.", code=error.code, faults=faults) from error
