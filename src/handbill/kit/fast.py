"""The fast lane's two values: what a hot route is given, and what it gives back.

They live here, below the slices, because the slices write the hot routes and the API shell only mounts them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

Headers = Sequence[tuple[bytes, bytes]]


class FastRequest(msgspec.Struct, frozen=True, gc=False):
    """One request with its whole body, names of headers in lower case. GET routes are asked by HEAD, too."""

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes
    client_ip: str
    request_id: str


class FastReply(msgspec.Struct, frozen=True, gc=False):
    """The whole answer; the length is added by the lane."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = b"application/json"
    headers: Headers = ()


FastHandler = Callable[[FastRequest], Awaitable[FastReply]]


class FastQuery(msgspec.Struct, frozen=True):
    """One query parameter of a hot route, for the OpenAPI page."""

    name: str
    description: str
    required: bool = False


class FastDoc(msgspec.Struct, frozen=True):
    """What the OpenAPI page says of a hot route: Litestar does not see these, so they describe themselves."""

    summary: str
    tag: str = "Hot"
    operation_id: str = ""
    description: str = ""
    body: Any = None
    body_example: Any = None
    reply: Any = None
    reply_example: Any = None
    status: int = 200
    codes: tuple[int, ...] = ()
    query: tuple[FastQuery, ...] = ()
    write_key: bool = False
    # The shape of errors where other people's clients read them; problem+json everywhere else.
    error: Any = None
    error_example: Any = None


class FastRoute(msgspec.Struct, frozen=True):
    """One hot route: exact method and path, nothing to match."""

    method: str
    path: str
    handler: FastHandler
    # Browsers on other sites may call it: true for routes that take a publishable key, or none at all.
    cors: bool = False
    body_limit: int | None = None
    doc: FastDoc | None = None
    # Clients of other vendors add parameters of their own; elsewhere only those that `doc` describes may be sent.
    open_query: bool = False

    @property
    def span(self) -> str:
        """What a trace calls it."""
        return f"{self.method} {self.path}"
