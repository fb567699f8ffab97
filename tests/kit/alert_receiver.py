"""Takes the alerts of an installation by webhook, with the moment at which each came."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Received:
    """One change of one incident. `by` is the last part of the address that it was posted to."""

    at: float
    by: str
    status: str
    alert: str
    labels: Mapping[str, str]
    opened_at: str

    @property
    def name(self) -> str:
        """The alert with the values of its labels, but for the address of a process."""
        values = [value for label, value in sorted(self.labels.items()) if label != "instance"]
        return f"{self.alert}({', '.join(values)})" if values else self.alert


class AlertReceiver:
    """`url(by)` is an address for one sender; `changes` has everything that came, in order."""

    def __init__(self) -> None:
        self.changes: list[Received] = []
        self._base = ""

    def url(self, by: str) -> str:
        return f"{self._base}/{by}"

    def opened(self, begin: float, end: float = float("inf")) -> list[Received]:
        """Incidents whose beginning was reported between two moments; `missed` ones began and ended before."""
        return [one for one in self.changes if one.status in ("opened", "missed") and begin <= one.at < end]

    def first(self, name: str, begin: float) -> Received | None:
        return next((one for one in self.opened(begin) if one.name == name), None)

    def recovered(self, opened: Received) -> Received | None:
        """The report that an incident is over, by the sender that reported it."""
        key = (opened.by, opened.alert, opened.labels, opened.opened_at)
        return next(
            (
                one
                for one in self.changes
                if one.status != "opened" and (one.by, one.alert, one.labels, one.opened_at) == key
            ),
            None,
        )

    def repeated(self) -> list[str]:
        """Changes that one sender reported more than once."""
        counts = Counter((one.by, one.status, one.name, str(dict(one.labels)), one.opened_at) for one in self.changes)
        return [f"{by}: {status} {name}" for (by, status, name, _, _), number in counts.items() if number > 1]

    async def _post(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        now = time.monotonic()
        for one in body["incidents"]:
            self.changes.append(
                Received(now, request.match_info["by"], one["status"], one["alert"], one["labels"], one["opened_at"])
            )
        return web.Response()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[AlertReceiver]:
        app = web.Application()
        app.add_routes([web.post("/{by}", self._post)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._base = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()
