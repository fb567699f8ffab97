"""One API process: Granian inside our own event loop, so that start, signals and stop are ours.

There is no master process that could die and leave workers behind: `handbill up` (or your own supervisor) starts as
many of these as it wants, and they share the port. Stopping is bounded: open streams and half-sent bodies are cut in
the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from handbill.api.app import build
from handbill.api.clients import Clients
from handbill.api.connections import EVERY_S, ConnectionShares, allowed_connections
from handbill.api.fastlane import App
from handbill.api.operators import OperatorListener
from handbill.api.readiness import readiness
from handbill.kit import agents, garbage
from handbill.kit.bounds import CONNECTION_BUFFER_BYTES
from handbill.kit.errors import Broken
from handbill.kit.heartbeat import Heartbeat
from handbill.kit.ready_signal import notify_ready
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs
from handbill.settings import Settings, ready_socket
from handbill.wiring.heartbeat_files import api_heartbeat_file
from handbill.wiring.house import House

READY_WITHIN_S = 60.0
TICK_S = 1.0
BACKLOG = 1024
SWITCH_S = 0.001
"""How long a thread that reads a large body may run while the event loop waits for its turn; Python's own is 5 ms, and
a request needs several turns."""

log = logs.get("api")


async def serve(house: House, settings: Settings, *, ready: Callable[[], None] | None = None) -> None:
    """Runs until SIGTERM or SIGINT. Starts the house and stops it, whatever happens in between."""
    host, port = settings.api.host, settings.api.port
    if settings.api.processes == 1:
        _check_free(host, port)
    sys.setswitchinterval(SWITCH_S)
    parts = readiness(house)
    operators = OperatorListener(settings.api.metrics_host, settings.api.metrics_port, parts)
    with _signals() as stopping:
        await operators.start()
        try:
            try:
                agents.warm()
                if await _started(house, stopping):
                    garbage.settle()
                    await parts.start()
                    async with _heartbeat(api_heartbeat_file(settings)):
                        await _run(house, build(house, settings, parts), settings, stopping, ready)
            finally:
                await parts.stop()
                await house.stop()
        finally:
            await operators.stop()
    log.info("api-stopped")


async def _started(house: House, stopping: asyncio.Event) -> bool:
    """Starts the house; False if a stop signal came first, for a start may wait long for an engine."""
    starting = asyncio.create_task(house.start(), name="house-start")
    waiting = asyncio.create_task(stopping.wait(), name="stop-signal")
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if starting.done():
        await starting
        return not stopping.is_set()
    starting.cancel()
    await asyncio.wait((starting,))
    return False


@contextlib.asynccontextmanager
async def _heartbeat(file: Path) -> AsyncIterator[None]:
    """The file is touched while the block runs, unless the event loop or a required task hangs."""
    tick = BackgroundTask("event-loop", _do_nothing, period_s=TICK_S, health=TaskHealth("event-loop", limit_s=30.0))
    heartbeat = Heartbeat(file)
    await tick.start()
    try:
        heartbeat.start()
        yield
    finally:
        await asyncio.to_thread(heartbeat.stop)
        await tick.stop()


async def _do_nothing() -> None:
    """That it is run at all shows that the event loop moves."""


async def _run(
    house: House, app: App, settings: Settings, stopping: asyncio.Event, ready: Callable[[], None] | None
) -> None:
    host, port = settings.api.host, settings.api.port
    max_connections = allowed_connections(settings.api.max_connections)
    shares = ConnectionShares(port, max_connections, Clients(settings.api.trusted_proxies).is_proxy)
    health = TaskHealth("connection-shares", required=False)
    sharing = BackgroundTask("connection-shares", shares.enforce, period_s=EVERY_S, health=health)
    server = Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.ASGINL,  # no lifespan: the house was started before
        backlog=BACKLOG,
        backpressure=max_connections,
        http=HTTPModes.http1,  # in the mode that takes HTTP/2 too, a connection that sends nothing is never closed
        http1_settings=HTTP1Settings(
            header_read_timeout=settings.api.header_timeout_s * 1_000, max_buffer_size=CONNECTION_BUFFER_BYTES
        ),
        websockets=False,
        log_enabled=False,
    )
    serving = asyncio.create_task(server.serve(), name="granian")
    waiting = asyncio.create_task(stopping.wait(), name="stop-signal")
    await sharing.start()
    try:
        await _listening(host, port, serving)
        log.info("api-ready", host=host, port=port)
        notify_ready(ready_socket())
        if ready is not None:
            ready()
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.is_set():
            raise Broken("The HTTP server ended by itself; start it again and look at the lines before this one.")
    finally:
        waiting.cancel()
        await sharing.stop()
        house.insights.hang_up()  # live tails end now: they would hold the stop until they are cut
        await _stop(server, serving, settings.api.kill_timeout_s)


async def _stop(server: Server, serving: asyncio.Task[Any], patience_s: float) -> None:
    """Lets open requests finish for a while, then cuts them: a stream or a half-sent body would hold us for ever."""
    server.stop()  # type: ignore[no-untyped-call] # Granian's own signature
    done, _ = await asyncio.wait((serving,), timeout=patience_s)
    if not done:
        log.warning("requests-cut", after_s=patience_s)
        serving.cancel()
        await asyncio.wait((serving,), timeout=1.0)


async def _listening(host: str, port: int, serving: asyncio.Task[Any]) -> None:
    """Waits until the port answers, so that `api-ready` is true when it is said."""
    address = "127.0.0.1" if host in ("0.0.0.0", "") else "::1" if host == "::" else host  # noqa: S104 - a comparison
    async with asyncio.timeout(READY_WITHIN_S):
        while not serving.done():
            try:
                _, writer = await asyncio.open_connection(address, port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
    await serving


def _check_free(host: str, port: int) -> None:
    """Granian shares a port with whoever has it already; a second installation must be told instead."""
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(info[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(info[4])
    except OSError as error:
        raise Broken(
            f"The port {host}:{port} cannot be opened ({error.strerror}); nothing was started. "
            "Stop whoever has it, or choose another with HANDBILL_API__PORT.",
            code="PORT_TAKEN",
        ) from None


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """SIGTERM and SIGINT set the event while the block runs."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        yield stopping
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
