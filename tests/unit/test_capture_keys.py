"""Before a key is accepted nothing is parsed, and whatever is large when unpacked is read in a thread."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from handbill.events.capture import KEYS_TRIED, Capture, CapturePolicy
from handbill.events.dialects.canon import Dialect, Moment, Opened
from handbill.events.dialects.router import READERS
from handbill.kit.clock import SystemClock
from handbill.kit.errors import HandbillError, Unauthorized
from handbill.kit.fast import FastReply, FastRequest
from handbill.tenants.model import Principal
from handbill.tenants.service import find_keys
from tests.kit.dialects import HEADERS
from tests.kit.growth import doubling

GOOD = "hbw_" + "g" * 32
UNKNOWN = "hbw_" + "u" * 32
SECRET = "hbs_" + "s" * 32
PATHS = {
    Dialect.OWN: "/v1/events",
    Dialect.POSTHOG: "/batch/",
    Dialect.POSTHOG_V1: "/i/v1/analytics/events",
    Dialect.SEGMENT: "/v1/batch",
}


class Keys:
    """A directory with one key in it, which counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def write_key(self, key: str) -> Principal | None:
        self.asked.append(key)
        return Principal(1, "write_key", frozenset(), actor="test") if key == GOOD else None

    async def profile(self, tenant_id: int) -> Any:
        class Any_:
            """Every setting, and none of them set."""

            def __getattr__(self, name: str) -> Any:
                return tenant_id if name == "tenant_id" else False if name == "truncate_ip" else Any_()

        return Any_()


class Seen(Capture):
    """Keeps nothing: what would go to the journal is only counted."""

    directory: Keys
    opened_in: list[str]

    async def _keep(self, *given: Any, **more: Any) -> FastReply:
        return FastReply(200, str(len(given[2].events)).encode())


@pytest.fixture
async def capture(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seen]:
    directory = Keys()
    made: Any = Seen(None, directory, None, None, SystemClock(), CapturePolicy())  # type: ignore[arg-type]
    made.directory, made.opened_in = directory, []
    for dialect, reader in READERS.items():

        def spied(
            request: FastRequest, body: bytes, moment: Moment, real: Callable[..., Opened] = reader.open
        ) -> Opened:
            made.opened_in.append(threading.current_thread().name.partition("_")[0])
            return real(request, body, moment)

        monkeypatch.setitem(READERS, dialect, msgspec.structs.replace(reader, open=spied))
    await made.start()
    yield made
    await made.stop()


async def send(here: Seen, dialect: Dialect, body: bytes, query: bytes = b"", **headers: str) -> int:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    if dialect is Dialect.POSTHOG_V1:
        named = {**HEADERS, **named}
    request = FastRequest("POST", PATHS[dialect], query, named, body, "203.0.113.7", "r")
    try:
        return (await here.take(dialect, request)).status
    except HandbillError as error:
        return error.status


def outer(dialect: Dialect, key: str) -> dict[str, Any]:
    """The key where this dialect has it outside the body."""
    where: dict[Dialect, dict[str, Any]] = {
        Dialect.OWN: {"x_write_key": key},
        Dialect.POSTHOG: {"query": b"api_key=" + key.encode()},
        Dialect.POSTHOG_V1: {"authorization": f"Bearer {key}"},
        Dialect.SEGMENT: {"authorization": "Basic " + base64.b64encode(f"{key}:".encode()).decode()},
    }
    return where[dialect]


def events(dialect: Dialect, count: int = 1, **more: Any) -> bytes:
    one = {"event": "seen", "distinct_id": "ada", "uuid": "u", "timestamp": "2026-11-16T12:00:00Z", "type": "track"}
    name = "events" if dialect is Dialect.OWN else "batch"
    return json.dumps({name: [{**one, "userId": "ada"}] * count, **more}).encode()


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("body", [b"\x1f\x8bdamaged", b"NaN" + b'"' * 1_000, b"[" * 100_000, b""])
async def test_a_key_outside_the_body_is_checked_before_the_body_is_looked_at(
    capture: Seen, dialect: Dialect, body: bytes
) -> None:
    assert await send(capture, dialect, body, **outer(dialect, UNKNOWN)) == 401
    assert await send(capture, dialect, body, **outer(dialect, SECRET)) == 401
    assert await send(capture, dialect, body, **outer(dialect, "hbw_no-key")) == 401
    assert capture.opened_in == []
    assert await send(capture, dialect, body, **outer(dialect, GOOD)) == 400
    assert await send(capture, dialect, events(dialect), **outer(dialect, GOOD)) == 200


@pytest.mark.parametrize("dialect", [Dialect.OWN, Dialect.POSTHOG, Dialect.SEGMENT])
@pytest.mark.parametrize("count", [1, 2_000])
async def test_a_body_without_a_valid_key_is_never_parsed(capture: Seen, dialect: Dialect, count: int) -> None:
    name = "writeKey" if dialect is Dialect.SEGMENT else "api_key"
    count = min(count, 500) if dialect is Dialect.OWN else count
    for body in (
        events(dialect, count),
        events(dialect, count, **{name: UNKNOWN}),
        events(dialect, count, **{name: SECRET}),
        events(dialect, count, **{name: "phc_" + "x" * 40}),
        events(dialect, count) + UNKNOWN.encode() + b"NaN" * 30_000,
    ):
        assert await send(capture, dialect, body) == 401
        assert await send(capture, dialect, gzip.compress(body)) == 401
    assert capture.opened_in == []
    many = {f"x{number}": f"hbw_{number:032}" for number in range(50)}
    capture.directory.asked.clear()
    assert await send(capture, dialect, events(dialect, count, **many)) == 401
    assert len(capture.directory.asked) == KEYS_TRIED
    parsed = 400 if dialect is Dialect.OWN else 200  # our own dialect refuses `x`, once the key is found to be good
    assert await send(capture, dialect, events(dialect, count, **{name: GOOD, "x": UNKNOWN})) == parsed
    assert await send(capture, dialect, events(dialect, count, x=UNKNOWN, **{name: GOOD})) == parsed
    assert len(capture.opened_in) == 2
    misplaced = await send(capture, dialect, events(dialect, count, x=GOOD, **{name: UNKNOWN}))
    assert misplaced == (400 if dialect is Dialect.OWN else 401), "its place counts"


async def test_what_is_large_when_unpacked_is_read_in_a_thread(capture: Seen) -> None:
    key = outer(Dialect.OWN, GOOD)
    small, large = events(Dialect.POSTHOG, 10, api_key=GOOD), events(Dialect.POSTHOG, 2_000, api_key=GOOD)
    packed = gzip.compress(large)
    assert len(packed) < 4_096 < CapturePolicy().inline_bytes < len(large)
    for body, place in (
        (small, "MainThread"),
        (gzip.compress(small), "MainThread"),
        (base64.b64encode(gzip.compress(small)), "MainThread"),
        (large, "capture"),
        (packed, "capture"),
        (b"data=" + base64.b64encode(packed), "capture"),
        (gzip.compress(base64.b64encode(packed)), "capture"),
    ):
        capture.opened_in.clear()
        assert await send(capture, Dialect.POSTHOG, body) == 200
        assert capture.opened_in == [place], body[:20]
    capture.opened_in.clear()
    own = json.dumps({"events": [{"event": "seen", "distinct_id": "ada", "properties": {"x": "x" * 140}}] * 500})
    assert await send(capture, Dialect.OWN, gzip.compress(own.encode()), **key) == 200
    assert capture.opened_in == ["capture"]


async def test_more_large_bodies_than_may_wait_are_refused(capture: Seen) -> None:
    capture._aside = CapturePolicy().waiting
    assert await send(capture, Dialect.POSTHOG, events(Dialect.POSTHOG, 2_000, api_key=GOOD)) == 503
    assert await send(capture, Dialect.POSTHOG, events(Dialect.POSTHOG, 1, api_key=GOOD)) == 200


def test_keys_are_found_in_linear_time() -> None:
    assert list(find_keys(f'{{"a":"{GOOD}","b":"{GOOD}","c":"{UNKNOWN}x","d":"{SECRET}"}}'.encode())) == [GOOD, SECRET]
    for part in (b"hbw_", b"hbw_" + b"a" * 31 + b" ", b"hbw_" + b"a" * 33 + b" ", b"h", GOOD.encode() + b" "):
        bodies = [part * (size // len(part)) for size in (2 << 20, 4 << 20, 8 << 20)]
        assert doubling([lambda body=body: list(find_keys(body)) for body in bodies]) is None, part  # type: ignore[misc]


async def test_the_answer_to_a_missing_key_names_what_is_missing(capture: Seen) -> None:
    request = FastRequest("POST", "/batch/", b"", {}, b"{}", "203.0.113.7", "r")
    with pytest.raises(Unauthorized, match=r"no write key \(hbw_"):
        await capture.take(Dialect.POSTHOG, request)
    request = msgspec.structs.replace(request, body=events(Dialect.POSTHOG, api_key=SECRET))
    with pytest.raises(Unauthorized, match="secret key"):
        await capture.take(Dialect.POSTHOG, request)
