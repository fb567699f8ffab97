"""A server in place of the API: it gives the decisions it is told to give and records every request in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PLACEMENT = "0190163d-8694-739b-aea5-966c26f8ad92"
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="240"><rect width="600" height="240"/></svg>'
_CORS = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*"}


def banner(number: int, **fields: Any) -> dict[str, Any]:
    """As an answer of `POST /v1/decide` has it."""
    return {"banner_id": f"0190163d-8694-739b-aea5-{number:012d}", "z_duration_sec": 3600, **fields}


@dataclass
class RecordingApi:
    url: str = ""
    banners: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    """Of the answer to a decision."""
    seen: list[str] = field(default_factory=list)
    """The paths of the requests as they arrived, and `answered` where a decision was."""
    bodies: list[tuple[str, Any]] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)
    """Of the next reports: status and body, a text as it is. Then all are taken."""
    answer: asyncio.Event = field(default_factory=asyncio.Event)
    """A decision is answered once this is set, as it is at first."""

    def reports(self, kind: str = "") -> list[dict[str, Any]]:
        """The bodies of all reports whose path ends in `kind`, batches taken apart."""
        sent = [body for path, body in self.bodies if path.removesuffix("/batch").endswith(kind)]
        return [report for body in sent for report in body.get("events", [body])]

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "OPTIONS":
            return web.Response(headers=_CORS)
        if request.path.endswith(".svg"):
            if "missing" in request.path:
                return web.Response(status=404)
            return web.Response(text=PICTURE, content_type="image/svg+xml")
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        self.seen.append(request.path)
        if request.path != "/v1/decide":
            self.bodies.append((request.path, body))
            status, report = self.answers.pop(0) if self.answers else (202, {"message": "", "data": None})
            if isinstance(report, str):
                return web.Response(text=report, status=status, headers=_CORS)
            return web.json_response(report, status=status, headers=_CORS)
        await self.answer.wait()
        self.seen.append("answered")
        names, limit = body.get("placements") or ["home"], body.get("limit", 1)
        decisions = [
            {"placement": name, "placement_id": PLACEMENT, "banners": self.banners[at * limit :][:limit]}
            for at, name in enumerate(names)
        ]
        answer = {"user_id": body.get("user_id"), "decisions": decisions}
        return web.json_response(answer, status=self.status, headers=_CORS)


@asynccontextmanager
async def recording_api() -> AsyncIterator[RecordingApi]:
    made = RecordingApi()
    made.answer.set()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        made.answer.set()
        await runner.cleanup()
