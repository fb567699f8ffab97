"""The front door of everything behind the fast lane: request id, body limit, security headers, access log, metrics.

The log names route, status and time; never a header, a query string or an address, for those hold keys and people.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

import msgspec
import structlog

from handbill.api.bodies import BodyReader, Receive, Scope, drain, take_room, too_large
from handbill.api.body_budget import HeldBody
from handbill.api.body_deadlines import BodyPace
from handbill.api.clients import Clients, request_id
from handbill.api.cors import Cors
from handbill.api.fastlane import App, Send
from handbill.api.head import Disconnecting, as_get
from handbill.api.problems import MEDIA_TYPE, problem
from handbill.api.reply_rate import ReplyRate
from handbill.kit.bounds import URL_MAX
from handbill.kit.errors import Invalid, UrlTooLong
from handbill.kit.telemetry import logs, metrics, tracing
from handbill.kit.telemetry.trace_context import read_traceparent
from handbill.kit.untrusted_json import check_json
from handbill.tenants.model import REQUEST_ID

TENANTS_BY_NAME = 50

_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_QUIET = frozenset({"/health", "/ready"})

log = logs.get("api")


class FrontDoor:
    """Every request that is not hot goes through here."""

    def __init__(
        self,
        behind: App,
        *,
        clients: Clients,
        cors: Cors,
        body_limit: int,
        bodies: BodyReader,
        replies: ReplyRate,
    ) -> None:
        self._behind = behind
        self._replies = replies
        self._clients = clients
        self._cors = cors
        self._body_limit = body_limit
        self._bodies = bodies
        self._named: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._behind(scope, receive, send)
            return
        headers = dict(scope["headers"])
        number = request_id(headers.get(b"x-request-id"))
        client = scope.get("client")
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = number
        state["client_ip"] = self._clients.address(client[0] if client else "", headers.get(b"x-forwarded-for"))
        head = Disconnecting(receive) if as_get(scope) else None
        receive = receive if head is None else head
        answer = _Answer(send, number, self._cors, headers.get(b"origin"), scope, head)
        limited = _Limited(receive, headers, self._body_limit, scope, self._bodies)
        mark = REQUEST_ID.set(number)
        started = time.perf_counter()
        metrics.API_IN_FLIGHT.inc()
        try:
            parent = read_traceparent(headers.get(b"traceparent"))
            with (
                structlog.contextvars.bound_contextvars(request_id=number),
                tracing.span("request", parent=parent) as span,
            ):
                try:
                    if len(scope["path"]) + len(scope.get("query_string", b"")) > URL_MAX:
                        await _refuse_url(answer, number)
                    else:
                        await self._behind(scope, limited, answer)
                finally:
                    if span is not None:
                        _describe(span, scope, answer.status, number)
                    self._tell(scope, answer.status, time.perf_counter() - started, number)
        finally:
            limited.release()
            REQUEST_ID.reset(mark)
            metrics.API_IN_FLIGHT.dec()

    def _tell(self, scope: Scope, status: int, seconds: float, number: str) -> None:
        route = str(scope.get("path_template") or "unmatched")
        method = scope["method"] if route != "unmatched" else "any"
        metrics.API_SECONDS.labels(route, method).observe(seconds)
        metrics.API_REPLIES.labels(route, method, str(status)).inc()
        principal = scope["state"].get("principal")
        tenant = principal.tenant_id if principal is not None else None
        if tenant is not None:
            metrics.API_TENANT_REQUESTS.labels(self._label(tenant)).inc()
        if route not in _QUIET:
            self._replies.count(status)
            log.info(
                "request",
                method=scope["method"],
                route=route,
                status=status,
                ms=round(seconds * 1000, 1),
                tenant=tenant,
                request_id=number,
            )

    def _label(self, tenant: int) -> str:
        """The first tenants seen have a label of their own; the rest share one, so that labels stay few."""
        if tenant not in self._named:
            if len(self._named) >= TENANTS_BY_NAME:
                return "other"
            self._named.add(tenant)
        return str(tenant)


async def _refuse_url(send: Send, number: str) -> None:
    error = UrlTooLong(f"Path and query together are longer than {URL_MAX} characters; nothing was done.")
    body = msgspec.json.encode(problem(error, number))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _describe(span: Any, scope: Scope, status: int, number: str) -> None:
    """The route is known only once it has answered. Its template, not its path: a path may name a person."""
    route = str(scope.get("path_template") or "unmatched")
    span.update_name(f"{scope['method']} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status, "handbill.request_id": number})


class _Answer:
    """Adds what every answer carries, remembers the status, and leaves out the body where HEAD was asked."""

    def __init__(
        self,
        send: Send,
        number: str,
        cors: Cors,
        origin: bytes | None,
        scope: Scope,
        head: Disconnecting | None,
    ) -> None:
        self._head = head
        self._send = send
        self._number = number.encode()
        self._cors = cors
        self._origin = origin
        self._scope = scope
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = [*_SECURITY, (b"x-request-id", self._number)]
            handler = self._scope.get("route_handler")
            if self._origin is not None and handler is not None and handler.opt.get("write_key"):
                extra += self._cors.headers(self._origin)
            present = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *((name, value) for name, value in extra if name not in present),
            ]
        if self._head is None:
            await self._send(message)
        elif message["type"] == "http.response.start":
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b""})
            self._head.end()


class _Limited:
    """Counts the body while it is read, refuses it past the limit or too deep, and keeps it for error messages.

    A route with `streams` in its opt takes files: it counts for itself, by a limit of its own. One with `body_limit`
    takes at least that much, whatever the others take: its senders decide how much they send. One with `raw_body` reads
    the bytes itself, and says itself how deep they may be.
    """

    def __init__(
        self, receive: Receive, headers: dict[bytes, bytes], limit: int, scope: Scope, bodies: BodyReader
    ) -> None:
        self._receive = receive
        self._headers = headers
        self._bodies = bodies
        self._pace: BodyPace | None = None
        self._held: HeldBody | None = None
        self._scope = scope
        self._limit = limit
        self._size = 0
        self._whole = False
        self._chunks: list[bytes] | None = None
        length = headers.get(b"content-length", b"")
        self._length = int(length) if length.isdigit() else 0
        if b"json" in headers.get(b"content-type", b"json"):
            scope["state"]["raw_body"] = self._chunks = []

    async def __call__(self) -> MutableMapping[str, Any]:
        handler = self._scope.get("route_handler")
        if handler is not None and handler.opt.get("streams"):
            return await self._streamed()
        limit = self._limit if handler is None else max(self._limit, handler.opt.get("body_limit", 0))
        if self._length > limit:
            await drain(self._receive)
            raise too_large(limit)
        message = await self._next(upload=False)
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._size += len(body)
            if self._size > limit:
                if message.get("more_body", False):
                    await drain(self._receive)
                raise too_large(limit)
            await self._hold(len(body), more=message.get("more_body", False))
            if self._chunks is not None and body:
                self._chunks.append(body)
            self._whole = not message.get("more_body", False)
            if self._whole and self._chunks is not None and not (handler is not None and handler.opt.get("raw_body")):
                check_json(b"".join(self._chunks))
        elif not self._whole:
            # Litestar would take what has come so far for the whole: half a file must not pass for a file.
            raise Invalid("The client left before its body was whole; nothing was done.", code="BODY_CUT")
        return message

    def release(self) -> None:
        """The request is answered: its body is no longer held."""
        if self._held is not None:
            self._held.release()

    async def _next(self, *, upload: bool) -> MutableMapping[str, Any]:
        """The next message; while the body is under way, no more slowly than is allowed."""
        if self._whole:
            return await self._receive()
        if self._pace is None:
            self._pace = self._bodies.pace(upload=upload)
        return await self._pace.receive(self._receive)

    async def _hold(self, size: int, *, more: bool) -> None:
        """Room for a body that does not come at once."""
        if self._held is None:
            if not more:
                return
            self._held = await self._bodies.open(self._scope, self._headers, self._receive)
        await take_room(self._held, size, self._receive, more=more)

    async def _streamed(self) -> MutableMapping[str, Any]:
        message = await self._next(upload=True)
        if message["type"] == "http.request":
            self._whole = not message.get("more_body", False)
        elif not self._whole:
            raise Invalid("The client left before its body was whole; nothing was done.", code="BODY_CUT")
        return message
