"""The server: a list of route tables over one world. A new family of objects is a module and a line here."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from handbill.fake_graph import control, insights, messages, nodes, templates
from handbill.fake_graph.errors import GraphError
from handbill.fake_graph.model import Config
from handbill.fake_graph.world import World
from handbill.kit.errors import Broken

Table = Callable[[World], list[web.RouteDef]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TABLES: tuple[Table, ...] = (
    messages.routes,
    templates.routes,
    control.routes,
    lambda world: insights.routes(insights.demo(world.config.ad_accounts)),
    nodes.routes,
)
"""Tried from the top: the busiest first, and `nodes` last, since it answers for any id."""


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors of a handler in the real server's words; an address that nobody has, too."""
    try:
        return await handler(request)
    except GraphError as error:
        return error.response()
    except web.HTTPNotFound:
        return GraphError(2500, "Unknown path components.", status=400).response()


def make_app(world: World) -> web.Application:
    app = web.Application(middlewares=[_errors], client_max_size=nodes.MEDIA_LIMIT + 65_536)
    for table in TABLES:
        app.add_routes(table(world))

    async def courier(_: web.Application) -> AsyncIterator[None]:
        await world.courier.start()
        yield
        await world.courier.stop()

    app.cleanup_ctx.append(courier)
    return app


class FakeGraph:
    """A running server; `url` says where. For the command and for tests alike."""

    def __init__(self, config: Config | None = None, *, world: World | None = None) -> None:
        self.world = world or World(config)
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._runner = web.AppRunner(make_app(self.world), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=2048)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            complaint = f"{host}:{port} cannot be listened on ({error}); nothing was started."
            raise Broken(complaint, code="PORT_TAKEN") from None
        taken = self._runner.addresses[0]
        self.url = f"http://{taken[0]}:{taken[1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def serve(config: Config, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM."""
    server = FakeGraph(config)
    await server.start(host, port)
    ready(server.url)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    try:
        await done.wait()
    finally:
        await server.stop()
