"""The parameters that each route declares: others are refused by name, and faults carry the names that were sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import unquote_plus

import msgspec
from litestar import Litestar
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from handbill.kit.bounds import QUERY_FIELDS_MAX
from handbill.kit.errors import Fault, Invalid
from handbill.kit.faults import MOST, allowed_words, unknown_names
from handbill.kit.untrusted_json import UNREADABLE

OPEN_QUERY = "open_query"
"""In a route's opt: whatever stands in its query is ignored, for others add to its address."""

_READS_BODY = frozenset({"raw_body", "streams"})
"""Opts of routes that read their body themselves."""


class Parameters(msgspec.Struct, frozen=True):
    """What one route reads: names as they are sent, by the names that its function gives them."""

    query: frozenset[str] = frozenset()
    required_query: tuple[str, ...] = ()
    required_headers: tuple[str, ...] = ()
    names: Mapping[str, str] = {}
    words: Mapping[str, Collection[str]] = {}
    takes_body: bool = True

    def missing(self, query: Collection[str], headers: Collection[str]) -> list[Fault]:
        """A fault for each parameter that must be sent and was not."""
        absent = [name for name in self.required_query if name not in query]
        absent += [name for name in self.required_headers if name.lower() not in headers]
        return [Fault(name, "is required") for name in absent]

    def fault(self, key: str, reason: str) -> Fault:
        """A fault of Litestar's in the words of who sent the parameter."""
        head, dot, rest = key.partition(".")
        if reason.startswith("Invalid enum value") and (words := self.words.get(head)):
            reason = f"must be one of {', '.join(words)}"
        return Fault(self.names.get(head, head) + dot + rest, reason)


class KnownParameters(ASGIMiddleware):
    """Litestar middleware behind Auth. Knows the parameters of every route once the application is made."""

    scopes = (ScopeType.HTTP,)

    def __init__(self) -> None:
        self._of: dict[int, Parameters] = {}

    def learn(self, app: Litestar) -> None:
        """Read the parameters of every route."""
        for route in app.routes:
            if isinstance(route, HTTPRoute):
                for handler, model in route.route_handler_map.values():
                    signature = handler.parsed_fn_signature.parameters
                    kinds = {name: allowed_words(field.annotation) for name, field in signature.items()}
                    found = _parameters(model, kinds, before=self._of.get(id(handler)))
                    takes_body = handler.parsed_data_field is not None or not _READS_BODY.isdisjoint(handler.opt)
                    self._of[id(handler)] = msgspec.structs.replace(found, takes_body=takes_body)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        handler = scope["route_handler"]
        parameters = self._of.get(id(handler))
        if parameters is not None:
            scope["state"]["parameters"] = parameters
            if (query := scope.get("query_string")) and not handler.opt.get(OPEN_QUERY):
                refuse_unknown(query, parameters.query)
            if not parameters.takes_body and scope.get("method") != "GET" and _has_body(scope):
                receive = await _without_members(receive)
        await next_app(scope, receive, send)


def refuse_unknown(query: bytes, known: Collection[str]) -> None:
    """Raises Invalid for a query with a parameter that is not known, naming each."""
    names = [unquote_plus(part.partition("=")[0]) for part in _parts(query)]
    faults = unknown_names(dict.fromkeys(names), known, what="parameter")
    if faults:
        raise Invalid("The query has a parameter that is not known; nothing was done.", faults=faults[:MOST])


def _has_body(scope: Scope) -> bool:
    """Whether the request announces a body."""
    headers = dict(scope["headers"])
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


async def _without_members(receive: Receive) -> Receive:
    """Reads the body of a request to a route that takes none. Raises Invalid for one with members, naming each.

    An empty object, or null, says nothing, and some clients send one with every request.
    """
    chunks, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(chunks)
    try:
        sent = msgspec.json.decode(body) if body.strip() else None
    except UNREADABLE:
        sent = body
    if sent:
        names = sent if isinstance(sent, dict) else ()
        raise Invalid("This operation takes no body; nothing was done.", faults=unknown_names(names, ())[:MOST])
    waiting: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read_again() -> Any:
        return waiting.pop() if waiting else await receive()

    return read_again


def _parts(query: bytes) -> Iterable[str]:
    """The first pairs of a query: with more of them it is refused for their number."""
    return [part for part in query.decode("latin-1").split("&", QUERY_FIELDS_MAX)[:QUERY_FIELDS_MAX] if part]


def _parameters(model: Any, words: Mapping[str, Collection[str]], *, before: Parameters | None) -> Parameters:
    """`model` is Litestar's own list of what a function takes; `before` is the same function at another path."""
    query = sorted(model.expected_query_params, key=lambda each: str(each.field_alias))
    headers = sorted(model.expected_header_params, key=lambda each: str(each.field_alias))
    return Parameters(
        frozenset(each.field_alias for each in query) | (before.query if before is not None else frozenset()),
        tuple(each.field_alias for each in query if each.is_required),
        tuple(each.field_alias for each in headers if each.is_required),
        {each.field_name: each.field_alias for each in (*query, *headers)},
        words,
    )
