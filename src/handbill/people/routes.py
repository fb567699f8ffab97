"""Routes about people and about what a tenant sends. Their events are the insights' matter."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, Request, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter, SkipValidation
from msgspec import Meta

from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.kit.read_waits import LONGEST_WAIT_S, ReadWaits, WaitFor, read_after
from handbill.people import examples
from handbill.people.model import Definition, EdgeView, Names, PersonPage, PersonView, WarningView
from handbill.people.service import PeopleService
from handbill.tenants.model import Principal

People = NamedDependency[SkipValidation[PeopleService]]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=1_000, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
DistinctId = Annotated[str, QueryParameter(min_length=1, max_length=1_000, description="The id as events carry it.")]
PropertyName = Annotated[
    str | None, QueryParameter(name="property", max_length=200, description="Only people with this property.")
]
PropertyValue = Annotated[
    str | None,
    QueryParameter(max_length=1_000, description="The property's value: a text as it is, or JSON for the rest."),
]
Wait = Annotated[
    float | None,
    QueryParameter(
        ge=0, le=LONGEST_WAIT_S,
        description="Seconds to wait until everything accepted before is in the answer, at most 5. See `complete`.",
    ),
]  # fmt: skip
Waits = NamedDependency[SkipValidation[ReadWaits]]
Asker = Request[Any, Any, Any]
EventName = Annotated[str, QueryParameter(min_length=1, max_length=200, description="The event's name.")]
Side = Annotated[str, Meta(min_length=1, max_length=400)]


class Merge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two distinct ids that are one person. Who was somebody first names the person."""

    source: Side
    """One distinct id of the person."""
    target: Side
    """Another distinct id of the same person."""


class PeopleRoutes(Controller):
    path = "/admin/people"
    tags = ("People",)

    @get(operation_id="listPeople", opt={"scope": "people:read", "example": examples.page(examples.PERSON)})
    async def listed(
        self,
        people: People,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        name: PropertyName = None,
        value: PropertyValue = None,
    ) -> Page[PersonView]:
        """People, newest first, or those with one property's value. A narrowed page may be short and still go on."""
        return await people.people(principal.tenant_id, cursor, limit, name=name, value=value)

    @get("/find", operation_id="findPerson", opt={"scope": "people:read", "example": examples.PERSON_PAGE})
    async def find(
        self,
        request: Asker,
        people: People,
        read_waits: Waits,
        principal: Who,
        distinct_id: DistinctId,
        wait: Wait = None,
    ) -> PersonPage:
        """The person who has this distinct id: ids, properties, and every edge with what became of it."""
        asked = WaitFor(principal.tenant_id, wait, "people")
        return await read_after(read_waits, request, asked, lambda: people.find(principal.tenant_id, distinct_id))

    @get(
        "/warnings",
        operation_id="listPeopleWarnings",
        opt={"scope": "people:read", "example": examples.page(examples.WARNING)},
    )
    async def warnings(
        self, people: People, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[WarningView]:
        """Merges that were refused, newest first, and what to do about each."""
        return await people.warnings(principal.tenant_id, cursor, limit)

    @get("/{person_id:uuid}", operation_id="getPerson", opt={"scope": "people:read", "example": examples.PERSON_PAGE})
    async def read(
        self,
        request: Asker,
        people: People,
        read_waits: Waits,
        principal: Who,
        person_id: FromPath[UUID],
        wait: Wait = None,
    ) -> PersonPage:
        """One person: ids, properties, and every edge with what became of it."""
        asked = WaitFor(principal.tenant_id, wait, "people")
        return await read_after(read_waits, request, asked, lambda: people.person(principal.tenant_id, person_id))

    @post(
        "/merge",
        operation_id="mergePeople",
        status_code=200,
        opt={"scope": "people:write", "example": examples.PERSON_PAGE, "body_example": examples.MERGE},
    )
    async def merge(self, people: People, principal: Who, data: JSONBody[Merge]) -> PersonPage:
        """Make one person of two ids that are known. It can be taken back: void the edge that it makes."""
        return await people.merge(principal.tenant_id, data.source, data.target, actor=principal.actor)

    @post(
        "/edges/{edge_id:str}/void",
        operation_id="voidEdge",
        status_code=200,
        opt={"scope": "people:write", "example": examples.VOIDED},
    )
    async def void(self, people: People, principal: Who, edge_id: FromPath[str]) -> EdgeView:
        """Take an edge back: people become who they would be if nobody had ever said it, also from now on."""
        return await people.void(principal.tenant_id, edge_id, actor=principal.actor)

    @post(
        "/edges/{edge_id:str}/restore",
        operation_id="restoreEdge",
        status_code=200,
        opt={"scope": "people:write", "example": examples.EDGE},
    )
    async def restore(self, people: People, principal: Who, edge_id: FromPath[str]) -> EdgeView:
        """Let an edge count again that was taken back."""
        return await people.restore(principal.tenant_id, edge_id, actor=principal.actor)


class DefinitionRoutes(Controller):
    path = "/admin/definitions"
    tags = ("Definitions",)

    @get(
        "/events",
        operation_id="listEventDefinitions",
        opt={"scope": "people:read", "example": examples.page(examples.EVENT)},
    )
    async def events(
        self, people: People, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Definition]:
        """Events that were sent, by name, with when they were first and last seen."""
        return await people.events(principal.tenant_id, cursor, limit)

    @get(
        "/properties",
        operation_id="listPropertyDefinitions",
        opt={"scope": "people:read", "example": examples.page(examples.PROPERTY)},
    )
    async def properties(
        self,
        people: People,
        principal: Who,
        of: FromQuery[Literal["event", "person"]] = "event",
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Page[Definition]:
        """Properties of events or of people, by name, with the kind of their values."""
        return await people.properties(principal.tenant_id, of, cursor, limit)

    @get(
        "/event-properties",
        operation_id="listEventProperties",
        opt={"scope": "people:read", "example": examples.page(examples.PROPERTY)},
    )
    async def event_properties(
        self, people: People, principal: Who, event: EventName, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Definition]:
        """Which properties came with one event."""
        return await people.event_properties(principal.tenant_id, event, cursor, limit)

    @get("/names", operation_id="listNames", opt={"scope": "people:read", "example": examples.NAMES})
    async def names(self, people: People, principal: Who) -> Names:
        """All names of events and of their properties at once, for a menu: kept in Redis, at most five minutes old."""
        return await people.names(principal.tenant_id)


handlers = [PeopleRoutes, DefinitionRoutes]
