"""The worker's two small listeners: GET /health for whoever restarts it, /metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from handbill.kit.errors import Broken
from handbill.kit.telemetry.metrics import REGISTRY

Health = Callable[[], tuple[bool, dict[str, Any]]]


class Pages:
    """Both listeners; port 0 switches one off."""

    def __init__(self, host: str, port: int, metrics_port: int, health: Health) -> None:
        self._host = host
        self._sites = ((port, "/health", self._health), (metrics_port, "/metrics", self._metrics))
        self._ask = health
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        for port, path, handler in self._sites:
            if port:
                await self._listen(port, path, handler)

    async def stop(self) -> None:
        while self._runners:
            await self._runners.pop().cleanup()

    async def _listen(self, port: int, path: str, handler: Any) -> None:
        app = web.Application()
        app.router.add_get(path, handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        try:
            await web.TCPSite(runner, self._host, port).start()
        except OSError as error:
            name = "HANDBILL_WORKER__PORT" if path == "/health" else "HANDBILL_WORKER__METRICS_PORT"
            raise Broken(
                f"The worker cannot listen on {self._host}:{port} ({error.strerror}). Nothing was started. "
                f"Stop what uses the port, or set {name} (0 switches the page off).",
                code="PORT_TAKEN",
            ) from error

    async def _health(self, request: web.Request) -> web.Response:
        alive, body = self._ask()
        return web.json_response(body, status=200 if alive else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})
