"""The operator's listener: Prometheus metrics and detailed readiness, on loopback unless the settings say otherwise."""

from __future__ import annotations

import asyncio

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from handbill.api.health import Readiness, current_health
from handbill.kit import task_health
from handbill.kit.errors import Broken
from handbill.kit.telemetry import metrics

LONGEST_HEAD = 8192
PATIENCE_S = 10.0


class OperatorListener:
    """Answers `GET /metrics`, `GET /health` and `GET /ready` and closes. Too small to need a framework."""

    def __init__(self, host: str, port: int, readiness: Readiness) -> None:
        self._host = host
        self._port = port
        self._readiness = readiness
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        if self._port == 0:
            return
        try:
            self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=LONGEST_HEAD)
        except OSError as error:
            raise Broken(
                f"The metrics port {self._host}:{self._port} cannot be opened ({error.strerror}); nothing was started. "
                "Choose another port, or 0 for none.",
                code="PORT_TAKEN",
            ) from None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._page(head)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # a scraper that went away or never spoke: nobody is there to be told
        finally:
            writer.close()

    async def _page(self, head: bytes) -> tuple[str, str, bytes]:
        if head.startswith((b"GET /metrics ", b"GET /metrics?")):
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(metrics.REGISTRY)
        if head.startswith((b"GET /ready ", b"GET /ready?")):
            found = await self._readiness.check()
            status = "200 OK" if found.ready else "503 Service Unavailable"
            return status, "application/json", msgspec.json.encode(found)
        if head.startswith((b"GET /health ", b"GET /health?")):
            health, code = current_health()
            status = "200 OK" if code == 200 else "503 Service Unavailable"
            body = {"status": health.status, "stuck": task_health.unhealthy(), "tasks": _describe_tasks()}
            return status, "application/json", msgspec.json.encode(body)
        return "404 Not Found", "text/plain; charset=utf-8", b"only /metrics, /health and /ready are here\n"


def _describe_tasks() -> dict[str, dict[str, object]]:
    return {
        each.name: {
            "required": each.required,
            "silent_seconds": round(each.silent_seconds(), 3),
            "errors": each.errors,
            "last_error": each.last_error,
        }
        for each in task_health.running()
    }
