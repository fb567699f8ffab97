"""Single messages over HTTP: send one, answer one of the inbox, see what became of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, HeaderParameter, JSONBody, PathParameter, QueryParameter, SkipValidation

from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.messaging.plan import MessageState
from handbill.messaging.service import MessagingService
from handbill.messaging.singles import examples
from handbill.messaging.singles.checks import key_of
from handbill.messaging.singles.model import NewMessage, NewReply, SingleMessage
from handbill.messaging.singles.service import Request
from handbill.tenants.model import Principal

Messaging = NamedDependency[SkipValidation[MessagingService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = Annotated[UUID, PathParameter(description="The id of the message.")]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
To = Annotated[str | None, QueryParameter(max_length=40, description="Only to this number, with + and country code.")]
KeyWanted = Annotated[
    str | None, QueryParameter(max_length=200, description="Only the message with this idempotency key.")
]
KeyHeader = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key", max_length=200,
        description="Names the message: the same key again sends nothing more. As the field `idempotency_key`.",
    ),
]  # fmt: skip
_READ, _SEND = "messages:read", "messages:send"


class MessageRoutes(Controller):
    path = "/v1/messages"
    tags = ("Messages",)

    @post(
        operation_id="sendSingleMessage",
        status_code=202,
        opt={"scope": _SEND, "own_key": True, "example": examples.MESSAGE, "body_example": examples.NEW_MESSAGE},
    )
    async def send(
        self, messaging: Messaging, principal: Who, data: JSONBody[NewMessage], idempotency_key: KeyHeader = None
    ) -> Response[SingleMessage]:
        """Send one message to one person. 202 once it is kept: what becomes of it is reported by webhook and by GET.

        A key is needed. The same request under it again is answered with the same message; nothing is sent twice.
        422 for a template, variable, contact or number that is not there; 409 without consent, for a suppressed
        address, a closed window or a key of another message: nothing was sent.
        """
        request = Request(key_of(idempotency_key, data.idempotency_key), "api", principal.actor)
        return _kept(await messaging.singles.send(principal.tenant_id, data, request))

    @get(operation_id="listSingleMessages", opt={"scope": _READ, "example": examples.page(examples.MESSAGE)})
    async def list_(
        self,
        messaging: Messaging,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        status: FromQuery[MessageState | None] = None,
        idempotency_key: KeyWanted = None,
        to: To = None,
    ) -> Page[SingleMessage]:
        """Single messages, the newest first. Messages of campaigns are listed with their campaign."""
        return await messaging.singles.list(
            principal.tenant_id, cursor, limit, state=status, key=idempotency_key, address=to
        )

    @get("/{message_id:uuid}", operation_id="getSingleMessage", opt={"scope": _READ, "example": examples.MESSAGE})
    async def read(self, messaging: Messaging, principal: Who, message_id: Id) -> SingleMessage:
        """One message as it stands: `outcome` is sent, failed or skipped once it has one."""
        return await messaging.singles.read(principal.tenant_id, message_id)


class ReplyRoutes(Controller):
    path = "/admin/inbox"
    tags = ("Inbox",)

    @post(
        "/replies",
        operation_id="replyToInboxMessage",
        status_code=202,
        opt={"scope": _SEND, "own_key": True, "example": examples.REPLIED, "body_example": examples.NEW_REPLY},
    )
    async def reply(
        self, messaging: Messaging, principal: Who, data: JSONBody[NewReply], idempotency_key: KeyHeader = None
    ) -> Response[SingleMessage]:
        """Answer a message of the inbox: to its sender, from the number that it came to. As `POST /v1/messages`."""
        request = Request(key_of(idempotency_key, data.idempotency_key), "inbox", principal.actor)
        return _kept(await messaging.singles.reply(principal.tenant_id, data, request))


def _kept(message: SingleMessage) -> Response[SingleMessage]:
    return Response(message, status_code=202, headers={"Location": f"/v1/messages/{message.message_id}"})


handlers = [MessageRoutes, ReplyRoutes]
