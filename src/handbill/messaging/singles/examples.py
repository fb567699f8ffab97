"""What the routes of single messages take and give, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_AT = "2026-07-01T09:30:00Z"

NEW_MESSAGE: dict[str, Any] = {
    "to": "+4917212345678",
    "template": {"name": "order_shipped", "language": "en_US", "variables": {"body.1": "Ada", "body.2": "4711"}},
    "idempotency_key": "order-4711-shipped",
}
NEW_REPLY: dict[str, Any] = {
    "wamid": "wamid.HBgLMzE2MTIzNDU2Nzg=",
    "text": "It is on its way and arrives tomorrow.",
    "idempotency_key": "ticket-88-answer-1",
}
MESSAGE: dict[str, Any] = {
    "message_id": ID,
    "idempotency_key": "order-4711-shipped",
    "outcome": "sent",
    "state": "delivered",
    "reason": None,
    "address": "+4917212345678",
    "contact_id": ID,
    "channel": "whatsapp",
    "connection_id": "0190163d-8694-739b-aea5-966c26f8ad92",
    "number_id": "100000000000001",
    "template": {"name": "order_shipped", "language": "en_US", "variables": {"body.1": "Ada", "body.2": "4711"}},
    "text": None,
    "purpose": "utility",
    "reply_to": None,
    "source": "api",
    "attempts": 1,
    "expires_at": "2026-07-02T09:30:00Z",
    "attempted_at": _AT,
    "settled_at": _AT,
    "wamid": "wamid.HBgLNDkxNzIxMjM0NTY3OBUCABEYEjA=",
    "accepted_at": _AT,
    "sent_at": _AT,
    "failed_at": None,
    "delivered_at": _AT,
    "read_at": None,
    "error_code": None,
    "error_details": None,
    "created_by": "key 0190163d",
    "created_at": _AT,
}
REPLIED: dict[str, Any] = {
    **MESSAGE,
    "idempotency_key": "ticket-88-answer-1",
    "outcome": None,
    "state": "pending",
    "address": "+31612345678",
    "template": None,
    "text": "It is on its way and arrives tomorrow.",
    "reply_to": "wamid.HBgLMzE2MTIzNDU2Nzg=",
    "source": "inbox",
    "attempts": 0,
    "attempted_at": None,
    "settled_at": None,
    "wamid": None,
    "accepted_at": None,
    "sent_at": None,
    "delivered_at": None,
}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
