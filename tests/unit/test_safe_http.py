"""Outgoing HTTP: no spelling, name or redirect leads to an address inside, and replies are read whole or refused."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from handbill.infra import safe_http
from handbill.infra.safe_http import (
    HttpPolicy,
    NotConnected,
    PublicAddressResolver,
    ReplyTooLarge,
    RequestFailed,
    SafeHttpClient,
    is_public_address,
    read_limited,
)
from handbill.jobs.defaults import defaults_of
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Busy, Invalid
from handbill.settings import Settings
from handbill.tenants import jwks
from handbill.tenants.jwks import KeySets
from handbill.wiring.messaging import hook_policy
from tests.kit.sockets import HEAD, LOCAL, PUBLIC, Answer, inside, listening, recording_connects, redirect, reply
from tests.kit.waiting import eventually, soon

GUARDED = HttpPolicy(https_only=False, ports=None)
"""Public addresses only, but plain HTTP and any port: where nothing but the check of addresses is in the way."""

SPELLINGS = (
    "127.0.0.1", "2130706433", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.0x1", "１２７.０.０.１",
    "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "①②⑦.⓪.⓪.①", "①27.0.0.1", "¹²⁷.⁰.⁰.¹", "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
    "०.०.०.०", "1२७.0.0.1", "١٢٧.٠.٠.١", "１２７.１", "①②⑦.①", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::1]", "[::]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[::ffff:0:7f00:1]",
    "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[2606:4700::5efe:7f00:1]", "[fe80::1%25lo]", "[::1%25lo]",
    "[fd00::1]", "[fec0::1]", "0", "0.0.0.0", "localhost", "localhost.", "127.0.0.1.", "ⓛocalhost", "LOCALHOST",
    "example.com\\@127.0.0.1", "a@127.0.0.1", "a:b@127.0.0.1", "@127.0.0.1", "127.0.0.1%00.example.com",
    "127.0.0.1\t", "127.0.0.1\n", "\x00127.0.0.1", "127.0.0.1%2eexample.com", "127.0.0.1\u200b", "127.0.0.1\u3000",
    "169.254.169.254", "2852039166", "0xa9fea9fe", "168.63.129.16", "100.100.100.200", "192.0.0.192",
)  # fmt: skip


@contextlib.asynccontextmanager
async def client(policy: HttpPolicy) -> AsyncIterator[SafeHttpClient]:
    made = SafeHttpClient(policy)
    try:
        yield made
    finally:
        await made.close()


@contextlib.contextmanager
def names(*answers: list[str]) -> Iterator[list[str]]:
    """DNS gives these answers, one after the other and the last one for ever; yields the names it was asked for."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        addresses = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        yield asked


async def refuse(policy: HttpPolicy, url: str) -> Exception:
    async with client(policy) as http:
        with pytest.raises((Invalid, NotConnected)) as refused:
            await http.request("POST", url, body=b"{}")
    return refused.value


# --- no connection to an address inside


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_of_an_address_inside_is_connected_to(host: str) -> None:
    async with listening() as listener:
        with recording_connects() as connects, names(["127.0.0.1"]):
            for url in (f"http://{host}:{listener.port}/", f"https://{host}:{listener.port}/", f"https://{host}/"):
                await refuse(GUARDED, url)
            await refuse(HttpPolicy(), f"https://{host}:8443/")
        assert connects == []
        assert listener.accepted == 0


DIGITS = ("0123456789", "０１２３４５６７８９", "⓪①②③④⑤⑥⑦⑧⑨", "⁰¹²³⁴⁵⁶⁷⁸⁹", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९")


@given(inside, st.data())
async def test_no_mixture_of_digits_and_dots_is_connected_to(
    address: ipaddress.IPv4Address, data: st.DataObject
) -> None:
    scripts = data.draw(st.sampled_from((DIGITS[:5], DIGITS[5:], DIGITS)))  # IDNA turns the first five into ASCII
    host = "".join(
        data.draw(st.sampled_from(".。．｡")) if letter == "." else data.draw(st.sampled_from(scripts))[int(letter)]
        for letter in str(address)
    )
    with recording_connects() as connects, names(["127.0.0.1"]):
        await refuse(GUARDED, f"http://{host}/")
    assert connects == []


async def test_a_name_that_changes_to_loopback_is_not_followed() -> None:
    async with listening() as listener, client(GUARDED) as http:
        with recording_connects() as connects, names([PUBLIC], ["127.0.0.1"], ["127.0.0.1", PUBLIC]) as asked:
            for _ in range(3):
                with pytest.raises(NotConnected):
                    await http.request("GET", f"http://example.com:{listener.port}/")
        assert asked == ["example.com"] * 3
        assert connects == [PUBLIC, PUBLIC]
        assert listener.accepted == 0


async def test_the_connector_checks_what_the_resolver_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}]

    monkeypatch.setattr(PublicAddressResolver, "resolve", resolve)
    async with listening() as listener:
        with recording_connects() as connects:
            assert isinstance(await refuse(GUARDED, f"http://example.com:{listener.port}/"), NotConnected)
        assert connects == []
        assert listener.accepted == 0


# --- redirects


@pytest.fixture
def one_public_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1 counts as public, so that a first request can be answered; 127.0.0.2 does not."""
    monkeypatch.setattr(safe_http, "is_public_address", lambda text: text == "127.0.0.1" or is_public_address(text))


@pytest.mark.usefixtures("one_public_loopback")
@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://127.0.0.2:{}/", Invalid),
        ("http://１２７.０.０.２:{}/", Invalid),
        ("http://[::ffff:127.0.0.2]:{}/", Invalid),
        ("http://example.com:{}/", NotConnected),
    ],
)
async def test_a_redirect_is_checked_like_the_first_url(location: str, error: type[Exception]) -> None:
    policy = HttpPolicy(https_only=False, ports=None, max_redirects=3)
    async with listening(host="127.0.0.2") as target:
        async with listening(redirect(location.format(target.port))) as first, client(policy) as http:
            with recording_connects() as connects, names(["127.0.0.2"]), pytest.raises(error):
                await http.get(f"http://127.0.0.1:{first.port}/")
        assert (first.accepted, target.accepted, connects) == (1, 0, ["127.0.0.1"])


async def test_redirects_are_followed_only_where_allowed_and_only_so_often() -> None:
    hops = 0

    async def around(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal hops
        hops += 1
        await redirect(f"/{hops}")(reader, writer)

    async with listening(around) as listener:
        url = f"http://127.0.0.1:{listener.port}/"
        async with client(LOCAL) as http:
            response = await http.request("GET", url)
            assert (response.status, response.headers["location"], hops) == (302, "/1", 1)
        async with client(HttpPolicy(https_only=False, public_only=False, ports=None, max_redirects=3)) as http:
            with pytest.raises(RequestFailed) as failed:
                await http.get(url)
    assert (failed.value.reason, hops) == ("TooManyRedirects", 1 + 4)


async def test_credentials_do_not_travel_to_another_host() -> None:
    policy = HttpPolicy(https_only=False, public_only=False, ports=None, max_redirects=1)
    async with (
        listening(reply(b"there")) as target,
        listening(redirect(f"http://localhost:{target.port}/")) as first,
        client(policy) as http,
    ):
        url = f"http://127.0.0.1:{first.port}/"
        response = await http.request("GET", url, headers={"Authorization": "Bearer secret"})
    assert response.body == b"there"
    assert b"secret" in first.requests[0]
    assert b"secret" not in target.requests[0]


async def test_cookies_are_not_kept() -> None:
    async with listening(reply(b"{}", HEAD + b"Set-Cookie: a=1\r\n")) as listener, client(LOCAL) as http:
        for _ in range(2):
            await http.get(f"http://localhost:{listener.port}/")
    assert [b"cookie" in request.lower() for request in listener.requests] == [False, False]


# --- replies


async def test_a_key_set_in_many_segments_is_read_whole() -> None:
    keys = [{"kid": str(n), **json.loads(ECAlgorithm.to_jwk(_public_key()))} for n in range(50)]
    body = json.dumps({"keys": keys}).encode()
    async with listening(reply(body, segments=9)) as listener, client(LOCAL) as http:
        url = f"http://127.0.0.1:{listener.port}/"
        assert await http.get(url) == body
        assert len((await KeySets(http, SystemClock()).get(url, None))["keys"]) == 50


def _public_key() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP256R1()).public_key()


class Chunks:
    """A stream without an end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.read = 0

    async def iter_any(self) -> AsyncIterator[bytes]:
        while True:
            self.read += self._size
            yield b"x" * self._size


@given(st.integers(0, 10_000), st.integers(1, 5_000))
async def test_reading_ends_with_the_chunk_that_passes_the_limit(limit: int, size: int) -> None:
    stream: Any = Chunks(size)
    assert await read_limited(stream, limit) is None
    assert limit < stream.read <= limit + size


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Connection: close\r\n\r\n")
    while True:
        writer.write(b"x" * 10_000)
        await writer.drain()


@pytest.mark.parametrize(
    "answer",
    [
        endless,
        reply(b"x" * 100_001),
        reply(gzip.compress(b"x" * 50_000_000), HEAD + b"Content-Encoding: gzip\r\n"),
    ],
)
async def test_a_reply_above_the_limit_is_refused(answer: Answer) -> None:
    policy = HttpPolicy(https_only=False, public_only=False, ports=None, max_bytes=100_000, total_s=60)
    async with listening(answer) as listener, client(policy) as http:
        with pytest.raises(ReplyTooLarge, match="larger than 100000 bytes") as refused:
            await http.get(f"http://127.0.0.1:{listener.port}/")
    assert refused.value.reply_status == 200


async def test_a_body_that_nobody_needs_is_not_read() -> None:
    async with listening(endless) as listener, client(LOCAL) as http:
        response = await http.request("POST", f"http://127.0.0.1:{listener.port}/", body=b"{}", read_body=False)
    assert (response.status, response.body) == (200, b"")


async def test_a_body_that_drips_is_ended_by_the_total_time() -> None:
    between_s = 0.005

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(between_s)  # sleeps: the server must be slow

    policy = HttpPolicy(https_only=False, public_only=False, ports=None, total_s=0.2, read_s=60)
    async with listening(drip) as listener, client(policy) as http:
        with pytest.raises(RequestFailed) as failed:
            await http.get(f"http://127.0.0.1:{listener.port}/")
    assert (failed.value.reason, failed.value.reply_status) == ("TimeoutError", 200)


async def test_a_failure_does_not_say_whether_a_port_is_open() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()

    policy = HttpPolicy(https_only=False, public_only=False, ports=None, total_s=1)
    failures = []
    async with listening(silent) as hung, listening(garbage) as other, listening() as closing, client(policy) as http:
        async with listening() as closed:
            pass
        for url in (
            f"http://127.0.0.1:{closed.port}/",
            f"http://127.0.0.1:{closing.port}/",
            f"http://127.0.0.1:{hung.port}/",
            f"http://127.0.0.1:{other.port}/",
            f"https://127.0.0.1:{other.port}/",
            "http://name.invalid/",
        ):
            with pytest.raises(Busy) as failed:
                await http.get(url)
            failures.append(failed.value)
    assert {(failure.code, failure.detail) for failure in failures} == {
        ("OUTGOING_FAILED", "The URL could not be reached, or did not answer in time.")
    }
    assert len({failure.reason for failure in failures if isinstance(failure, RequestFailed)}) > 3


async def test_a_slow_host_leaves_connections_for_the_others() -> None:
    ended = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()

    policy = msgspec.structs.replace(LOCAL, connections=4, connections_per_host=2, total_s=30.0)
    async with listening(hang) as slow, listening(reply(b"{}")) as quick, client(policy) as http:
        stuck = [asyncio.create_task(http.get(f"http://127.0.0.1:{slow.port}/{number}")) for number in range(8)]
        await eventually(lambda: slow.accepted == 2, what="the slow host has its connections")
        assert await soon(http.get(f"http://127.0.0.1:{quick.port}/")) == b"{}"
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        ended.set()
    assert jwks.POLICY.connections_per_host * 2 <= jwks.POLICY.connections


def test_outgoing_webhooks_have_a_connection_for_each_slot() -> None:
    assert hook_policy(Settings()).connections >= defaults_of("webhooks").concurrency
