"""Servers at the level of sockets, on this machine's loopback addresses, and a record of where the loop connects to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from handbill.infra.safe_http import HttpPolicy

PUBLIC = "93.184.215.14"
LOCAL = HttpPolicy(https_only=False, public_only=False, ports=None)
"""For servers of the tests, on this machine."""
INSIDE = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
    )
)  # fmt: skip
inside = st.sampled_from(INSIDE).flatmap(lambda network: st.ip_addresses(v=4, network=str(network)))
"""IPv4 addresses of networks that are not public."""
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Listener:
    """Counts the connections that it accepts, keeps the heads of requests, and answers as the test wants."""

    def __init__(self, answer: Answer | None) -> None:
        self._answer = answer
        self.accepted = 0
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if self._answer is not None:
                    self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                    await self._answer(reader, writer)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def listening(answer: Answer | None = None, host: str = "127.0.0.1") -> AsyncIterator[Listener]:
    """Without `answer`, a connection is accepted and closed."""
    listener = Listener(answer)
    server = await asyncio.start_server(listener.serve, host, 0)
    listener.port = server.sockets[0].getsockname()[1]
    async with server:
        yield listener


def reply(body: bytes, head: bytes = HEAD, segments: int = 1) -> Answer:
    """A whole reply. Between segments the loop turns often enough for the other side to read each by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        size = -(-len(body) // segments) or 1
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            await writer.drain()
            for _ in range(50 if segments > 1 else 1):
                await asyncio.sleep(0)

    return answer


def redirect(location: str, status: int = 302) -> Answer:
    return reply(b"", b"HTTP/1.1 %d Found\r\nLocation: %s\r\n" % (status, location.encode()))


@contextlib.contextmanager
def recording_connects() -> Iterator[list[str]]:
    """Every address that the running loop connects a socket to; only loopback addresses are really connected to."""
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect
    addresses: list[str] = []

    async def record(sock: Any, address: Any) -> None:
        addresses.append(address[0])
        if not address[0].startswith("127."):
            raise ConnectionRefusedError(f"{address[0]} is not called by a test")
        await connect(sock, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "sock_connect", record)
        yield addresses
