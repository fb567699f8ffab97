"""Connections to a provider: secrets in and never out, numbers, templates."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter, SkipValidation

from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.messaging import desk_examples as examples
from handbill.messaging.callbacks import Callback
from handbill.messaging.links import Connection, ConnectionPatch, NewConnection, NewNumber, TemplateView
from handbill.messaging.model import TemplateState
from handbill.messaging.service import MessagingService
from handbill.tenants.model import Principal

Messaging = NamedDependency[SkipValidation[MessagingService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = FromPath[UUID]
Cursor = Annotated[
    str | None, QueryParameter(max_length=2000, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]
_READ, _WRITE = "messaging:read", "messaging:write"


class ConnectionRoutes(Controller):
    path = "/admin/connections"
    tags = ("Connections",)

    @get(operation_id="listConnections", opt={"scope": _READ, "example": examples.page(examples.CONNECTION)})
    async def listed(
        self, messaging: Messaging, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Connection]:
        """The tenant's accounts at providers, with their numbers. Tokens and app secrets are never shown."""
        return await messaging.connections.listed(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createConnection",
        opt={"scope": _WRITE, "example": examples.CONNECTION, "body_example": examples.NEW_CONNECTION},
    )
    async def create(self, messaging: Messaging, principal: Who, data: JSONBody[NewConnection]) -> Response[Connection]:
        """Connect a WhatsApp account. The provider is asked about token and numbers first; then secrets are sealed."""
        made = await messaging.connections.connect(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get(
        "/{connection_id:uuid}",
        operation_id="getConnection",
        opt={"scope": _READ, "example": examples.CONNECTION},
    )
    async def read(self, messaging: Messaging, principal: Who, connection_id: Id) -> Response[Connection]:
        """One connection."""
        found = await messaging.connections.read(principal.tenant_id, connection_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{connection_id:uuid}",
        operation_id="changeConnection",
        opt={"scope": _WRITE, "example": examples.CONNECTION, "body_example": {"token": "EAAG..."}},
    )
    async def change(
        self,
        messaging: Messaging,
        principal: Who,
        connection_id: Id,
        data: JSONBody[ConnectionPatch],
        if_match: IfMatch = None,
    ) -> Response[Connection]:
        """Change what is sent and nothing else. New secrets are tried on the provider before the old ones go."""
        found = await messaging.connections.change(
            principal.tenant_id, connection_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})

    @delete("/{connection_id:uuid}", operation_id="deleteConnection", opt={"scope": _WRITE})
    async def remove(self, messaging: Messaging, principal: Who, connection_id: Id) -> None:
        """Remove a connection that no campaign uses, with its secrets and templates."""
        await messaging.connections.remove(principal.tenant_id, connection_id, actor=principal.actor)

    @get(
        "/{connection_id:uuid}/callback",
        operation_id="getConnectionCallback",
        opt={"scope": _READ, "example": examples.CALLBACK},
    )
    async def callback(self, messaging: Messaging, principal: Who, connection_id: Id) -> Callback:
        """The webhook's address and verify token, to enter at the provider. 409 PUBLIC_URL_UNSET without an address."""
        return await messaging.connections.callback(principal.tenant_id, connection_id)

    @post(
        "/{connection_id:uuid}/refresh",
        operation_id="refreshConnection",
        status_code=200,
        opt={"scope": _WRITE, "example": examples.CONNECTION},
    )
    async def refresh(self, messaging: Messaging, principal: Who, connection_id: Id) -> Connection:
        """Ask the provider now about numbers and templates. It happens by itself once an hour."""
        return await messaging.connections.refresh(principal.tenant_id, connection_id, actor=principal.actor)

    @post(
        "/{connection_id:uuid}/numbers",
        operation_id="addNumber",
        opt={"scope": _WRITE, "example": examples.CONNECTION, "body_example": {"number_id": examples.NUMBER}},
    )
    async def add_number(
        self, messaging: Messaging, principal: Who, connection_id: Id, data: JSONBody[NewNumber]
    ) -> Connection:
        """Add a number that the provider shows us."""
        return await messaging.connections.add_number(
            principal.tenant_id, connection_id, data.number_id, actor=principal.actor
        )

    @delete("/{connection_id:uuid}/numbers/{number_id:str}", operation_id="removeNumber", opt={"scope": _WRITE})
    async def remove_number(
        self, messaging: Messaging, principal: Who, connection_id: Id, number_id: FromPath[str]
    ) -> None:
        """Remove a number that no unfinished campaign writes from."""
        await messaging.connections.remove_number(principal.tenant_id, connection_id, number_id, actor=principal.actor)

    @post(
        "/{connection_id:uuid}/numbers/{number_id:str}/resume",
        operation_id="resumeNumber",
        status_code=200,
        opt={"scope": _WRITE, "example": examples.CONNECTION},
    )
    async def resume_number(
        self, messaging: Messaging, principal: Who, connection_id: Id, number_id: FromPath[str]
    ) -> Connection:
        """End a number's pause before its time."""
        return await messaging.connections.resume_number(
            principal.tenant_id, connection_id, number_id, actor=principal.actor
        )


class TemplateRoutes(Controller):
    path = "/admin/templates"
    tags = ("Connections",)

    @get(operation_id="listTemplates", opt={"scope": _READ, "example": examples.page(examples.TEMPLATE)})
    async def listed(
        self,
        messaging: Messaging,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        connection_id: FromQuery[UUID | None] = None,
        status: FromQuery[TemplateState | None] = None,
    ) -> Page[TemplateView]:
        """Message templates as the provider last had them, by name."""
        return await messaging.connections.templates(principal.tenant_id, connection_id, cursor, limit, status)


handlers = [ConnectionRoutes, TemplateRoutes]
