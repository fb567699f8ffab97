"""One campaign over HTTP: read, changed, deleted, copied; and the tenant's opt-out words."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, JSONBody, SkipValidation

from handbill.kit.etags import etag, wanted_version
from handbill.messaging import examples
from handbill.messaging.drafts import CampaignPatch
from handbill.messaging.opt_out_words import NewOptOutWords, OptOutWords
from handbill.messaging.plan import Campaign, Name
from handbill.messaging.service import MessagingService
from handbill.tenants.model import Principal

Messaging = NamedDependency[SkipValidation[MessagingService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = FromPath[UUID]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]
_READ, _WRITE = "messaging:read", "messaging:write"


class CloneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the copy differs."""

    name: Name | None = None
    """The copy's name; null: `Copy of` and the name of the campaign."""


class DraftRoutes(Controller):
    path = "/admin/messaging/campaigns"
    tags = ("Message campaigns",)

    @get(
        "/{campaign_id:uuid}",
        operation_id="getMessageCampaign",
        opt={"scope": _READ, "example": examples.CAMPAIGN},
    )
    async def read(self, messaging: Messaging, principal: Who, campaign_id: Id) -> Response[Campaign]:
        """One campaign."""
        found = await messaging.campaigns.read(principal.tenant_id, campaign_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{campaign_id:uuid}",
        operation_id="changeMessageCampaign",
        opt={
            "scope": _WRITE,
            "example": {**examples.CAMPAIGN, "state": "draft"},
            "body_example": {"name": "Summer sale, second try", "spend_cap": "300.00"},
        },
    )
    async def change(
        self,
        messaging: Messaging,
        principal: Who,
        campaign_id: Id,
        data: JSONBody[CampaignPatch],
        if_match: IfMatch = None,
    ) -> Response[Campaign]:
        """Change what is sent and nothing else, while the campaign is a draft."""
        found = await messaging.drafts.change(
            principal.tenant_id, campaign_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})

    @delete("/{campaign_id:uuid}", operation_id="deleteMessageCampaign", opt={"scope": _WRITE})
    async def delete_draft(
        self, messaging: Messaging, principal: Who, campaign_id: Id, if_match: IfMatch = None
    ) -> None:
        """Delete a draft. A campaign that was started stays: it is the record of who was written to."""
        await messaging.drafts.delete(
            principal.tenant_id, campaign_id, version=wanted_version(if_match), actor=principal.actor
        )

    @post(
        "/{campaign_id:uuid}/clone",
        operation_id="cloneMessageCampaign",
        opt={
            "scope": _WRITE,
            "example": {**examples.CAMPAIGN, "state": "draft", "name": "Copy of Summer sale"},
            "body_example": {"name": "Autumn sale"},
        },
    )
    async def clone(
        self, messaging: Messaging, principal: Who, campaign_id: Id, data: JSONBody[CloneRequest]
    ) -> Response[Campaign]:
        """A draft like this campaign, whatever its state. Times that are over are left out."""
        made = await messaging.drafts.clone(principal.tenant_id, campaign_id, data.name, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})


class OptOutWordRoutes(Controller):
    path = "/admin/messaging/opt-out-words"
    tags = ("Message campaigns",)

    @get(operation_id="getOptOutWords", opt={"scope": _READ, "example": examples.OPT_OUT_WORDS})
    async def read(self, messaging: Messaging, principal: Who) -> Response[OptOutWords]:
        """The words by which people end messages, or lift that again."""
        found = await messaging.opt_out_words.read(principal.tenant_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @put(
        operation_id="replaceOptOutWords",
        opt={"scope": _WRITE, "example": examples.OPT_OUT_WORDS, "body_example": examples.NEW_OPT_OUT_WORDS},
    )
    async def replace(
        self, messaging: Messaging, principal: Who, data: JSONBody[NewOptOutWords], if_match: IfMatch = None
    ) -> Response[OptOutWords]:
        """Choose languages and words of your own. They take the place of what was set before."""
        found = await messaging.opt_out_words.replace(
            principal.tenant_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})


handlers = [DraftRoutes, OptOutWordRoutes]
