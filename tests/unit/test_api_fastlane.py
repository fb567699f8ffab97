"""The fast lane and the front door as plain ASGI, without a server: what goes in, what comes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from handbill.api.bodies import BodyReader
from handbill.api.body_budget import BodyLimits
from handbill.api.clients import Clients
from handbill.api.cors import Cors
from handbill.api.fastlane import FastLane
from handbill.api.frontdoor import FrontDoor
from handbill.api.reply_rate import ReplyRate
from handbill.kit.bounds import HEAD_BYTES, URL_MAX
from handbill.kit.errors import Busy, HandbillError, Invalid
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.kit.telemetry import metrics
from tests.kit.clocks import FakeClock

ORIGIN = (b"origin", b"https://shop.example")


class Heard:
    """What an application sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        self.messages.append(dict(message))

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])


async def behind(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"behind"})


async def echo(request: FastRequest) -> FastReply:
    if request.body == b"invalid":
        raise Invalid("not that")
    if request.body == b"busy":
        raise Busy("later", retry_after=2.5)
    if request.body == b"bug":
        raise RuntimeError("secret detail")
    return FastReply(202, request.body + b"|" + request.client_ip.encode() + b"|" + request.query)


LANE = FastLane(
    [
        FastRoute("POST", "/hot", echo, cors=True),
        FastRoute("POST", "/small", echo, body_limit=4),
        FastRoute("POST", "/both", echo),
    ],
    behind,
    clients=Clients(["10.0.0.0/8"]),
    cors=Cors(["*"]),
    body_limit=100,
    bodies=BodyReader(BodyLimits(), Clients(["10.0.0.0/8"]), FakeClock()),
    replies=ReplyRate(FakeClock()),
    shared=("/both",),
)


def front_door(app: Any) -> FrontDoor:
    clients = Clients([])
    return FrontDoor(
        app,
        clients=clients,
        cors=Cors([]),
        body_limit=100,
        bodies=BodyReader(BodyLimits(), clients, FakeClock()),
        replies=ReplyRate(FakeClock()),
    )


async def ask(
    method: str, path: str, *chunks: bytes, headers: Sequence[tuple[bytes, bytes]] = (), gone: bool = False
) -> Heard:
    heard = Heard()
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": gone or number < len(chunks)}
        for number, chunk in enumerate(chunks or (b"",), 1)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"a=1",
        "headers": list(headers),
        "client": ("10.0.0.1", 1),
    }
    await LANE(scope, receive, heard.send)
    return heard


async def test_a_hot_route_is_answered_and_the_rest_goes_behind() -> None:
    hot = await ask(
        "POST", "/hot", b"one", b"two", headers=[(b"x-forwarded-for", b"1.2.3.4"), (b"x-request-id", b"id-1")]
    )
    assert (hot.status, hot.body) == (202, b"onetwo|1.2.3.4|a=1")
    assert hot.headers[b"x-request-id"] == b"id-1"
    assert hot.headers[b"content-length"] == str(len(hot.body)).encode()
    assert (await ask("GET", "/cold")).body == b"behind"
    assert (await ask("POST", "/hot/")).body == b"behind"
    ping = await ask("GET", "/ping")
    assert (ping.status, ping.body) == (200, b"")


@pytest.mark.parametrize(
    ("body", "status", "is_error"),
    [(b"one", 202, False), (b"invalid", 400, False), (b"busy", 503, True), (b"bug", 500, True)],
)
async def test_replies_of_hot_routes_count_for_readiness(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, is_error: bool
) -> None:
    replies = ReplyRate(FakeClock())
    monkeypatch.setattr(LANE, "_replies", replies)
    for _ in range(50):
        assert (await ask("POST", "/hot", body)).status == status
    assert replies.recent() == (50, 50 if is_error else 0)
    assert replies.has_many_errors() == is_error
    await ask("GET", "/ping")
    await ask("GET", "/cold")
    assert replies.recent()[0] == 50, "neither a ping nor what is answered behind"


async def test_a_hot_route_is_timed_also_when_it_fails() -> None:
    labels = {"route": "/hot", "method": "POST"}

    def observed() -> float:
        return metrics.REGISTRY.get_sample_value("handbill_api_seconds_count", labels) or 0.0

    before = observed()
    await ask("POST", "/hot", b"x")
    await ask("POST", "/hot", b"bug")
    assert observed() == before + 2


async def test_errors_are_problems_and_bugs_tell_nothing() -> None:
    invalid = await ask("POST", "/hot", b"invalid")
    assert (invalid.status, json.loads(invalid.body)["code"]) == (400, "INVALID")
    busy = await ask("POST", "/hot", b"busy")
    assert (busy.status, busy.headers[b"retry-after"]) == (503, b"3")
    bug = await ask("POST", "/hot", b"bug")
    assert (bug.status, json.loads(bug.body)["code"]) == (500, "INTERNAL")
    assert b"secret detail" not in bug.body


async def test_bodies_are_limited() -> None:
    assert (await ask("POST", "/hot", b"x" * 100)).status == 202
    for too_much in (
        await ask("POST", "/hot", b"x" * 101),
        await ask("POST", "/hot", b"x" * 60, b"x" * 60),
        await ask("POST", "/hot", headers=[(b"content-length", b"101")]),
        await ask("POST", "/small", b"12345"),
    ):
        assert (too_much.status, json.loads(too_much.body)["code"]) == (413, "TOO_LARGE")
    left = await ask("POST", "/hot", b"half", gone=True)
    assert left.messages == []


async def test_browsers_on_other_sites_may_call_what_is_meant_for_them() -> None:
    preflight = await ask("OPTIONS", "/hot", headers=[ORIGIN])
    assert preflight.status == 204
    assert preflight.headers[b"access-control-allow-origin"] == b"*"
    assert b"POST" in preflight.headers[b"access-control-allow-methods"]
    assert (await ask("POST", "/hot", b"x", headers=[ORIGIN])).headers[b"access-control-allow-origin"] == b"*"
    assert b"access-control-allow-origin" not in (await ask("POST", "/small", b"x", headers=[ORIGIN])).headers
    assert (await ask("OPTIONS", "/small", headers=[ORIGIN])).status == 405


async def test_a_hot_path_says_which_methods_it_has() -> None:
    refused = await ask("GET", "/hot")
    assert (refused.status, json.loads(refused.body)["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert refused.headers[b"allow"] == b"OPTIONS, POST"
    head = await ask("HEAD", "/small")
    assert (head.status, head.body, head.headers[b"allow"]) == (405, b"", b"POST")
    assert (await ask("GET", "/both")).body == b"behind"  # the application behind has the other methods
    assert (await ask("POST", "/both", b"x")).status == 202


async def test_a_body_as_long_as_it_said_is_whole_without_another_word() -> None:
    """A server may announce the end with a message of its own; it is not waited for."""
    told = [(b"content-length", b"6")]
    assert (await ask("POST", "/hot", b"abcdef", gone=True, headers=told)).body.startswith(b"abcdef|")
    assert (await ask("POST", "/hot", b"abc", b"def", gone=True, headers=told)).body.startswith(b"abcdef|")
    assert (await ask("POST", "/hot", b"abc", gone=True, headers=told)).messages == []


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}], "BODY_CUT"),
        ([{"type": "http.request", "body": b"x" * 101, "more_body": False}], "TOO_LARGE"),
        ([{"type": "http.request", "body": b"x" * 100, "more_body": False}, {"type": "http.disconnect"}], None),
    ],
)
async def test_a_body_is_whole_or_refused(messages: list[dict[str, Any]], code: str | None) -> None:
    told: list[str | None] = []

    async def reader(scope: Any, receive: Any, send: Any) -> None:
        try:
            for _ in range(len(messages)):
                await receive()
            told.append(None)
        except HandbillError as error:
            told.append(error.code)

    waiting = list(messages)

    async def receive() -> Any:
        return waiting.pop(0)

    door = front_door(reader)
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/x", "headers": [], "client": None}
    await door(scope, receive, Heard().send)
    assert told == [code]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("size", "own", "refused"), [(100, 0, False), (101, 0, True), (300, 300, False), (301, 300, True)]
)
async def test_a_route_may_take_more_than_the_others(size: int, own: int, refused: bool, told: bool) -> None:
    heard: list[str | None] = []

    async def reader(scope: Any, receive: Any, send: Any) -> None:
        scope["route_handler"] = SimpleNamespace(opt={"body_limit": own} if own else {})
        try:
            await receive()
            heard.append(None)
        except HandbillError as error:
            heard.append(error.code)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * size, "more_body": False}

    door = front_door(reader)
    headers = [(b"content-length", b"%d" % size)] if told else []
    await door(
        {"type": "http", "method": "POST", "path": "/x", "headers": headers, "client": None}, receive, Heard().send
    )
    assert heard == ["TOO_LARGE" if refused else None]


async def test_a_url_that_is_too_long_reaches_no_route() -> None:
    heard = Heard()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "query_string": b"q" * URL_MAX,
        "headers": [],
        "client": None,
    }
    await front_door(behind)(scope, receive, heard.send)
    assert (heard.status, json.loads(heard.body)["code"]) == (414, "URL_TOO_LONG")
    heard, scope["query_string"] = Heard(), b"q" * (URL_MAX - 2)
    scope["state"] = {}
    await front_door(behind)(scope, receive, heard.send)
    assert heard.status == 299


@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_headers_that_are_too_large_reach_no_route(path: str) -> None:
    taken = len(path) + len(b"a=1")
    largest = [(b"x-one", b"a" * 10_000), (b"x-one", b"b" * (HEAD_BYTES - 10_000 - 10 - taken))]
    assert (await ask("POST", path, headers=largest)).status in (202, 299)
    refused = await ask("POST", path, headers=[*largest, (b"x", b"")])
    assert (refused.status, json.loads(refused.body)["code"]) == (431, "HEAD_TOO_LARGE")
    assert (await ask("HEAD", path, headers=[*largest, (b"x", b"")])).body == b""
