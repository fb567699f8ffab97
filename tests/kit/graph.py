"""The fake Graph server inside a test: a clock that moves when told, a client, and somebody who takes webhooks."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from handbill.fake_graph.app import FakeGraph
from handbill.fake_graph.model import FIRST_NUMBER, WABA, Config, Number
from handbill.fake_graph.world import World
from handbill.kit.clock import from_ms
from tests.kit.processes import program

NUMBER = str(FIRST_NUMBER)
HELLO: dict[str, Any] = {"type": "template", "template": {"name": "hello_world", "language": {"code": "en_US"}}}
__all__ = ["HELLO", "NUMBER", "WABA", "Graph", "Hook", "StillClock", "graph"]


class StillClock:
    """Stands still until moved."""

    def __init__(self, ms: int = 1_750_000_000_000) -> None:
        self.ms = ms

    def now(self) -> datetime:
        return from_ms(self.ms)

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Graph:
    """A running fake and a client that speaks to it."""

    def __init__(self, server: FakeGraph, client: aiohttp.ClientSession) -> None:
        self.server = server
        self.world = server.world
        self.url = server.url
        self.client = client

    async def __call__(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        options: dict[str, Any] = {"params": query, "headers": {"Authorization": "Bearer good"}}
        async with self.client.request(method, self.url + path, json=body, **options) as reply:
            return reply.status, await reply.json()

    async def send(self, to: str, opaque: str = "", number: str = NUMBER, **parts: Any) -> tuple[int, Any]:
        body = {"messaging_product": "whatsapp", "to": to, "biz_opaque_callback_data": opaque, **(parts or HELLO)}
        return await self("POST", f"/v23.0/{number}/messages", body)

    async def code(self, to: str, opaque: str = "", number: str = NUMBER, **parts: Any) -> int:
        """0 when it was taken, else the error's code."""
        status, answer = await self.send(to, opaque, number, **parts)
        return 0 if status == 200 else int(answer["error"]["code"])

    async def control(self, **wanted: Any) -> dict[str, Any]:
        status, answer = await self("POST", "/_control", wanted)
        assert status == 200, answer
        return dict(answer)

    async def log(self) -> list[dict[str, Any]]:
        async with self.client.get(self.url + "/_log") as reply:
            return [json.loads(line) for line in (await reply.text()).splitlines()]


@asynccontextmanager
async def graph(config: Config | None = None, clock: StillClock | None = None) -> AsyncIterator[Graph]:
    server = FakeGraph(world=World(config or Config(), clock))
    await server.start()
    try:
        async with aiohttp.ClientSession() as client:
            yield Graph(server, client)
    finally:
        await server.stop()


class Hook:
    """Takes webhooks: keeps the bytes and signatures; fails as often as told before it answers 200."""

    def __init__(self, verify_token: str = "mine", fail_first: int = 0) -> None:
        self.verify_token = verify_token
        self.fail_first = fail_first
        self.seen: list[tuple[bytes, str]] = []
        self.url = ""

    async def _get(self, request: web.Request) -> web.Response:
        if request.query.get("hub.verify_token") != self.verify_token:
            return web.Response(status=403)
        return web.Response(text=request.query["hub.challenge"])

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.fail_first > 0:
            self.fail_first -= 1
            return web.Response(status=500)
        self.seen.append((body, request.headers.get("X-Hub-Signature-256", "")))
        return web.Response()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Hook]:
        app = web.Application()
        app.add_routes([web.get("/hook", self._get), web.post("/hook", self._post)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
            yield self
        finally:
            await runner.cleanup()


def many_numbers(count: int, **options: Any) -> tuple[Number, ...]:
    return tuple(Number(str(FIRST_NUMBER + place), display=f"1555{place:07d}", **options) for place in range(count))


_SERVER = """
import asyncio, sys, msgspec, uvloop
from handbill.fake_graph.app import FakeGraph
from handbill.fake_graph.model import Config
from handbill.fake_graph.world import World
async def run():
    server = FakeGraph(world=World(msgspec.json.decode(sys.argv[1].encode(), type=Config)))
    await server.start()
    print("at " + server.url, flush=True)
    await asyncio.Event().wait()
uvloop.run(run())
"""


@asynccontextmanager
async def graph_process(config: Config) -> AsyncIterator[str]:
    """The fake server in a process of its own, as in life; gives its address."""
    async with program(sys.executable, "-c", _SERVER, msgspec.json.encode(config).decode()) as server:
        line = await server.says("at http")
        yield line.removeprefix("at ")
