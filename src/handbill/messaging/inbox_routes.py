"""What came back from the provider, for people to read: messages, alerts, and webhooks that could not be worked on."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter, SkipValidation

from handbill.kit.errors import Invalid
from handbill.kit.moments import moment_faults
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.messaging import desk_examples as examples
from handbill.messaging.incoming import Alert, Inbound, InboxFilter, Parked, Replayed
from handbill.messaging.service import MessagingService
from handbill.tenants.model import Principal

Messaging = NamedDependency[SkipValidation[MessagingService]]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=1000, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Address = Annotated[str | None, QueryParameter(max_length=100, description="Only from this address.")]
NumberId = Annotated[str | None, QueryParameter(max_length=32, description="Only to this number.")]
_READ, _WRITE = "messaging:read", "messaging:write"


class InboxRoutes(Controller):
    path = "/admin/inbox"
    tags = ("Inbox",)

    @get(operation_id="listInbox", opt={"scope": _READ, "example": examples.page(examples.INBOUND)})
    async def listed(
        self,
        messaging: Messaging,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        address: Address = None,
        number_id: NumberId = None,
        wishes: FromQuery[bool] = False,
        since: FromQuery[datetime | None] = None,
    ) -> Page[Inbound]:
        """What people wrote, the newest first. With `wishes`, only messages that ask to stop or to start."""
        if faults := moment_faults("since", since):
            raise Invalid("The time is not valid; nothing was read.", faults=faults)
        chosen = InboxFilter(address, number_id, wishes, since)
        return await messaging.incoming.inbox(principal.tenant_id, cursor, limit, chosen)

    @get("/alerts", operation_id="listAlerts", opt={"scope": _READ, "example": examples.page(examples.ALERT)})
    async def alerts(
        self, messaging: Messaging, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Alert]:
        """What the provider said about accounts, numbers and templates, and what nobody understood (`odd:`)."""
        return await messaging.incoming.alerts(principal.tenant_id, cursor, limit)

    @get("/parked", operation_id="listParkedWebhooks", opt={"scope": _READ, "example": examples.page(examples.PARKED)})
    async def parked(
        self, messaging: Messaging, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Parked]:
        """Webhooks that could not be worked on. Nothing of them is lost."""
        return await messaging.incoming.parked(principal.tenant_id, cursor, limit)

    @post(
        "/parked/replay",
        operation_id="replayParkedWebhooks",
        status_code=200,
        opt={"scope": _WRITE, "example": {"replayed": 3}},
    )
    async def replay(self, messaging: Messaging, principal: Who) -> Replayed:
        """Try all of them again."""
        return await messaging.incoming.replay(principal.tenant_id, actor=principal.actor)


handlers = [InboxRoutes]
