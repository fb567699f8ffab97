"""The bench frame: the generator counts what the server counts, rounds alternate, and the last line is JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from benches import _load
from benches._bench import Options, Result, Wrong, alternating, line, require
from benches._load import Report, Request, client_address
from tests.kit.optional import need


class Server:
    """As much of HTTP as a generator needs."""

    def __init__(self) -> None:
        self.addresses: Counter[str] = Counter()
        self.bodies: Counter[bytes] = Counter()
        self.answered = 0
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(row.split(": ", 1) for row in head.strip().split("\r\n")[1:])
                body = await reader.readexactly(int(fields.get("Content-Length", 0)))
                self.addresses[fields["X-Forwarded-For"]] += 1
                self.bodies[body] += 1
                status = b"404 Not Found" if b"bad" in body else b"202 Accepted"
                writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 5\r\n\r\nhello")
                self.answered += 1
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    built = Server()
    listening = await asyncio.start_server(built.talk, "127.0.0.1", 0)
    built.port = listening.sockets[0].getsockname()[1]
    yield built
    listening.close()
    await listening.wait_closed()


def requests(bodies: list[bytes]) -> list[Request]:
    return [Request("POST", "/x", {"X-Forwarded-For": client_address(n)}, body) for n, body in enumerate(bodies)]


async def own(server: Server, bodies: list[bytes], count: int, rate: float = 0) -> Report:
    """Until `count` replies came, however long that takes on this machine."""
    return await _load._own("127.0.0.1", server.port, requests(bodies), 120, 0.0, 4, rate, count)


async def test_our_generator_counts_what_the_server_answers(server: Server) -> None:
    report = await own(server, [b"one", b"two", b"bad"], count=300)
    assert report.sample == "hello"
    assert set(report.statuses) == {"202", "404"}
    assert report.failed == report.statuses["404"] > 0
    assert 300 <= report.requests <= 303
    assert 0 <= server.answered - report.requests <= 4  # what was under way at the end is not counted
    assert set(server.addresses) == {"10.0.0.0", "10.0.0.1", "10.0.0.2"}
    assert max(server.bodies.values()) - min(server.bodies.values()) <= 5  # round and round


async def test_a_fixed_rate_is_never_exceeded(server: Server) -> None:
    report = await own(server, [b"one"], count=20, rate=100)
    assert report.seconds >= 0.19  # the twentieth was not due before


async def test_wrk_sends_the_same_requests(server: Server) -> None:
    report = await _load._wrk(need("wrk"), "127.0.0.1", server.port, requests([b"one", b"bad"]), 1, 1, 4)
    assert report.requests > 0
    assert report.failed > 0


async def test_rounds_alternate_and_the_median_counts() -> None:
    order: list[str] = []
    figures = iter([5.0, 10.0, 100.0, 6.0, 7.0, 11.0])

    async def value() -> float:
        order.append("value")
        return next(figures)

    async def limit() -> float:
        order.append("limit")
        return next(figures)

    rounds = await alternating(value, limit)
    assert order == ["value", "limit", "limit", "value", "value", "limit"]
    assert (rounds.value, rounds.limit) == (6.0, 11.0)


def test_the_last_line_is_json() -> None:
    found = json.loads(line("track", Result(12_345.678, "events/s", 20_000.0, {"size": 3}), Options(quick=True)))
    assert found == {
        "bench": "track",
        "value": 12_350.0,
        "unit": "events/s",
        "limit": 20_000.0,
        "ratio": 0.6173,
        "detail": {"quick": True, "size": 3},
    }


def test_a_wrong_result_has_no_speed() -> None:
    with pytest.raises(Wrong, match="one event is missing"):
        require(False, "one event is missing")
