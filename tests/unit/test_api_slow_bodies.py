"""Bodies under way: room as bytes come, limits of one address, deadlines and least rates, by a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from handbill.api.bodies import BodyReader
from handbill.api.body_budget import SMALL_BYTES, BodyLimits, network_of
from handbill.api.clients import Clients
from handbill.api.cors import Cors
from handbill.api.frontdoor import FrontDoor
from handbill.api.reply_rate import ReplyRate
from handbill.kit.errors import Busy, HandbillError, Throttled, TooSlow
from tests.kit.clocks import FakeClock

LARGE = 20_000_000
PART = SMALL_BYTES
LIMITS = BodyLimits(
    timeout_s=30.0,
    bytes_per_s=100,
    upload_bytes_per_s=10,
    held_bytes=PART * 5,
    held_bytes_per_address=PART * 3,
    bodies_per_address=4,
)


class Client:
    """Sends what the test puts; the reader waits for it as for a network."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.scope = {"type": "http", "client": (address, 1)}
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reading: asyncio.Task[Any] | None = None

    def send(self, body: bytes, *, more: bool = True) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def begin(self, reader: BodyReader, body: bytes = b"{") -> None:
        self.send(body)
        headers = {b"content-length": b"%d" % LARGE}
        self.reading = asyncio.create_task(reader.read(self.scope, headers, self.messages.get, LARGE))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reader(clock: FakeClock) -> BodyReader:
    return BodyReader(LIMITS, Clients([]), clock)


async def settle() -> None:
    """Every task that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def end(*clients: Client) -> None:
    for client in clients:
        if client.reading is not None:
            client.reading.cancel()
    await asyncio.gather(*(client.reading for client in clients if client.reading), return_exceptions=True)


async def test_a_body_holds_what_has_come_and_not_what_was_announced(reader: BodyReader) -> None:
    slow = [Client(f"192.0.2.{number}") for number in range(1, 201)]
    for client in slow:
        client.begin(reader)
    await settle()
    assert reader.budget.held == 200
    honest = Client("198.51.100.1")
    honest.begin(reader, b"x" * PART)
    honest.send(b"x" * PART, more=False)
    assert honest.reading is not None
    body, held = await honest.reading
    assert (len(body), reader.budget.held) == (2 * PART, 200 + 2 * PART)
    assert held is not None
    held.release()
    held.release()
    await end(*slow)
    assert reader.budget.held == 0


async def test_a_body_that_comes_at_once_holds_nothing_and_leaves_no_wait(reader: BodyReader) -> None:
    client = Client()
    client.send(b"{}", more=False)
    assert await reader.read(client.scope, {}, client.messages.get, 100) == (b"{}", None)
    assert not reader.deadlines.waiting


async def test_one_address_cannot_take_all_the_room(reader: BodyReader) -> None:
    greedy = [Client(), Client()]
    for client in greedy:
        client.begin(reader, b"x" * PART)
    await settle()
    greedy[0].send(b"x" * PART)
    await settle()
    greedy[1].send(b"x" * PART)
    greedy[1].send(b"x", more=False)
    assert greedy[1].reading is not None
    with pytest.raises(Busy) as refused:
        await greedy[1].reading
    assert (refused.value.code, refused.value.retry_after) == ("BODIES_BUSY", 1.0)
    assert reader.budget.held == 2 * PART
    small, honest = Client(), Client("198.51.100.1")
    small.begin(reader, b"x" * 10)
    honest.begin(reader, b"x" * PART)
    honest.send(b"x" * PART, more=False)
    assert honest.reading is not None
    assert len((await honest.reading)[0]) == 2 * PART
    await end(*greedy, small)


async def test_one_address_has_a_limit_of_bodies_under_way(reader: BodyReader) -> None:
    slow = [Client() for _ in range(LIMITS.bodies_per_address)]
    for client in slow:
        client.begin(reader)
    await settle()
    one_more, other = Client(), Client("198.51.100.1")
    one_more.begin(reader)
    one_more.send(b"", more=False)
    assert one_more.reading is not None
    with pytest.raises(Throttled) as refused:
        await one_more.reading
    assert refused.value.code == "TOO_MANY_BODIES"
    other.begin(reader)
    await settle()
    assert reader.budget.held == LIMITS.bodies_per_address + 1
    await end(*slow, other)
    again = Client()
    again.begin(reader)
    await settle()
    assert reader.budget.held == 1
    await end(again)


@pytest.mark.parametrize("sent", [b"", b"{"])
async def test_a_client_that_sends_no_more_is_cut_at_the_deadline(
    reader: BodyReader, clock: FakeClock, sent: bytes
) -> None:
    client = Client()
    if sent:
        client.begin(reader, sent)
    else:
        client.reading = asyncio.create_task(reader.read(client.scope, {}, client.messages.get, 100))
    await settle()
    clock.advance(seconds=29.9)
    reader.deadlines.sweep()
    await settle()
    assert client.reading is not None
    assert not client.reading.done()
    clock.advance(seconds=0.1)
    reader.deadlines.sweep()
    with pytest.raises(TooSlow):
        await client.reading
    assert (reader.budget.held, reader.deadlines.waiting) == (0, 0)


async def test_a_cancellation_from_outside_stays_one(reader: BodyReader) -> None:
    client = Client()
    client.begin(reader)
    await settle()
    assert client.reading is not None
    client.reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.reading
    assert (reader.budget.held, reader.deadlines.waiting) == (0, 0)


def steps(clock: FakeClock, sizes: list[int], seconds: float) -> Callable[[], Any]:
    """Messages of these sizes, one every so many seconds."""
    left: Iterator[int] = iter(sizes)

    async def receive() -> dict[str, Any]:
        clock.advance(seconds=seconds)
        size = next(left, None)
        return {"type": "http.request", "body": b"x" * (size or 0), "more_body": size is not None}

    return receive


@pytest.mark.parametrize(
    ("sizes", "seconds", "passes"),
    [
        ([1_000] * 30, 9.9, True),  # 101 bytes a second, for five minutes
        ([1_000] * 30, 10.1, False),  # 99 bytes a second
        ([20_000, *[10] * 40], 9.0, False),  # fast first, slow then
        ([10] * 20, 1.0, True),  # small and slow, but whole in 30 s
        ([10] * 40, 1.0, False),
    ],
)
async def test_a_body_has_a_least_rate(
    reader: BodyReader, clock: FakeClock, sizes: list[int], seconds: float, passes: bool
) -> None:
    receive = steps(clock, sizes, seconds)
    if passes:
        body, held = await reader.read(Client().scope, {}, receive, LARGE)
        assert len(body) == sum(sizes)
        assert held is not None
        held.release()
    else:
        with pytest.raises(TooSlow):
            await reader.read(Client().scope, {}, receive, LARGE)
    assert reader.budget.held == 0


@pytest.mark.parametrize(
    ("opt", "sizes", "seconds", "code"),
    [
        ({"streams": True}, [100] * 100, 9.0, None),  # 11 bytes a second for 15 minutes
        ({"streams": True}, [100] * 100, 10.1, "BODY_TOO_SLOW"),
        ({}, [100] * 100, 9.0, "BODY_TOO_SLOW"),
        ({}, [PART, PART, PART, PART], 0.1, "BODIES_BUSY"),
        ({"streams": True}, [PART, PART, PART, PART], 0.1, None),
    ],
)
async def test_routes_that_are_not_hot_have_the_same_limits(
    reader: BodyReader, clock: FakeClock, opt: dict[str, Any], sizes: list[int], seconds: float, code: str | None
) -> None:
    """Files that are stored as they come hold no memory, and have a lower rate."""
    codes: list[str | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["route_handler"] = SimpleNamespace(opt=opt)
        try:
            while (await receive()).get("more_body"):
                clock.advance(seconds=5 if opt else 0)  # our own work is not the client's time
            codes.append(None)
        except HandbillError as error:
            codes.append(error.code)

    door = FrontDoor(
        app, clients=Clients([]), cors=Cors([]), body_limit=LARGE, bodies=reader, replies=ReplyRate(FakeClock())
    )
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": [(b"content-type", b"text/csv")]}

    async def send(_: Any) -> None:
        return None

    await door(scope, steps(clock, sizes, seconds), send)
    assert codes == [code]
    assert reader.budget.held == 0


def test_an_address_is_a_host_of_ipv4_or_a_network_of_ipv6() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == network_of("2001:db8::2%eth0")
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("a:b") != network_of("")
