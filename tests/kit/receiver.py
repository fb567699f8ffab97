"""Somebody else's server that takes our webhooks: on a seed it fails, hangs up, or takes one and hangs up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


class Receiver:
    """Keeps the ids it has taken, as a good receiver does; `seen` has every request."""

    def __init__(self, seed: int = 1, trouble: float = 0.0) -> None:
        self._dice = random.Random(seed)
        self.trouble = trouble
        self.status = 200
        self.url = ""
        self.seen: list[tuple[str, str, str, bytes]] = []
        self.taken: Counter[str] = Counter()

    async def _post(self, request: web.Request) -> web.Response:
        body, delivery = await request.read(), request.headers["Handbill-Delivery"]
        self.seen.append((delivery, request.headers["Handbill-Event"], request.headers["Handbill-Signature"], body))
        if self._dice.random() < self.trouble:
            kind = self._dice.choice(("500", "302", "hang up", "lost"))
            if kind in ("500", "302"):
                return web.Response(status=int(kind), headers={"Location": self.url})
            if kind == "lost":
                self.taken[delivery] += 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if 200 <= self.status < 300:
            self.taken[delivery] += 1
        return web.Response(status=self.status)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.add_routes([web.post("/in", self._post)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
            yield self
        finally:
            await runner.cleanup()
