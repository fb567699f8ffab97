"""Errors as the real server words them: a status, and one JSON object with code, type and details."""

from __future__ import annotations

import msgspec
from aiohttp import web

_STATUS = {
    2: 503,
    4: 429,
    10: 403,
    190: 401,
    368: 403,
    80007: 429,
    130429: 429,
    131000: 500,
    131016: 500,
    131031: 403,
    131042: 402,
    131045: 500,
    131048: 429,
    131056: 429,
    131057: 500,
    131064: 429,
    132001: 404,
    132005: 400,
    133016: 429,
}
_TITLES = {
    100: "Invalid parameter",
    190: "Access token has expired",
    130429: "Rate limit hit",
    130472: "User's number is part of an experiment",
    131000: "Something went wrong",
    131021: "Recipient cannot be sender",
    131026: "Message undeliverable",
    131047: "Re-engagement message",
    131049: "Message not delivered to keep the ecosystem healthy",
    131050: "User stopped marketing messages",
    131056: "Pair rate limit hit",
    131064: "Messaging limit reached",
    132000: "Template parameter count mismatch",
    132001: "Template does not exist",
    132015: "Template is paused",
    132016: "Template is disabled",
}


class GraphError(Exception):
    """Ends a request with an error body."""

    def __init__(self, code: int, details: str = "", *, subcode: int | None = None, status: int | None = None) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.subcode = subcode
        self.status = status or _STATUS.get(code, 403 if 200 <= code <= 299 else 400)

    def response(self) -> web.Response:
        return web.Response(body=body(self), status=self.status, content_type="application/json")


def title(code: int) -> str:
    return _TITLES.get(code, "Error")


def body(error: GraphError) -> bytes:
    inner: dict[str, object] = {
        "message": f"(#{error.code}) {title(error.code)}",
        "type": "OAuthException",
        "code": error.code,
        "error_data": {"messaging_product": "whatsapp", "details": error.details or title(error.code)},
        "fbtrace_id": "AFakeGraphTrace",
    }
    if error.subcode is not None:
        inner["error_subcode"] = error.subcode
    return msgspec.json.encode({"error": inner})


def in_webhook(code: int, details: str = "") -> dict[str, object]:
    """The same error as a status carries it."""
    words = title(code)
    return {"code": code, "title": words, "message": words, "error_data": {"details": details or words}}
