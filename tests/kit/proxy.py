"""A stand-in for the network between us and an engine: it can cut, freeze, refuse, and watch for words.

`async with proxy(url) as (net, through):` listens on a port of its own, passes bytes both ways, and gives the URL that
leads through it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    def __init__(self, url: str) -> None:
        self.aim(url)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._refusing = False
        self.port = 0
        self.accepted = 0
        self.watch_for: bytes | None = None  # count what clients send with this in it, also while frozen
        self.watched = 0
        self.cut_on: bytes | None = None  # cut as soon as a client sends this; the engine does not see it
        self.cut_after: bytes | None = None  # the engine sees it, the client never gets the answer

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def down(self) -> None:
        """Cut what is open, and every newcomer. The port stays ours, so that nobody else can take it meanwhile."""
        self._refusing = True
        self.cut()

    def up(self) -> None:
        self._refusing = False

    def aim(self, url: str) -> None:
        """From now on newcomers are led to the engine at this URL."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Bytes stay where they are; connections stay open: the worst kind of silence."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            away_reader, away_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(away_writer)
        for task in (
            asyncio.create_task(self._pass(reader, away_writer, writer, sending=True)),
            asyncio.create_task(self._pass(away_reader, writer, away_writer, sending=False)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter, *, sending: bool
    ) -> None:
        swallow = False
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if sending and self.watch_for is not None and self.watch_for in data:
                    self.watched += 1
                await self._thawed.wait()
                if sending and self.cut_on is not None and self.cut_on in data:
                    self.cut_on = None
                    break
                if sending and self.cut_after is not None and self.cut_after in data:
                    self.cut_after = None
                    swallow = True
                writer.write(data)
                await writer.drain()
                if swallow:
                    back.transport.abort()
                    break
        writer.transport.abort() if not swallow else writer.close()
        back.transport.abort()

    async def close(self) -> None:
        self.thaw()
        self.down()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of the engine at `url`, and the URL that goes through it."""
    parts = urlsplit(url)
    net = Proxy(url)
    await net.listen()
    login = parts.netloc.rpartition("@")[0]
    try:
        yield net, urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{net.port}"))
    finally:
        await net.close()
