"""The address book's routes: contacts, tags, consents, suppressions. Imports have a file of their own."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter, SkipValidation

from handbill.contacts import examples
from handbill.contacts.import_routes import ImportRoutes
from handbill.contacts.model import (
    Channel,
    Consent,
    Contact,
    ContactFilter,
    ContactPatch,
    NewConsent,
    NewContact,
    NewSuppression,
    Suppression,
)
from handbill.contacts.service import ContactsService
from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.tenants.model import Principal

Contacts = NamedDependency[SkipValidation[ContactsService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = FromPath[UUID]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Search = Annotated[
    str | None, QueryParameter(max_length=200, description="Part of the name, or the beginning of an address or id.")
]
TagQuery = Annotated[str | None, QueryParameter(max_length=60, description="Only contacts with this tag.")]
Address = Annotated[str, QueryParameter(min_length=3, max_length=320, description="The address, e.g. +5511987654321.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]


class TagCount(msgspec.Struct, frozen=True):
    tag: str
    """The tag itself."""
    contacts: int
    """How many contacts have it."""


class ContactRoutes(Controller):
    path = "/admin/contacts"
    tags = ("Contacts",)

    @get(operation_id="listContacts", opt={"scope": "contacts:read", "example": examples.page(examples.CONTACT)})
    async def listed(
        self,
        contacts: Contacts,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        search: Search = None,
        tag: TagQuery = None,
        channel: FromQuery[Channel | None] = None,
    ) -> Page[Contact]:
        """The tenant's contacts, oldest first, narrowed by any of the filters."""
        chosen = ContactFilter(search, tag, channel)
        return await contacts.book.search(principal.tenant_id, cursor, limit, chosen)

    @post(
        operation_id="createContact",
        opt={"scope": "contacts:write", "example": examples.CONTACT, "body_example": examples.NEW_CONTACT},
    )
    async def create(self, contacts: Contacts, principal: Who, data: JSONBody[NewContact]) -> Response[Contact]:
        """Create a contact. Its addresses are normalised; a number in national form needs its region."""
        made = await contacts.book.create(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get(
        "/tags", operation_id="listTags", opt={"scope": "contacts:read", "example": [{"tag": "spring", "contacts": 3}]}
    )
    async def tag_list(self, contacts: Contacts, principal: Who) -> list[TagCount]:
        """Every tag and how many contacts have it; the first thousand."""
        found = await contacts.book.tags(principal.tenant_id)
        return [TagCount(tag, number) for tag, number in found.items()]

    @get("/{contact_id:uuid}", operation_id="getContact", opt={"scope": "contacts:read", "example": examples.CONTACT})
    async def read(self, contacts: Contacts, principal: Who, contact_id: Id) -> Response[Contact]:
        """One contact, with the person behind it where that is known."""
        found = await contacts.book.read(principal.tenant_id, contact_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{contact_id:uuid}",
        operation_id="changeContact",
        opt={"scope": "contacts:write", "example": examples.CONTACT, "body_example": examples.CONTACT_PATCH},
    )
    async def change(
        self, contacts: Contacts, principal: Who, contact_id: Id, data: JSONBody[ContactPatch], if_match: IfMatch = None
    ) -> Response[Contact]:
        """Change a contact. What is left out stays; null empties a field."""
        after = await contacts.book.change(
            principal.tenant_id, contact_id, data, actor=principal.actor, if_version=wanted_version(if_match)
        )
        return Response(after, headers={"ETag": etag(after.version)})

    @delete("/{contact_id:uuid}", operation_id="deleteContact", opt={"scope": "contacts:write"})
    async def remove(self, contacts: Contacts, principal: Who, contact_id: Id) -> None:
        """Remove a contact and its consent log. Suppressions of its addresses stay."""
        await contacts.book.delete(principal.tenant_id, contact_id, actor=principal.actor)

    @get(
        "/{contact_id:uuid}/consents",
        operation_id="listConsents",
        opt={"scope": "contacts:read", "example": examples.page(examples.CONSENT)},
    )
    async def consents(
        self, contacts: Contacts, principal: Who, contact_id: Id, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Consent]:
        """What the contact agreed to and refused, where it was said, and the proof."""
        return await contacts.book.consents(principal.tenant_id, contact_id, cursor, limit)

    @post(
        "/{contact_id:uuid}/consents",
        operation_id="recordConsent",
        opt={"scope": "contacts:write", "example": examples.CONTACT, "body_example": examples.NEW_CONSENT},
    )
    async def consent(self, contacts: Contacts, principal: Who, contact_id: Id, data: JSONBody[NewConsent]) -> Contact:
        """Record that the contact agreed or refused on a channel."""
        return await contacts.book.consent(principal.tenant_id, contact_id, data, actor=principal.actor)


class SuppressionRoutes(Controller):
    path = "/admin/suppressions"
    tags = ("Suppressions",)

    @get(
        operation_id="listSuppressions",
        opt={"scope": "contacts:read", "example": examples.page(examples.SUPPRESSION)},
    )
    async def listed(
        self,
        contacts: Contacts,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        channel: FromQuery[Channel | None] = None,
    ) -> Page[Suppression]:
        """Addresses that must not be written to, with the reason and until when."""
        return await contacts.book.suppressions(principal.tenant_id, cursor, limit, channel)

    @post(
        operation_id="suppress",
        opt={"scope": "contacts:write", "example": examples.SUPPRESSION, "body_example": examples.NEW_SUPPRESSION},
    )
    async def create(self, contacts: Contacts, principal: Who, data: JSONBody[NewSuppression]) -> Suppression:
        """Stop writing to an address. A lasting entry is never shortened by a passing one."""
        return await contacts.book.suppress_sent(principal.tenant_id, data, actor=principal.actor)

    @delete(operation_id="liftSuppression", opt={"scope": "contacts:write"})
    async def lift(self, contacts: Contacts, principal: Who, channel: FromQuery[Channel], address: Address) -> None:
        """Let an address be written to again. What a contact has refused stays refused."""
        await contacts.book.lift(principal.tenant_id, channel, address, actor=principal.actor)


handlers = [ContactRoutes, SuppressionRoutes, ImportRoutes]
