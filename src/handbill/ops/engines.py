"""The embedded engines as the supervisor and the operator's tools use them: only those that have no URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from handbill.infra.embedded.clickhouse import start_clickhouse
from handbill.infra.embedded.home import Home
from handbill.infra.embedded.postgres import start_postgres
from handbill.infra.embedded.process import Engine
from handbill.infra.embedded.redis import start_redis
from handbill.settings import Settings, replace
from handbill.wiring import addresses

STARTERS: dict[str, Callable[..., Awaitable[Engine]]] = {
    "postgres": start_postgres,
    "redis": start_redis,
    "clickhouse": start_clickhouse,
}


class Starter:
    """Starts one engine; every later start uses the first one's port, so that its address never changes."""

    def __init__(self, name: str, home: Path, port: int | None) -> None:
        self.name = name
        self.url = ""
        self._home = home
        self._port = port

    async def __call__(self) -> Engine:
        engine = await STARTERS[self.name](self._home, port=self._port)
        self.url = engine.url
        self._port = urlsplit(engine.url).port
        return engine


def starters(settings: Settings, home: Path) -> list[Starter]:
    return [Starter(name, home, getattr(settings, name).port) for name in addresses.missing(settings)]


@asynccontextmanager
async def borrowed(settings: Settings) -> AsyncIterator[Settings]:
    """The settings with every address filled in: a running `up` lends its engines, else they run for this block."""
    if not addresses.missing(settings):
        yield settings
        return
    if addresses.running(settings):
        yield addresses.resolve(settings)
        return
    async with own(settings) as known:
        yield known


@asynccontextmanager
async def own(settings: Settings) -> AsyncIterator[Settings]:
    """The embedded engines for this block alone; refused while an `up` runs on the home."""
    if not addresses.missing(settings):
        yield settings
        return
    with Home.open(Path(settings.home)) as home:
        wanted = starters(settings, home.path)
        started = await asyncio.gather(*(starter() for starter in wanted), return_exceptions=True)
        engines = [engine for engine in started if not isinstance(engine, BaseException)]
        try:
            for failure in started:
                if isinstance(failure, BaseException):
                    raise failure
            yield replace(settings, {f"{starter.name}.url": starter.url for starter in wanted})
        finally:
            for engine in reversed(engines):
                await engine.stop()
