"""Reading bodies of clients that nobody knows yet: limited in bytes, in time and in memory held."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from handbill.api.body_budget import BodyBudget, BodyLimits, HeldBody
from handbill.api.body_deadlines import BodyDeadlines, BodyPace
from handbill.api.clients import Clients
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

DRAINED_BYTES = 1_048_576
DRAINED_S = 10.0


class ClientGone(Exception):
    """The client left before its body was whole; there is no one to answer."""


class BodyReader:
    """Reads whole bodies, and gives out what others need to read theirs under the same limits."""

    def __init__(self, limits: BodyLimits, clients: Clients, clock: Clock) -> None:
        self.limits = limits
        self.budget = BodyBudget(limits)
        self.deadlines = BodyDeadlines(limits.timeout_s, clock)
        self._clients = clients
        self._timeout_s = limits.timeout_s

    async def read(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, limit: int
    ) -> tuple[bytes, HeldBody | None]:
        """The whole body, and what it holds of the budget (nothing if it came at once): the caller releases that.

        Raises TooLarge, TooSlow, Busy (no room), Throttled (too many of this address) or ClientGone.
        """
        announced = headers.get(b"content-length", b"")
        length = int(announced) if announced.isdigit() else -1
        if length > limit:
            await drain(receive)
            raise too_large(limit)
        deadlines = self.deadlines
        task = deadlines.start(self._timeout_s)
        try:
            message = await receive()
        except asyncio.CancelledError:
            deadlines.explain(task)
            raise
        finally:
            due = deadlines.stop(task)
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        # As long as the client announced: the server's message that nothing follows would cost a turn of the loop.
        if len(body) == length or not message.get("more_body", False):
            if len(body) > limit:
                raise too_large(limit)
            return body, None
        pace = BodyPace(deadlines, self.limits.bytes_per_s, deadlines.left_s(due))
        pace.count(message)
        held = await self.open(scope, headers, receive)
        try:
            return await _rest(held, pace, receive, body, length, limit), held
        except BaseException:
            held.release()
            raise

    async def open(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> HeldBody:
        """The account of one body in the budget, under its client's address. Raises Throttled, like the budget."""
        client = scope.get("client")
        try:
            return self.budget.open(self._clients.address(client[0] if client else "", headers.get(b"x-forwarded-for")))
        except Throttled:
            await drain(receive)
            raise

    def pace(self, *, upload: bool) -> BodyPace:
        """The least rate of one body; files that are stored as they come may come more slowly."""
        return BodyPace(
            self.deadlines, self.limits.upload_bytes_per_s if upload else self.limits.bytes_per_s, self._timeout_s
        )


async def _rest(held: HeldBody, pace: BodyPace, receive: Receive, body: bytes, length: int, limit: int) -> bytes:
    """The whole of a body that did not come at once."""
    await take_room(held, len(body), receive, more=True)
    chunks, more = [body], True
    while more and held.size != length:
        message = await pace.receive(receive)
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
        if held.size + len(chunks[-1]) > limit:
            if more:
                await drain(receive)
            raise too_large(limit)
        await take_room(held, len(chunks[-1]), receive, more=more)
    return b"".join(chunks)


async def take_room(held: HeldBody, size: int, receive: Receive, *, more: bool) -> None:
    """Room for what has come. Raises Busy if there is none, after the client had the time to read why."""
    try:
        held.take(size)
    except Busy:
        held.release()
        if more:
            await drain(receive)
        raise


async def drain(receive: Receive) -> None:
    """Reads on a little after a refusal: a client that is still sending would be cut off before it can read why."""
    read = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_S):
            while read <= DRAINED_BYTES:
                message = await receive()
                read += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def too_large(limit: int) -> TooLarge:
    """The answer to a body above its limit."""
    return TooLarge(f"The body is larger than {limit} bytes; nothing was kept.")
