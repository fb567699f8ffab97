"""`Idempotency-Key` on POST: the first request does the work, the same request again gets the same answer.

A route with `own_key` in its `opt` keeps the key itself, beside what it made.
"""

from __future__ import annotations

from typing import Any

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from handbill.kit.errors import Busy, HandbillError
from handbill.kit.telemetry import logs, metrics
from handbill.tenants.model import Principal, Replay
from handbill.tenants.service import Replays, check_key, request_hash

_NOTHING_DONE = frozenset({401, 403, 413, 415, 429, 503})
_MEANING = frozenset({b"etag", b"location"})

log = logs.get("api")


class Idempotency(ASGIMiddleware):
    """Litestar middleware behind Auth: a key belongs to a tenant, so it means nothing before one is known."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        sent = _key_of(scope)
        principal = scope["state"].get("principal")
        opt = scope["route_handler"].opt
        if sent is None or principal is None or opt.get("streams") or opt.get("own_key"):  # no file is held in memory
            await next_app(scope, receive, send)
            return
        key = check_key(sent)
        body = await _whole(receive)
        if body is None:
            return
        credential = str(scope["state"].get("credential", ""))
        target = scope["path"] + "?" + bytes(scope.get("query_string", b"")).decode("latin-1")
        digest = request_hash("POST", target, principal.actor, body)
        claim = await self._replays.claim(principal.tenant_id, key, digest, credential)
        if claim.replay is not None:
            metrics.API_REPLAYS.labels("replayed").inc()
            await _send_again(send, claim.replay)
            return
        await self._first(scope, _told(body), send, next_app, principal, key, credential)

    async def _first(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        next_app: ASGIApp,
        principal: Principal,
        key: str,
        credential: str,
    ) -> None:
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        try:
            await next_app(scope, receive, hold)
        except HandbillError as error:
            # Litestar renders it behind us; an error that says "nothing was done" frees the key.
            if error.status in _NOTHING_DONE:
                await self._quietly(self._replays.release(principal.tenant_id, key), principal)
            raise
        replay = _replay(held)
        if replay.status in _NOTHING_DONE:
            metrics.API_REPLAYS.labels("released").inc()
            await self._quietly(self._replays.release(principal.tenant_id, key), principal)
        else:
            metrics.API_REPLAYS.labels("first").inc()
            await self._quietly(self._replays.close(principal.tenant_id, key, replay, credential), principal)
        for message in held:
            await send(message)

    async def _quietly(self, work: Any, principal: Principal) -> None:
        """The answer is given even if it cannot be kept; a repetition is then told that nobody knows."""
        try:
            await work
        except Busy as error:
            log.warning("idempotency-not-kept", tenant=principal.tenant_id, code=error.code)


def _key_of(scope: Scope) -> str | None:
    if scope.get("method") != "POST":
        return None
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            return bytes(value).decode("latin-1")
    return None


async def _whole(receive: Receive) -> bytes | None:
    """The whole body, which the front door has already bounded; None if the client left before it was whole."""
    chunks: list[bytes] = []
    while True:
        message: Any = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _told(body: bytes) -> Receive:
    """The body once more, for the handler."""
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def _replay(held: list[Message]) -> Replay:
    status, content_type, body = 500, "application/json", b""
    headers: list[tuple[str, str]] = []
    for message in held:
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message["headers"]:
                if name.lower() == b"content-type":
                    content_type = bytes(value).decode("latin-1")
                elif name.lower() in _MEANING:
                    headers.append((bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1")))
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")
    return Replay(status, content_type, body, headers)


async def _send_again(send: Send, replay: Replay) -> None:
    headers = [
        (b"content-type", replay.content_type.encode("latin-1")),
        (b"content-length", str(len(replay.body)).encode()),
        (b"idempotent-replayed", b"true"),
        *((name.encode("latin-1"), value.encode("latin-1")) for name, value in replay.headers),
    ]
    await send({"type": "http.response.start", "status": replay.status, "headers": headers})
    await send({"type": "http.response.body", "body": replay.body, "more_body": False})
