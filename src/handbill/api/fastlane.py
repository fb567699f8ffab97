"""The fast lane: hot routes answered straight from ASGI, before Litestar sees them.

A hot route is an exact method and path. The lane reads the body up to its limit, hands over a FastRequest and writes
the FastReply; errors of our tree become the same problem+json as everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Container, Iterable, MutableMapping
from typing import Any

import msgspec
from prometheus_client import Counter, Histogram

from handbill.api.bodies import BodyReader, ClientGone, Receive, Scope
from handbill.api.body_budget import HeldBody
from handbill.api.clients import Clients, request_id
from handbill.api.cors import Cors
from handbill.api.parameters import refuse_unknown
from handbill.api.problems import MEDIA_TYPE, headers_of, problem, translated
from handbill.api.reply_rate import ReplyRate
from handbill.kit.bounds import HEAD_BYTES
from handbill.kit.errors import HandbillError, HeadTooLarge, NotAllowed
from handbill.kit.fast import FastDoc, FastReply, FastRequest, FastRoute
from handbill.kit.telemetry import logs, metrics, tracing
from handbill.kit.telemetry.trace_context import read_traceparent

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logs.get("api")

_EMPTY_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_EMPTY_BODY = {"type": "http.response.body", "body": b""}
_HEAD_TOO_LARGE = f"Path, query and headers together are larger than {HEAD_BYTES} bytes; nothing was done."


async def ping(_: FastRequest) -> FastReply:
    """An empty answer, as fast as this server can give one: what the other routes are measured against."""
    return FastReply(content_type=b"text/plain")


# Answered before the table is even looked at; it stands here so that it is documented like the others.
PING = FastRoute("GET", "/ping", ping, doc=FastDoc("An empty answer", tag="Health", operation_id="ping"))


class FastLane:
    """Stands in front of `behind`, which answers whatever is not hot, and other methods of the paths it shares."""

    def __init__(
        self,
        routes: Iterable[FastRoute],
        behind: App,
        *,
        clients: Clients,
        cors: Cors,
        body_limit: int,
        bodies: BodyReader,
        replies: ReplyRate,
        shared: Container[str] = (),
    ) -> None:
        self._routes = {(route.method, route.path): route for route in routes}
        self._known = {key: _known_names(route) for key, route in self._routes.items()}
        self._preflights = {route.path for route in self._routes.values() if route.cors}
        self._allowed = _allowed([route for route in self._routes.values() if route.path not in shared])
        self._behind = behind
        self._replies = replies
        self._clients = clients
        self._cors = cors
        self._body_limit = body_limit
        self._bodies = bodies
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[tuple[str, str], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._behind(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        if path == "/ping" and method in ("GET", "HEAD"):
            await send(_EMPTY_HEAD.copy())
            await send(_EMPTY_BODY.copy())
            return
        route = self._routes.get(("GET" if method == "HEAD" else method, path))
        if _head_bytes(scope) > HEAD_BYTES:
            await _refuse(scope, send, HeadTooLarge(_HEAD_TOO_LARGE))
        elif route is not None:
            await self._answer(route, scope, receive, send)
        elif method == "OPTIONS" and path in self._preflights:
            await _write(send, 204, b"", self._cors.preflight(_header(scope, b"origin")))
        elif path in self._allowed:
            allowed = self._allowed[path]
            error = NotAllowed(f"The address is there, but only for {allowed.decode()}.")
            await _refuse(scope, send, error, (b"allow", allowed))
        else:
            await self._behind(scope, receive, send)

    async def _answer(self, route: FastRoute, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        number = request_id(headers.get(b"x-request-id"))
        held: HeldBody | None = None
        try:
            if query := scope.get("query_string", b""):
                self._check_query(route, query)
            body = b""
            if route.method != "GET":
                limit = route.body_limit or self._body_limit
                body, held = await self._bodies.read(scope, headers, receive, limit)
            began = time.perf_counter()
            try:
                with tracing.span(route.span, parent=read_traceparent(headers.get(b"traceparent"))) as span:
                    reply = await self._handled(route, self._request(route, scope, headers, body, number))
                    if span is not None:
                        span.set_attribute("http.response.status_code", reply.status)
            finally:
                self._timer(route).observe(time.perf_counter() - began)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - any error is an answer here; _failed logs what nobody foresaw
            reply = _failed(error, number, route)
        finally:
            if held is not None:
                held.release()
        found = [(b"content-type", reply.content_type), (b"x-request-id", number.encode())]
        if reply.headers:
            found += reply.headers
        if route.cors and (origin := headers.get(b"origin")) is not None:
            found += self._cors.headers(origin)
        await _write(send, reply.status, reply.body, found, is_head=scope["method"] == "HEAD")
        self._counted(route, reply.status).inc()
        self._replies.count(reply.status)

    async def _handled(self, route: FastRoute, request: FastRequest) -> FastReply:
        """The route's reply, or that to an error, logged as a part of the request's trace."""
        try:
            return await route.handler(request)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - any error is an answer here; _failed logs what nobody foresaw
            return _failed(error, request.request_id, route)

    def _check_query(self, route: FastRoute, query: bytes) -> None:
        """Raises Invalid for a parameter that the route does not know. Names are compared as they came first."""
        known = self._known[(route.method, route.path)]
        if known is None or known.issuperset([part.partition(b"=")[0] for part in query.split(b"&")]):
            return
        refuse_unknown(query, [name.decode() for name in known if name])

    def _timer(self, route: FastRoute) -> Histogram:
        """The histogram of this route, looked up once. A body is not timed: how fast it comes is the client's doing."""
        timer = self._timers.get((route.path, route.method))
        if timer is None:
            timer = self._timers[(route.path, route.method)] = metrics.API_SECONDS.labels(route.path, route.method)
        return timer

    def _counted(self, route: FastRoute, status: int) -> Counter:
        """The counter of this route and status, looked up once: labels cost more than counting."""
        found = self._counters.get((route.path, route.method, status))
        if found is None:
            found = metrics.API_REPLIES.labels(route.path, route.method, str(status))
            self._counters[(route.path, route.method, status)] = found
        return found

    def _request(
        self, route: FastRoute, scope: Scope, headers: dict[bytes, bytes], body: bytes, number: str
    ) -> FastRequest:
        client = scope.get("client")
        peer = self._clients.address(client[0] if client else "", headers.get(b"x-forwarded-for"))
        return FastRequest(scope["method"], route.path, scope.get("query_string", b""), headers, body, peer, number)


def _known_names(route: FastRoute) -> frozenset[bytes] | None:
    """The parameters of a hot route's query, and nothing between two `&`; None where it takes any."""
    if route.open_query or route.doc is None:
        return None
    names = {each.name.encode() for each in route.doc.query} | {b"write_key" if route.cors else b"", b""}
    return frozenset(names)


def _allowed(routes: Iterable[FastRoute]) -> dict[str, bytes]:
    """The methods of each hot path, as the Allow header tells them."""
    found: dict[str, set[str]] = {}
    for route in routes:
        methods = found.setdefault(route.path, set())
        methods.update((route.method, "OPTIONS") if route.cors else (route.method,))
        methods.update(("HEAD",) if route.method == "GET" else ())
    return {path: ", ".join(sorted(methods)).encode() for path, methods in found.items()}


def _head_bytes(scope: Scope) -> int:
    headers = sum([len(name) + len(value) for name, value in scope["headers"]])
    return headers + len(scope["path"]) + len(scope.get("query_string", b""))


async def _refuse(scope: Scope, send: Send, error: HandbillError, *headers: tuple[bytes, bytes]) -> None:
    number = request_id(_header(scope, b"x-request-id"))
    answer = problem(error, number)
    await _write(
        send,
        answer.status,
        msgspec.json.encode(answer),
        [(b"content-type", MEDIA_TYPE.encode()), (b"x-request-id", number.encode()), *headers],
        is_head=scope["method"] == "HEAD",
    )


def _failed(error: Exception, number: str, route: FastRoute) -> FastReply:
    known = translated(error)
    if known.status >= 500 and known.status != 503:
        log.exception("request-failed", request_id=number, route=route.path)
    extra = [(name.lower().encode(), value.encode()) for name, value in headers_of(known).items()]
    return FastReply(known.status, msgspec.json.encode(problem(known, number)), MEDIA_TYPE.encode(), extra)


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def _write(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, is_head: bool = False
) -> None:
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
