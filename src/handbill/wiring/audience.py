"""The address book as messaging sees it: an adapter over the contacts' service, and what stands in for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from handbill.infra.postgres import Tx
from handbill.kit.errors import Conflict, NotFound
from handbill.messaging.plan import AudienceSpec
from handbill.messaging.ports import AudiencePage, Recipient, Why

ZONE_FIELDS = ("time_zone", "timezone", "zone")
"""Attributes of a contact that may say where the person lives."""

Inside = Callable[[int, UUID, Sequence[Any]], Awaitable[set[UUID]]]
"""Given tenant, segment and a page of contacts: the contact ids that belong to the segment."""


class AddressBook:
    """`contacts` is the contacts' service; `chosen` makes its audience value; `wire` spells a provider's id as ours."""

    def __init__(
        self, contacts: Any, chosen: Callable[..., Any], wire: Callable[[str], str], inside: Inside | None = None
    ) -> None:
        self._contacts = contacts
        self._chosen = chosen
        self._wire = wire
        self._inside = inside

    async def audience(
        self, tenant_id: int, channel: str, spec: AudienceSpec, after: UUID | None, limit: int
    ) -> AudiencePage:
        chosen = self._chosen(
            tags_any=tuple(spec.tags_any), tags_all=tuple(spec.tags_all), tags_none=tuple(spec.tags_none),
            contact_ids=tuple(spec.contact_ids),
        )  # fmt: skip
        page = await self._contacts.audience(tenant_id, channel, chosen, after, limit)
        kept = page
        if spec.segment_id is not None:
            if self._inside is None:
                raise Conflict("Segments cannot be asked here; no audience was read.", code="AUDIENCE_AWAY")
            members = await self._inside(tenant_id, spec.segment_id, page)
            kept = [one for one in page if one.contact_id in members]
        return AudiencePage([_recipient(one) for one in kept], page[-1].contact_id if len(page) == limit else None)

    async def suppress(
        self, tx: Tx, tenant_id: int, channel: str, address: str, why: Why, until: datetime | None, note: str
    ) -> None:
        await self._contacts.suppress(tenant_id, channel, address, why, until, note=note, tx=tx)

    async def opt_out(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        await self._contacts.opt_out(tenant_id, channel, address, source=source, proof=proof, tx=tx)

    async def opt_in(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        """In a transaction of its own: whoever repeats it finds the suppression gone, which is what was asked for."""
        try:
            await self._contacts.book.lift(tenant_id, channel, address, actor="system")
        except NotFound:
            return

    def address(self, channel: str, wire: str) -> str:
        return self._wire(wire)


class NoAddressBook:
    """There is no contacts' room in this house: nobody can be meant, and nobody's wish can be kept."""

    async def audience(
        self, tenant_id: int, channel: str, spec: AudienceSpec, after: UUID | None, limit: int
    ) -> AudiencePage:
        raise _away()

    async def suppress(
        self, tx: Tx, tenant_id: int, channel: str, address: str, why: Why, until: datetime | None, note: str
    ) -> None:
        raise _away()

    async def opt_out(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        raise _away()

    async def opt_in(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        raise _away()

    def address(self, channel: str, wire: str) -> str:
        return "+" + wire.lstrip("+")


def _recipient(one: Any) -> Recipient:
    fields = {**one.attributes, "name": one.name, "locale": one.locale}
    zone = next((one.attributes[name] for name in ZONE_FIELDS if isinstance(one.attributes.get(name), str)), None)
    return Recipient(one.contact_id, one.address, fields, zone)


def _away() -> Conflict:
    return Conflict("The address book is not there; nothing was done.", code="AUDIENCE_AWAY")
