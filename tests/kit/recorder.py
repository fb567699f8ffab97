"""A recording proxy between an unmodified client and our API: what was sent, what was answered, and what got lost.

`async with recorder(base) as net:` passes every request on to `base` and keeps those with a body, unpacked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from handbill.events.dialects.unpack import unpack

_HOPS = frozenset({"host", "content-length", "transfer-encoding", "connection"})


@dataclass(frozen=True)
class Sent:
    path: str
    headers: dict[str, str]
    body: Any
    status: int


class Recorder:
    def __init__(self, base: str) -> None:
        self.base = base
        self.url = ""
        self.sent: list[Sent] = []
        self.lose = 0
        """So many of the next answers never reach the client, though the server has taken the request."""
        self.delay = 0
        """So many of the next requests get no answer, and reach the server only after the one that follows them."""
        self.overtake = 0
        """So many of the next requests wait in the network until the one that follows them was answered."""
        self.answer_first: list[tuple[int, dict[str, str]]] = []
        """Given to the next requests instead of passing them on: what a gateway or a busy server says."""

        self._delayed: list[tuple[web.Request, bytes]] = []
        self._answered = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not body:  # a preflight, or a question that is not about events
            return await self._pass_on(request, body)
        if self.answer_first:
            status, headers = self.answer_first.pop(0)
            return web.Response(status=status, headers=headers, text="{}", content_type="application/json")
        if self.delay:
            self.delay -= 1
            self._delayed.append((request, body))
            return _cut(request)
        if self.overtake:
            self.overtake -= 1
            before = len(self.sent)
            async with self._answered:
                await self._answered.wait_for(lambda: len(self.sent) > before)
        answer = await self._pass_on(request, body)
        while self._delayed:
            await self._pass_on(*self._delayed.pop(0))
        if self.lose:
            self.lose -= 1
            return _cut(request)
        return answer

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        head = {name: value for name, value in request.headers.items() if name.lower() not in _HOPS}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as client,
            client.request(request.method, self.base + request.path_qs, data=body, headers=head) as reply,
        ):
            answer = await reply.read()
            if body:
                plain = json.loads(unpack(body, 1 << 26, head.get("Content-Encoding", "").encode()))
                async with self._answered:
                    self.sent.append(Sent(request.path, head, plain, reply.status))
                    self._answered.notify_all()
            headers = {name: value for name, value in reply.headers.items() if name.lower() not in _HOPS}
            return web.Response(status=reply.status, body=answer, headers=headers)

    def messages(self) -> list[dict[str, Any]]:
        """Every message that was sent, in a batch or alone, as often as it was sent."""
        return [message for sent in self.sent for message in _messages(sent.body)]


def _messages(body: Any) -> list[dict[str, Any]]:
    if isinstance(body, list):
        return body
    batch: list[dict[str, Any]] = body.get("batch", [body])
    return batch


def _cut(request: web.Request) -> web.Response:
    """The client's connection ends without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def recorder(base: str) -> AsyncIterator[Recorder]:
    net = Recorder(base)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", net.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    net.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield net
    finally:
        await runner.cleanup()
