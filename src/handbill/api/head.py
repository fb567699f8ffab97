"""HEAD on every route that answers GET: the same status and headers, and no body.

Litestar finds a route by its method, so that a HEAD request is a GET to it while the route is looked up; a hook makes
it a HEAD again, for the function that answers it to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from litestar import Request
from litestar.enums import HttpMethod

from handbill.api.bodies import Receive, Scope

_IS_HEAD = "is_head"


def as_get(scope: Scope) -> bool:
    """Whether this is a HEAD request; it is a GET from here on, until `restore_method`."""
    if scope["method"] != "HEAD":
        return False
    scope["method"] = "GET"
    scope["state"][_IS_HEAD] = True
    return True


async def restore_method(request: Request[Any, Any, Any]) -> None:
    """Litestar's hook before the function of a route: it sees HEAD where that was sent."""
    if request.scope["state"].get(_IS_HEAD):
        request.scope["method"] = HttpMethod.HEAD


class Disconnecting:
    """What a HEAD request receives: its own messages, and the end of the connection once it is answered.

    A stream that is sent until its client leaves ends there, though none of it was sent.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_whole = False
        self._answered = asyncio.Event()

    async def __call__(self) -> MutableMapping[str, Any]:
        if not self._is_whole:
            message = await self._receive()
            self._is_whole = not message.get("more_body", False)
            return message
        await self._answered.wait()
        return {"type": "http.disconnect"}

    def end(self) -> None:
        """The answer's head was sent."""
        self._answered.set()
