"""Campaigns over HTTP: make, look, start, pause, resume, cancel, try again, test, prove. Others stand beside this."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter, SkipValidation
from msgspec import Meta

from handbill.kit.errors import Fault, Invalid
from handbill.kit.etags import etag
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.messaging import (
    connection_routes,
    draft_routes,
    examples,
    hook_routes,
    inbox_routes,
    incoming_routes,
    single_routes,
)
from handbill.messaging.estimate_model import Estimate, Verified
from handbill.messaging.fairness import FairShares
from handbill.messaging.links import NewSwitch, Switch
from handbill.messaging.plan import Campaign, MessageState, MessageView, NewCampaign, Outcomes, State
from handbill.messaging.ports import Recipient
from handbill.messaging.service import MessagingService
from handbill.tenants.model import Principal

Messaging = NamedDependency[SkipValidation[MessagingService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = FromPath[UUID]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Window = Annotated[int, QueryParameter(ge=10, le=3_600, description="Seconds to look back.")]
_READ, _WRITE = "messaging:read", "messaging:write"
Value = Annotated[str, Meta(max_length=1024)]


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`at`: when to begin; without it the campaign's own time, or now."""

    at: datetime | None = None
    """When to begin; null: at the campaign's own time, or now."""


class Again(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which failed messages go again, by their reason; none named means all of them."""

    reasons: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] = []
    """Reasons of failed messages that go again; empty: all of them."""


class TestPerson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: Annotated[str, Meta(pattern=r"^\+[1-9][0-9]{5,14}$")]
    """The phone number to send to, with + and country code."""
    fields: Annotated[dict[str, Value], Meta(max_length=100)] = {}
    """Values of the contact's fields, to fill the variables."""


class TestSend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    people: Annotated[list[TestPerson], Meta(min_length=1, max_length=20)]
    """Who gets the test message, at most 20."""


class CampaignRoutes(Controller):
    path = "/admin/messaging/campaigns"
    tags = ("Message campaigns",)

    @get(operation_id="listMessageCampaigns", opt={"scope": _READ, "example": examples.page(examples.CAMPAIGN)})
    async def listed(
        self,
        messaging: Messaging,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        status: FromQuery[State | None] = None,
    ) -> Page[Campaign]:
        """The tenant's campaigns of messages, oldest first."""
        return await messaging.campaigns.listed(principal.tenant_id, cursor, limit, status)

    @post(
        operation_id="createMessageCampaign",
        opt={"scope": _WRITE, "example": examples.CAMPAIGN, "body_example": examples.NEW_CAMPAIGN},
    )
    async def create(self, messaging: Messaging, principal: Who, data: JSONBody[NewCampaign]) -> Response[Campaign]:
        """Make a draft. Nothing is sent before it is started."""
        made = await messaging.campaigns.create(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get(
        "/{campaign_id:uuid}/estimate",
        operation_id="estimateMessageCampaign",
        opt={"scope": _READ, "example": examples.ESTIMATE},
    )
    async def estimate(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Estimate:
        """What would happen: who gets it, who is skipped and why, how long it takes, what it costs."""
        return await messaging.campaigns.estimate(principal.tenant_id, campaign_id)

    @get(
        "/{campaign_id:uuid}/outcomes",
        operation_id="messageCampaignOutcomes",
        opt={"scope": _READ, "example": examples.OUTCOMES},
    )
    async def outcomes(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Outcomes:
        """How its messages stand, and why those that were not sent were not."""
        return await messaging.campaigns.outcomes(principal.tenant_id, campaign_id)

    @get(
        "/{campaign_id:uuid}/messages",
        operation_id="listMessages",
        opt={"scope": _READ, "example": examples.page(examples.MESSAGE)},
    )
    async def messages(
        self,
        messaging: Messaging,
        principal: Who,
        campaign_id: Id,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        status: FromQuery[MessageState | None] = None,
    ) -> Page[MessageView]:
        """Its messages, one per address."""
        return await messaging.campaigns.messages(principal.tenant_id, campaign_id, cursor, limit, status)

    @get(
        "/{campaign_id:uuid}/verify",
        operation_id="verifyMessageCampaign",
        opt={"scope": _READ, "example": examples.VERIFIED},
    )
    async def verify(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Verified:
        """The proof that everybody has exactly one outcome, and how it differs from the estimate at its start."""
        return await messaging.campaigns.verify(principal.tenant_id, campaign_id)

    @post(
        "/{campaign_id:uuid}/start",
        operation_id="startMessageCampaign",
        status_code=200,
        opt={"scope": _WRITE, "example": {**examples.CAMPAIGN, "state": "queued"}, "body_example": {"at": None}},
    )
    async def start(self, messaging: Messaging, principal: Who, campaign_id: Id, data: JSONBody[Start]) -> Campaign:
        """Begin now or at a time. Refused while the template cannot be sent."""
        if data.at is not None and (data.at.tzinfo is None or not 2000 < data.at.year < 3000):
            raise Invalid("The time is not valid; nothing was scheduled.", faults=[Fault("at", "a time with its zone")])
        return await messaging.campaigns.start(principal.tenant_id, campaign_id, at=data.at, actor=principal.actor)

    @post(
        "/{campaign_id:uuid}/pause",
        operation_id="pauseMessageCampaign",
        status_code=200,
        opt={"scope": _WRITE, "example": {**examples.CAMPAIGN, "state": "paused", "reason": "operator"}},
    )
    async def pause(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Campaign:
        """Nothing more is written from the next attempt on."""
        return await messaging.campaigns.pause(principal.tenant_id, campaign_id, actor=principal.actor)

    @post(
        "/{campaign_id:uuid}/resume",
        operation_id="resumeMessageCampaign",
        status_code=200,
        opt={"scope": _WRITE, "example": examples.CAMPAIGN},
    )
    async def resume(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Campaign:
        """Go on where it was paused."""
        return await messaging.campaigns.resume(principal.tenant_id, campaign_id, actor=principal.actor)

    @post(
        "/{campaign_id:uuid}/cancel",
        operation_id="cancelMessageCampaign",
        status_code=200,
        opt={"scope": _WRITE, "example": {**examples.CAMPAIGN, "state": "cancelled"}},
    )
    async def cancel(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Campaign:
        """End it for good: whoever was not written to is skipped."""
        return await messaging.campaigns.cancel(principal.tenant_id, campaign_id, actor=principal.actor)

    @post(
        "/{campaign_id:uuid}/retry",
        operation_id="retryMessageCampaign",
        status_code=200,
        opt={"scope": _WRITE, "example": examples.CAMPAIGN, "body_example": {"reasons": ["provider_131026"]}},
    )
    async def retry(self, messaging: Messaging, principal: Who, campaign_id: Id, data: JSONBody[Again]) -> Campaign:
        """Send failed messages again. What is unknown is left alone: it may have arrived."""
        if any("\0" in reason for reason in data.reasons):
            raise Invalid("A reason is a word.", faults=[Fault("reasons", "holds a character that no text can hold")])
        return await messaging.campaigns.retry_failed(
            principal.tenant_id, campaign_id, data.reasons or None, actor=principal.actor
        )

    @post(
        "/{campaign_id:uuid}/test",
        operation_id="testMessageCampaign",
        opt={
            "scope": _WRITE,
            "example": {**examples.CAMPAIGN, "purpose": "test"},
            "body_example": {"people": [{"address": "+4917212345678", "fields": {"name": "Ada"}}]},
        },
    )
    async def test(self, messaging: Messaging, principal: Who, campaign_id: Id, data: JSONBody[TestSend]) -> Campaign:
        """Send its words to a few addresses now, as a campaign of its own."""
        if any("\0" in key + value for one in data.people for key, value in one.fields.items()):
            raise Invalid("A field is a text.", faults=[Fault("fields", "holds a character that no text can hold")])
        people = [Recipient(None, one.address, dict(one.fields)) for one in data.people]
        return await messaging.campaigns.test_send(principal.tenant_id, campaign_id, people, actor=principal.actor)


class SwitchRoutes(Controller):
    path = "/admin/messaging"
    tags = ("Message campaigns",)

    @get("/switch", operation_id="getMessagingSwitch", opt={"scope": _READ, "example": examples.SWITCH})
    async def switch(self, messaging: Messaging, principal: Who) -> Switch:
        """Whether anything of this tenant is sent at all, and how fast."""
        return await messaging.connections.switch(principal.tenant_id)

    @put(
        "/switch",
        operation_id="turnMessagingSwitch",
        opt={"scope": _WRITE, "example": {**examples.SWITCH, "stopped": True}, "body_example": {"stopped": True}},
    )
    async def turn(self, messaging: Messaging, principal: Who, data: JSONBody[NewSwitch]) -> Switch:
        """Stop everything of this tenant before its next attempt, or let it go on."""
        return await messaging.connections.turn_switch(principal.tenant_id, stopped=data.stopped, actor=principal.actor)

    @get("/fairness", operation_id="messagingFairness", opt={"scope": _READ, "example": examples.FAIRNESS})
    async def fairness(self, messaging: Messaging, principal: Who, window_s: Window = 60) -> FairShares:
        """This tenant's own wait and rate. Shares and Jain's index tell of others: they are the operator's to read."""
        return await messaging.fairness.own(principal.tenant_id, window_s)


handlers = [
    CampaignRoutes, SwitchRoutes, *draft_routes.handlers, *connection_routes.handlers, *hook_routes.handlers,
    *inbox_routes.handlers, *incoming_routes.handlers, *single_routes.handlers,
]  # fmt: skip
