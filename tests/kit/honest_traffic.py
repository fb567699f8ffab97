"""`python -m tests.kit.honest_traffic SITE`: what a shop's pages send, at a steady rate, until SIGTERM.

Requests are sent at their times whether or not earlier ones were answered, so that a server that stops for a moment is
seen by all that come in that moment. Each prints one line when it is answered: `sent` by the machine's monotonic clock,
`took` in seconds, its `kind` and `status` (0: no answer). The last line has what was accepted, by kind of event.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
import uuid
from collections import Counter, deque
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

EVERY_S = 1 / 60
ADDRESSES = 24
"""Browsers with addresses of their own: one address may send 600 tracked events a minute."""
NO_ANSWER_S = 20.0
TRACK = "/api/banners/events"


class Site(msgspec.Struct, frozen=True):
    """A shop as its pages know it."""

    base: str
    write_key: str
    banner: str
    placement: str


class Request(msgspec.Struct, frozen=True):
    """`events`: what is accepted when the answer has the wanted status."""

    method: str
    path: str
    wanted: int
    body: dict[str, Any] | None = None
    events: str = ""


class Pages:
    """All pages of the shop. Each event has an id of its own."""

    def __init__(self, site: Site, sessions: list[aiohttp.ClientSession]) -> None:
        self._site = site
        self._sessions = itertools.cycle(sessions)
        self._tokens: deque[str] = deque()
        self._kinds = itertools.cycle(
            ("decide", "banners", "view", "capture", "impression", "click", "redirect", "health")
        )
        self.accepted: Counter[str] = Counter()

    async def send_next(self) -> None:
        kind = next(self._kinds)
        if kind == "redirect" and not self._tokens:
            kind = "decide"
        request = self._request(kind)
        sent = time.monotonic()
        status = await self._answer(next(self._sessions), request)
        took = time.monotonic() - sent
        if status == request.wanted and request.events:
            self.accepted[request.events] += 1
        line = {"event": "request", "kind": kind, "sent": sent, "took": took, "status": status}
        print(json.dumps({**line, "ok": status == request.wanted}), flush=True)

    async def _answer(self, session: aiohttp.ClientSession, request: Request) -> int:
        headers = {"X-Write-Key": self._site.write_key}
        if request.path == "/health":
            headers["Connection"] = "close"  # the next one of this address opens a connection: that must work too
        try:
            async with session.request(
                request.method, request.path, json=request.body, headers=headers, allow_redirects=False
            ) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0
        if request.path == "/v1/decide" and reply.status == 200:
            self._tokens.append(json.loads(body)["decisions"][0]["banners"][0]["token"])
        return reply.status

    def _request(self, kind: str) -> Request:
        user, event_id = uuid.uuid4().hex, str(uuid.uuid4())
        banner = {"bannerPublicId": self._site.banner, "placementPublicId": self._site.placement}
        tracked = {**banner, "correlationId": event_id}
        match kind:
            case "decide":
                return Request("POST", "/v1/decide", 200, {"user_id": user, "placements": ["home"]})
            case "banners":
                return Request("GET", f"/banners?user_id={user}", 200)
            case "view":
                seen = {"banner_id": self._site.banner, "user_id": user, "event_id": event_id, "view_duration_ms": 3000}
                return Request("POST", "/views", 202, seen, "view")
            case "capture":
                captured = {"event": "seen", "distinct_id": user, "event_id": event_id, "properties": {"plan": "pro"}}
                return Request("POST", "/v1/events", 202, {"events": [captured]}, "captured")
            case "impression":
                return Request("POST", f"{TRACK}/impression", 202, tracked, "impression")
            case "click":
                click = {**tracked, "destinationUrl": "https://shop.example/x"}
                return Request("POST", f"{TRACK}/click", 202, click, "click")
            case "redirect":
                return Request("GET", f"/r/{self._tokens.popleft()}", 302, None, "click")
        return Request("GET", "/health", 200)


def _session(site: Site, number: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        site.base,
        connector=aiohttp.TCPConnector(local_addr=(f"127.0.1.{number + 1}", 0)),
        timeout=aiohttp.ClientTimeout(total=NO_ANSWER_S),
    )


async def run(site: Site) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    async with contextlib.AsyncExitStack() as opened:
        sessions = [await opened.enter_async_context(_session(site, number)) for number in range(ADDRESSES)]
        pages = Pages(site, sessions)
        print(json.dumps({"event": "ready"}), flush=True)
        async with asyncio.TaskGroup() as group:
            due = loop.time()
            while not stopping.is_set():
                group.create_task(pages.send_next())
                due = max(due + EVERY_S, loop.time())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), due - loop.time())
    print(json.dumps({"event": "finished", "accepted": pages.accepted}), flush=True)


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Site)))
