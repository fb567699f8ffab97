"""A server that answers reports and decisions as it is told, and remembers what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from handbill.client import Decision
from handbill.client.model import Banner, Showing

BANNER = Banner("0190163d-8694-739b-aea5-966c26f8ad91", 3)
PLACE = Decision("home", "0190163d-8694-739b-aea5-966c26f8ad92", (BANNER,))


def showing(user: str = "ada") -> Showing:
    return PLACE.showing(BANNER, user=user)


class ScriptedServer:
    """Answers from a list, and 202 when the list is empty."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""
        self.decide = asyncio.Event()
        """Decisions are answered once this is set, as it is at first."""
        self.decide.set()
        self.report = asyncio.Event()
        """The same for reports."""
        self.report.set()
        self.drips = False
        """Reports are answered with one byte, and the rest once `report` is set."""
        self.refuse: str | None = None
        """Something between us and the server that refuses a body with this text."""
        self.taken: list[tuple[str, dict[str, str], Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request.path_qs, dict(request.headers), json.loads(body) if body else None))
        if self.refuse is not None and self.refuse in body.decode():
            return web.Response(status=403, text="<html>refused by a firewall</html>")
        self.taken.append(self.seen[-1])
        if self.drips:
            return await self.drip(request)
        status, headers, answer = self.answers.pop(0) if self.answers else (202, {}, {"message": "", "data": None})
        if request.path in ("/v1/decide", "/banners"):
            await self.decide.wait()
        else:
            await self.report.wait()
        if isinstance(answer, str):
            return web.Response(status=status, headers=headers, text=answer)
        return web.json_response(answer, status=status, headers=headers)

    async def drip(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(status=202)
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            await reply.write(b" ")
            await self.report.wait()
        return reply

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.seen]

    def says(self, status: int, answer: Any = None, **headers: str) -> None:
        self.answers.append((status, headers, answer))

    def ids(self, path: str = "") -> list[str]:
        """The event ids of all views that came, in order."""
        bodies = [body for of, _, body in self.seen if path in of]
        return [view["event_id"] for body in bodies for view in body.get("events", [body])]


@asynccontextmanager
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    made = ScriptedServer()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.decide.set()
    made.report.set()
    await runner.cleanup()
