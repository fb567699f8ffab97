"""The provider's way in: a handshake, and webhooks that are answered as soon as they are kept."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Request, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, SkipValidation

from handbill.messaging.incoming import LARGEST
from handbill.messaging.service import MessagingService

Messaging = NamedDependency[SkipValidation[MessagingService]]
Signature = Annotated[
    str | None,
    HeaderParameter(name="X-Hub-Signature-256", max_length=200, description="HMAC-SHA256 by the app secret."),
]


class Taken(msgspec.Struct, frozen=True):
    """Kept. Not `new`: a copy of it was there already."""

    new: bool
    """Whether this webhook is here for the first time."""


@get(
    "/webhooks/whatsapp/{connection_id:uuid}",
    operation_id="subscribeWhatsapp",
    tags=["Provider"],
    media_type="text/plain",
    opt={"public": True, "open_query": True, "example": "1158201444"},
)
async def subscribe(request: Request[Any, Any, Any], messaging: Messaging, connection_id: FromPath[UUID]) -> str:
    """Meta subscribes: its challenge is repeated when it sends the connection's verify token (`hub.*` in the query)."""
    return await messaging.incoming.handshake(connection_id, dict(request.query_params))


@post(
    "/webhooks/whatsapp/{connection_id:uuid}",
    operation_id="takeWhatsapp",
    tags=["Provider"],
    status_code=200,
    opt={
        "public": True,
        "open_query": True,
        "raw_body": ("application/json",),
        "body": dict[str, Any],
        "body_limit": LARGEST,
        "example": {"new": True},
        "body_example": {"object": "whatsapp_business_account", "entry": []},
    },
)
async def take(
    request: Request[Any, Any, Any],
    messaging: Messaging,
    connection_id: FromPath[UUID],
    signature: Signature = None,
) -> Taken:
    """Meta's webhooks. 200 means that it is kept; what it says is worked on a moment later, once."""
    return Taken(await messaging.incoming.keep(connection_id, await request.body(), signature))


handlers = [subscribe, take]
