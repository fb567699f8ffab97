"""Webhooks of our own: who is told of what, the log, and once more."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter, SkipValidation

from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.messaging import desk_examples as examples
from handbill.messaging.hooks import Delivery, DeliveryState, Hook, HookMade, HookPatch, NewHook
from handbill.messaging.hooks_out import EVENTS
from handbill.messaging.service import MessagingService
from handbill.tenants.model import Principal

Messaging = NamedDependency[SkipValidation[MessagingService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = FromPath[UUID]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
_READ, _WRITE = "messaging:read", "messaging:write"


class EventView(msgspec.Struct, frozen=True):
    event: str
    """The name of the event, to be given in `events`."""
    says: str
    """When the event is sent."""


class HookRoutes(Controller):
    path = "/admin/hooks"
    tags = ("Webhooks",)

    @get("/events", operation_id="listHookEvents", opt={"scope": _READ, "example": [examples.EVENT]})
    async def events(self, principal: Who) -> list[EventView]:
        """Everything a webhook can be told of."""
        return [EventView(event, says) for event, says in EVENTS.items()]

    @get(operation_id="listHooks", opt={"scope": _READ, "example": examples.page(examples.HOOK)})
    async def listed(
        self, messaging: Messaging, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Hook]:
        """Where events are sent."""
        return await messaging.hook_desk.listed(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createHook",
        opt={"scope": _WRITE, "example": examples.HOOK_MADE, "body_example": examples.NEW_HOOK},
    )
    async def create(self, messaging: Messaging, principal: Who, data: JSONBody[NewHook]) -> HookMade:
        """Send events to an https address. The secret that signs them is in this answer and nowhere else ever again."""
        return await messaging.hook_desk.create(principal.tenant_id, data, actor=principal.actor)

    @get("/{hook_id:uuid}", operation_id="getHook", opt={"scope": _READ, "example": examples.HOOK})
    async def read(self, messaging: Messaging, principal: Who, hook_id: Id) -> Hook:
        """One webhook, and whether it works."""
        return await messaging.hook_desk.read(principal.tenant_id, hook_id)

    @patch(
        "/{hook_id:uuid}",
        operation_id="changeHook",
        opt={"scope": _WRITE, "example": examples.HOOK, "body_example": {"active": True}},
    )
    async def change(self, messaging: Messaging, principal: Who, hook_id: Id, data: JSONBody[HookPatch]) -> Hook:
        """Change what is sent and nothing else. What waits for a webhook that is switched off fails."""
        return await messaging.hook_desk.change(principal.tenant_id, hook_id, data, actor=principal.actor)

    @delete("/{hook_id:uuid}", operation_id="deleteHook", opt={"scope": _WRITE})
    async def remove(self, messaging: Messaging, principal: Who, hook_id: Id) -> None:
        """Remove a webhook. Its log stays readable for a month."""
        await messaging.hook_desk.remove(principal.tenant_id, hook_id, actor=principal.actor)

    @post(
        "/{hook_id:uuid}/secret",
        operation_id="renewHookSecret",
        status_code=200,
        opt={"scope": _WRITE, "example": examples.HOOK_MADE},
    )
    async def renew(self, messaging: Messaging, principal: Who, hook_id: Id) -> HookMade:
        """A new secret. For a day every delivery carries both signatures."""
        return await messaging.hook_desk.renew(principal.tenant_id, hook_id, actor=principal.actor)

    @post(
        "/{hook_id:uuid}/test",
        operation_id="testHook",
        opt={"scope": _WRITE, "example": {**examples.DELIVERY, "event": "hook.test"}},
    )
    async def test(self, messaging: Messaging, principal: Who, hook_id: Id) -> Delivery:
        """Send the event `hook.test`."""
        return await messaging.hook_desk.test(principal.tenant_id, hook_id, actor=principal.actor)

    @get(
        "/{hook_id:uuid}/deliveries",
        operation_id="listDeliveries",
        opt={"scope": _READ, "example": examples.page(examples.DELIVERY)},
    )
    async def deliveries(
        self,
        messaging: Messaging,
        principal: Who,
        hook_id: Id,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        status: FromQuery[DeliveryState | None] = None,
    ) -> Page[Delivery]:
        """What was sent, the newest first, and how it went."""
        return await messaging.hook_desk.deliveries(principal.tenant_id, hook_id, cursor, limit, status)

    @post(
        "/{hook_id:uuid}/deliveries/{delivery_id:uuid}/redeliver",
        operation_id="redeliver",
        status_code=200,
        opt={"scope": _WRITE, "example": {**examples.DELIVERY, "state": "waiting", "finished_at": None}},
    )
    async def redeliver(self, messaging: Messaging, principal: Who, hook_id: Id, delivery_id: Id) -> Delivery:
        """Send one delivery again under the same id: whoever has taken it can tell."""
        return await messaging.hook_desk.redeliver(principal.tenant_id, hook_id, delivery_id, actor=principal.actor)


handlers = [HookRoutes]
