"""HTTP clients at the level of sockets, from any loopback address: half requests, slow bodies, open connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from tests.kit.waiting import soon

TARGET = "/v1/events"


class RawClient:
    """One connection, of which the test decides every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, address: str = "127.0.0.1") -> RawClient:
        """A connection that comes from `address`."""
        opening = asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        return cls(*await soon(opening, what=f"a connection from {address}"))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await soon(self._writer.drain(), what="the other side takes our bytes")

    async def announce(self, length: int | None, path: str = TARGET, **headers: str) -> None:
        """The head of a POST whose body has `length` bytes, or comes in chunks."""
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", size]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def send_chunk(self, data: bytes) -> None:
        """One chunk of a chunked body; an empty one ends it."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def answer(self) -> RawAnswer | None:
        """The answer, or nothing if the connection was closed without one."""
        try:
            head = await soon(self._reader.readuntil(b"\r\n\r\n"), what="an answer, or the end of the connection")
            first, *lines = head.decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await soon(self._reader.readexactly(int(headers.get("content-length", 0))), what="an answer's body")
        except (asyncio.IncompleteReadError, OSError):
            return None
        return RawAnswer(int(first.split(" ")[1]), headers, body)

    async def closed(self) -> bytes:
        """Waits until the other side has closed; what it sent before."""
        try:
            return await soon(self._reader.read(), what="the end of the connection")
        except OSError:
            return b""

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class RawAnswer:
    """What came back over a raw connection."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self) -> Any:
        """The code of a problem."""
        return json.loads(self.body)["code"]
