"""Fair shares of open connections: who is cut back, by how much, and which of its connections go."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.api import connections
from handbill.api.connections import (
    ALWAYS_KEPT,
    SPARE_FILES,
    Connection,
    ConnectionShares,
    allowed_connections,
    share_of,
    surplus,
)
from tests.kit.waiting import soon

counts_of_addresses = st.dictionaries(st.binary(min_size=1, max_size=4), st.integers(1, 300), min_size=1, max_size=30)


def held(counts: dict[bytes, int]) -> list[Connection]:
    return [Connection(n, address, n * 7 % 50) for address, count in counts.items() for n in range(count)]


@given(counts_of_addresses, st.integers(0, 1_000))
def test_only_addresses_above_an_equal_share_are_cut_back(counts: dict[bytes, int], room: int) -> None:
    share = share_of(counts, room)
    cut = Counter(connection.address for connection in surplus(held(counts), room))
    left = {address: count - cut[address] for address, count in counts.items()}
    assert all(count <= share for count in left.values())
    assert all(cut[address] == 0 for address, count in counts.items() if count <= max(share, ALWAYS_KEPT))
    assert sum(left.values()) <= max(room, ALWAYS_KEPT * len(counts))
    if cut:
        assert sum(left.values()) > room - len(counts), "no more are cut than must be"


def test_the_longest_silent_are_cut_first() -> None:
    busy = [Connection(n, b"a", 0) for n in range(10)]
    silent = [Connection(n, b"a", 1_000 + n) for n in range(10, 20)]
    few = [Connection(n, b"b", 90_000) for n in range(20, 25)]
    assert surplus([*busy, *silent, *few], 15) == silent[::-1]


async def open_to(port: int, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]


@pytest.mark.parametrize("exempt", [False, True])
async def test_real_connections_are_cut_but_not_those_of_a_proxy_nor_other_sockets(exempt: bool) -> None:
    arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.put_nowait(writer)

    async with (
        await asyncio.start_server(accept, "127.0.0.1", 0) as server,
        await asyncio.start_server(accept, "127.0.0.1", 0) as other,
    ):
        port, other_port = (each.sockets[0].getsockname()[1] for each in (server, other))
        clients, bystanders = await open_to(port, 20), await open_to(other_port, 5)
        writers = [await soon(arrived.get()) for _ in range(25)]
        await ConnectionShares(port, 100, lambda _: exempt).enforce()
        assert all(not writer.transport.is_closing() for writer in writers), "there is enough room"
        await ConnectionShares(port, 20, lambda _: exempt).enforce()
        closed = [asyncio.create_task(reader.read()) for reader, _ in clients]
        if exempt:
            await asyncio.sleep(0)
            assert not any(task.done() for task in closed)
        else:
            for count in range(10):
                done, _ = await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED, timeout=60)
                assert done, f"{count} of 10 are closed"
                closed = [task for task in closed if task not in done]
                if len(closed) == 10:
                    break
            assert len(closed) == 10
        assert not any(reader.at_eof() for reader, _ in bystanders)
        for task in closed:
            task.cancel()
        await asyncio.gather(*closed, return_exceptions=True)
        for writer in [*writers, *(writer for _, writer in (*clients, *bystanders))]:
            writer.close()


@pytest.mark.parametrize(
    ("limits", "allowed", "raised"),
    [
        ((100_000, 100_000), 1_024, None),
        ((1_024, 4_096), 1_024, 1_024 + SPARE_FILES),
        ((1_024, resource.RLIM_INFINITY), 1_024, 1_024 + SPARE_FILES),
        ((1_024, 1_024), 1_024 - SPARE_FILES, 1_024),
        ((64, 64), 16, 64),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1_024, None),
    ],
)
def test_no_more_connections_are_taken_than_there_are_files_for(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], allowed: int, raised: int | None
) -> None:
    changed: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: changed.append(pair[0]))
    assert allowed_connections(1_024) == allowed
    assert changed == ([] if raised is None else [raised])


def test_silence_is_read_from_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x")
        assert 0 <= connections._silent_ms(client) < 3_600_000
