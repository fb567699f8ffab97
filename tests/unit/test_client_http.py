"""The Python client against a server that answers as it is told: retries, batches, the queue, and every failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from handbill.client import AsyncClient, Client, Decision, Outbox, rules, sender, transport
from handbill.client.ids import ReportIds
from handbill.client.model import Banner, Outcome, Showing, State
from handbill.client.rules import HORIZON_MS
from handbill.client.transport import Answer, Transport
from tests.kit.waiting import eventually, soon

BANNER = Banner("0190163d-8694-739b-aea5-966c26f8ad91", 3)
PLACE = Decision("home", "0190163d-8694-739b-aea5-966c26f8ad92", (BANNER,))
NOBODY = "http://127.0.0.1:1"


class Server:
    """Remembers what it was sent; answers from a list, and 202 when the list is empty."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""
        self.decide = asyncio.Event()
        """Decisions are answered once this is set, as it is at first."""
        self.decide.set()
        self.report = asyncio.Event()
        """The same for reports."""
        self.report.set()
        self.drips = False
        self.refuse: str | None = None
        """Something between us and the server that refuses a body with this text."""
        self.taken: list[tuple[str, dict[str, str], Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request.path_qs, dict(request.headers), json.loads(body) if body else None))
        if self.refuse is not None and self.refuse in body.decode():
            return web.Response(status=403, text="<html>refused by a firewall</html>")
        self.taken.append(self.seen[-1])
        if self.drips:
            return await self.drip(request)
        status, headers, answer = self.answers.pop(0) if self.answers else (202, {}, {"message": "", "data": None})
        if request.path in ("/v1/decide", "/banners"):
            await self.decide.wait()
        else:
            await self.report.wait()
        if isinstance(answer, str):
            return web.Response(status=status, headers=headers, text=answer)
        return web.json_response(answer, status=status, headers=headers)

    async def drip(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(status=202)
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            while self.drips:
                await reply.write(b" ")
                await asyncio.sleep(0.01)
        return reply

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.seen]

    def says(self, status: int, answer: Any = None, **headers: str) -> None:
        self.answers.append((status, headers, answer))

    def ids(self, path: str = "") -> list[str]:
        """The event ids of all views that came, in order."""
        bodies = [body for of, _, body in self.seen if path in of]
        return [view["event_id"] for body in bodies for view in body.get("events", [body])]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.decide.set()
    made.report.set()
    await runner.cleanup()


def showing(user: str = "ada") -> Showing:
    return PLACE.showing(BANNER, user=user)


async def test_a_decision_and_what_is_asked(server: Server) -> None:
    server.says(200, {"decisions": [msgspec.to_builtins(PLACE)]})
    server.says(200, {"banners": [BANNER.banner_id], "user_id": "ada"})
    async with AsyncClient(server.url, write_key="hbw_x", token="jwt") as client:
        found = await client.decide(user_id="ada", placements=["home"], context={"country": "NP"})
        assert found == [PLACE]
        assert [str(one) for one in await client.banners(user_id="ada")] == [BANNER.banner_id]
        assert client.failures == 0
    path, headers, body = server.seen[0]
    assert path == "/v1/decide"
    assert (headers["X-Write-Key"], headers["Authorization"]) == ("hbw_x", "Bearer jwt")
    assert body == {"user_id": "ada", "placements": ["home"], "context": {"country": "NP"}}


async def test_any_failure_is_an_empty_list(server: Server) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        for status, answer in (
            (500, "oops"),
            (503, {"code": "BUSY"}),
            (200, "<html>"),
            (401, {}),
            (302, ""),
            (200, []),
        ):
            server.says(status, answer)
            assert await client.decide(user_id="ada") == []
            server.says(status, answer)
            assert await client.banners(user_id="ada") == []
    async with AsyncClient(NOBODY, write_key="hbw_x") as client:
        assert await client.decide(user_id="ada") == []
        assert await client.banners(user_id="ada") == []
        assert client.failures == 2


async def test_a_report_is_kept_queued_or_refused(server: Server) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert (await client.impression(showing())).kept
        assert (await client.click(showing(), "/summer")).kept
        server.says(404, {"code": "BANNER_NOT_FOUND"})
        assert await client.view(showing(), visible_ms=3000) == Outcome(State.REFUSED, "BANNER_NOT_FOUND")
        server.says(413, "too large for something between us")
        assert await client.view(showing(), visible_ms=3000) == Outcome(State.REFUSED, "HTTP_413")
        assert client.waiting == 0
        server.says(503, {"code": "BUSY"}, **{"Retry-After": "3600"})
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        asked = len(server.seen)
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        assert len(server.seen) == asked, "the server asked for patience"
        assert client.waiting == 2


async def test_what_was_refused_for_now_comes_again_by_itself_with_the_same_id(server: Server) -> None:
    server.says(429, {"code": "THROTTLED"}, **{"Retry-After": "1"})
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        await eventually(lambda: client.waiting == 0)
    first, second = server.ids()
    assert first == second


async def test_batches_hold_one_kind_and_name_their_refusals(server: Server) -> None:
    outbox = Outbox()
    async with AsyncClient(server.url, write_key="hbw_x", outbox=outbox) as client:
        for _ in range(120):
            await client.view(showing(), visible_ms=3000, send=False)
        await client.impression(showing(), send=False)
        assert not server.seen
        server.says(202, {"message": "Impression recorded.", "data": None})
        rejected = [{"index": 1, "code": "NOT_YOUR_USER", "detail": "", "faults": []}]
        server.says(202, {"message": "", "data": {"accepted": 49, "rejected": rejected}})
        found = await client.flush()
        assert client.waiting == 0
    sizes = [(path, len(body.get("events", [body]))) for path, _, body in server.seen]
    assert sizes == [
        ("/api/banners/events/impression", 1), ("/views/batch", 50), ("/views/batch", 50), ("/views/batch", 20),
    ]  # fmt: skip
    assert [(number, one.code) for number, one in found.items() if not one.kept] == [(2, "NOT_YOUR_USER")]


async def test_a_queue_in_a_file_outlives_its_process(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    async with AsyncClient(NOBODY, write_key="hbw_x", outbox=Outbox(path)) as client:
        for _ in range(3):
            assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
    with path.open("ab") as file:
        file.write(b'{"put": {"id": 9, "at"')  # a crash in the middle of a line
    async with AsyncClient(server.url, write_key="hbw_x", outbox=Outbox(path)) as client:
        assert client.waiting == 3
        await client.flush()
        assert client.waiting == 0
    assert len(set(server.ids())) == 3
    again = Outbox(path)
    assert len(again) == 0
    again.close()


UNSENDABLE = {
    "object": object(),
    "surrogate": "\ud800",
    "depth": functools.reduce(lambda inner, _: [inner], range(100_000), 0),
    "integer": 1 << 70_000,
}


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE)
@pytest.mark.parametrize("file", [None, "reports.jsonl"])
async def test_a_report_that_json_cannot_hold_is_refused_and_blocks_no_other(
    server: Server, tmp_path: Path, file: str | None, value: Any
) -> None:
    outbox = Outbox(tmp_path / file if file else None)
    async with AsyncClient(server.url, write_key="hbw_x", outbox=outbox) as client:
        assert await client.track("ada", "bad", {"value": value}) == Outcome(State.REFUSED, "NOT_JSON")
        assert client.waiting == 0
        assert (await client.track("ada", "good")).kept
    assert [body["events"][0]["event"] for _, _, body in server.seen] == ["good"]


async def test_a_report_is_sent_as_it_was_when_it_was_made(server: Server) -> None:
    items: list[Any] = [1]
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        await client.track("ada", "cart", {"items": items}, send=False)
        items.append(object())
        await client.flush()
    assert server.seen[0][2]["events"][0]["properties"] == {"items": [1]}


async def test_what_an_earlier_run_left_is_sent_without_a_new_report(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    async with AsyncClient(NOBODY, write_key="hbw_x", outbox=Outbox(path)) as client:
        await client.view(showing(), visible_ms=3000)
    async with AsyncClient(server.url, write_key="hbw_x", outbox=Outbox(path)) as client:
        await eventually(lambda: client.waiting == 0)
    assert len(server.ids()) == 1


def left_by_an_earlier_run() -> Outbox:
    outbox = Outbox()
    for number in range(60):
        outbox.put("view", rules.view(showing(), rules.report_of(3_000 + number, "timer")))
    return outbox


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("ask", ["/v1/decide", "/banners"])
async def test_a_decision_is_answered_before_what_waited_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch, ask: str, status: int
) -> None:
    monkeypatch.setattr(sender, "IDLE_S", 3_600.0)
    outbox = left_by_an_earlier_run()
    waiting = [entry.body["event_id"] for entry in outbox.waiting()]
    server.decide.clear()
    server.says(status, {"decisions": []})
    async with AsyncClient(server.url, write_key="hbw_x", outbox=outbox) as client:
        decision = asyncio.create_task(client.decide(user_id="ada") if ask == "/v1/decide" else _ids(client))
        await eventually(lambda: server.seen)
        assert (await client.impression(showing())).kept, "a new report waits for no decision"
        flushed = asyncio.create_task(client.flush())
        for _ in range(2):  # the second has its turn behind the flush
            assert (await client.click(showing(), "/summer")).kept
        assert not any(path.startswith("/views") for path in server.paths())
        server.decide.set()
        assert await soon(decision) == []
        await soon(flushed)
        await eventually(lambda: client.waiting == 0)
    assert server.paths()[0].startswith(ask)
    sent = [view["event_id"] for path, _, body in server.seen if "/views" in path for view in body["events"]]
    assert sent == waiting, "a report keeps its id, so that a copy counts once"


async def test_what_an_earlier_run_left_waits_for_a_decision_that_comes_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "IDLE_S", 3_600.0)
    async with AsyncClient(server.url, write_key="hbw_x", outbox=left_by_an_earlier_run()) as client:
        for _ in range(3):
            assert (await client.impression(showing())).kept
        assert {path.rpartition("/")[2] for path in server.paths()} == {"impression"}
        await client.decide(user_id="ada")
        await eventually(lambda: client.waiting == 0)
    paths = [path for path in server.paths() if "impression" not in path]
    assert paths == ["/v1/decide", "/views/batch", "/views/batch"]


async def _ids(client: AsyncClient) -> list[Any]:
    return list(await client.banners(user_id="ada"))


async def test_a_program_that_always_decides_sends_what_waited(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "IDLE_S", 0.05)
    server.decide.clear()
    async with AsyncClient(server.url, write_key="hbw_x", outbox=left_by_an_earlier_run(), timeout_s=60) as client:
        decision = asyncio.create_task(client.decide(user_id="ada"))
        await eventually(lambda: client.waiting == 0)
        assert not decision.done()
        server.decide.set()
        await soon(decision)


async def test_a_report_that_is_sent_again_waits_for_a_decision(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "IDLE_S", 3_600.0)
    server.says(429, {"code": "THROTTLED"}, **{"Retry-After": "1"})
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        server.decide.clear()
        decision = asyncio.create_task(client.decide(user_id="ada"))

        async def taken() -> bool:
            return (await client.impression(showing())).kept

        await eventually(taken, what="the time that the server asked for is over")
        assert server.paths().count("/views") == 1
        server.decide.set()
        await soon(decision)
        await eventually(lambda: client.waiting == 0)
    assert len(set(server.ids("/views"))) == 1


async def test_a_silent_server_is_asked_once_whatever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def call(transport: Transport, method: str, path: str, **options: Any) -> Answer:
        asked.append(path)
        return Answer()

    monkeypatch.setattr(Transport, "call", call)
    async with AsyncClient(NOBODY, write_key="hbw_x") as client:
        for _ in range(120):
            await client.view(showing(), visible_ms=3000, send=False)
        await client.impression(showing(), send=False)
        assert (await client.track("ada", "order")).state is State.QUEUED
        assert asked == ["/v1/events"]
        assert client.waiting == 122


async def test_one_kind_that_is_refused_for_now_keeps_no_other_kind_waiting(server: Server) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        for _ in range(120):
            await client.track("ada", "order", send=False)
        await client.view(showing(), visible_ms=3000, send=False)
        server.says(503, {"code": "BUSY"}, **{"Retry-After": "3600"})
        await client.flush()
        assert [path for path, _, _ in server.seen] == ["/v1/events", "/views"]
        assert client.waiting == 120


async def test_an_error_while_sending_ends_the_background_task_of_no_client(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "reports.jsonl"
    async with AsyncClient(NOBODY, write_key="hbw_x", outbox=Outbox(path)) as client:
        await client.view(showing(), visible_ms=3000)
    drop, failed = Outbox.drop, asyncio.Event()

    def fail_once(outbox: Outbox, ids: Iterable[int]) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("the disk is full")
        drop(outbox, ids)

    monkeypatch.setattr(Outbox, "drop", fail_once)
    async with AsyncClient(server.url, write_key="hbw_x", outbox=Outbox(path)) as client:
        await soon(failed.wait())
        await eventually(lambda: client.waiting == 0)
    assert "the disk is full" in caplog.text


ODD = [
    (200, {"dropped": ["x"]}),
    (202, {"message": "", "data": {"rejected": 7}}),
    (202, {"message": "", "data": {"accepted": 0, "rejected": [{"index": 1, "code": "X"}]}}),
    (202, {"accepted": 1, "dropped": [1, {}, {"index": []}, {"index": "0"}]}),
    (202, {"accepted": 1, "dropped": "x"}),
    (202, {}),
    (200, []),
    (204, ""),
    (200, "<html>Please log in to this network</html>"),
    (302, ""),
    (404, "default backend"),
    (403, {"error": "forbidden"}),
    (200, "[" * 200_000),
    (202, "x" * (transport.ANSWER_MAX + 1)),
]


@pytest.mark.parametrize(("status", "answer"), ODD, ids=range(len(ODD)))
async def test_a_report_stays_until_an_answer_is_understood(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int, answer: Any
) -> None:
    monkeypatch.setattr(rules, "BACKOFF_FIRST_MS", 20)
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        server.says(status, answer)
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        assert client.waiting == 1
        await eventually(lambda: client.waiting == 0, what="it is sent again by itself")
    first, second = server.ids()
    assert first == second


async def test_a_report_that_a_firewall_refuses_keeps_no_other_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "BLOCKED_S", 0.02)
    monkeypatch.setattr(rules, "BACKOFF_FIRST_MS", 20)
    server.refuse = "<script>"
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        for text in ("tea", "<script>", "pots"):
            await client.track("ada", "said", {"text": text}, send=False)
        await client.flush()
        await eventually(lambda: client.waiting == 1, what="its neighbours are taken")
        assert (await client.track("ada", "later")).kept
        server.refuse = None
        await client.flush()
        assert client.waiting == 0
    events = [event["properties"].get("text") for _, _, body in server.taken for event in body["events"]]
    assert sorted(filter(None, events)) == ["<script>", "pots", "tea"]


async def test_a_batch_that_is_too_large_is_sent_in_parts(server: Server) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        for number in range(4):
            await client.track("ada", "large", {"number": number}, send=False)
        server.says(413, "")
        outcomes = await client.flush()
        assert [outcome.kept for outcome in outcomes.values()] == [True] * 4
        assert [len(body["events"]) for _, _, body in server.seen] == [4, 2, 2]
        for _ in range(3):
            await client.track("ada", "large", {"text": "x" * (rules.BATCH_BYTES // 2)}, send=False)
        await client.flush()
        assert [len(body["events"]) for _, _, body in server.seen[3:]] == [1, 1, 1], "no batch is larger than that"


async def test_nothing_takes_longer_than_the_time_limit_whatever_waits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request is answered just in time, so that no single one fails: 20 of them wait."""
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr(sender, "IDLE_S", 3_600.0)
    server.report.clear()
    client = AsyncClient(server.url, write_key="hbw_x", timeout_s=0.2)
    async with asyncio.timeout(60):
        await client.__aenter__()
        for _ in range(1_000):
            await client.view(showing(), visible_ms=3000, send=False)
        monkeypatch.setattr(client._transport, "_timeout_s", 3_600.0)
        began = clock()
        assert (await client.track("ada", "order")).state is State.QUEUED
        assert await client.flush() == {}
        assert clock() - began < 30, "two limits, not those of twenty requests"
        assert client.waiting == 1_001
        await client.close()
    server.report.set()


async def test_a_server_that_sends_its_answer_byte_by_byte_is_given_up(server: Server) -> None:
    server.drips = True
    async with AsyncClient(server.url, write_key="hbw_x", timeout_s=0.2) as client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        assert client.waiting == 1
        server.drips = False
        await eventually(lambda: client.waiting == 0)


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE)
async def test_a_decision_about_what_json_cannot_hold_is_an_empty_list(server: Server, value: Any) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert await client.decide(user_id="ada", context={"custom": value}) == []
        assert await client.banners(user_id=value) == []
        assert client.failures == 2


async def test_a_decision_for_more_than_ten_placements_is_asked_for_in_parts(server: Server) -> None:
    names = [f"p{number}" for number in range(12)]
    for part in (names[:10], names[10:]):
        server.says(200, {"decisions": [{"placement": name, "placement_id": None, "banners": []} for name in part]})
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert [one.placement for one in await client.decide(user_id="ada", placements=names)] == names
    assert [len(body["placements"]) for _, _, body in server.seen] == [10, 2]


async def test_a_client_that_is_open_for_a_moment_asks_for_nothing(server: Server) -> None:
    async with AsyncClient(server.url, write_key="hbw_x", open_after_s=3_600) as client:
        decision = asyncio.create_task(client.decide(user_id="ada"))
        ids = asyncio.create_task(_ids(client))
        await client.track("ada", "opened")
        await client.close()
        assert await soon(decision) == []
        assert await soon(ids) == []
    assert server.paths() == ["/v1/events"]
    server.says(200, {"decisions": [msgspec.to_builtins(PLACE)]})
    async with AsyncClient(server.url, write_key="hbw_x", open_after_s=0.01) as client:
        assert await client.decide(user_id="ada") == [PLACE]


async def test_a_client_that_is_closed_sends_once_what_has_no_file(server: Server) -> None:
    server.says(503, {"code": "BUSY"}, **{"Retry-After": "3600"})
    client = AsyncClient(server.url, write_key="hbw_x")
    async with client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
    assert len(server.ids()) == 2
    assert client.waiting == 0
    assert await client.track("ada", "late") == Outcome(State.REFUSED, "CLOSED")


async def test_a_disk_that_is_full_costs_no_report(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "reports.jsonl", [1_750_334_400_000]
    outbox = Outbox(path, clock=lambda: now[0])
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
        for number in range(3):
            outbox.put("view", {"n": number})
    assert "cannot be written" in caplog.text
    assert [entry.body["n"] for entry in outbox.waiting()] == [0, 1, 2]
    now[0] += 1_000
    outbox.put("view", {"n": 3})
    outbox.close()
    again = Outbox(path, clock=lambda: now[0])
    assert [entry.body["n"] for entry in again.waiting()] == [0, 1, 2, 3]
    again.close()


def test_a_file_with_anything_in_it_stops_no_client(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    good = b'{"put":{"id":4,"at":1750334400000,"kind":"view","body":{"n":1}}}'
    odd = [b"", b"\xff\x00", b'{"put":' * 100_000, b"null", b'{"put":{"id":"x"}}', b'{"done":[1e400]}', good]
    path.write_bytes(b"\n".join(odd))
    outbox = Outbox(path, clock=lambda: 1_750_334_400_001)
    assert [entry.body for entry in outbox.waiting()] == [{"n": 1}]
    outbox.close()


def test_ids_of_reports_rise_and_say_when_they_were_made() -> None:
    now = [1_750_334_400_000]
    ids = ReportIds(lambda: now[0], lambda bits: 0)
    made = [ids.new() for _ in range(5_000)]
    now[0] -= 60_000  # a clock that was set back
    made.append(ids.new())
    now[0] += 120_000
    made.append(ids.new())
    assert made == sorted(set(made))
    assert {uuid.UUID(one).version for one in made} == {7}
    assert int(made[-1].replace("-", "")[:12], 16) == now[0]


def test_a_queue_is_bounded_in_number_and_in_age(tmp_path: Path) -> None:
    now = [1_750_334_400_000]
    for path in (None, tmp_path / "queue.jsonl"):
        outbox = Outbox(path, limit=100, clock=lambda: now[0])
        for number in range(1_500):
            now[0] += 1
            outbox.put("view", {"n": number})
        assert [entry.body["n"] for entry in outbox.waiting()] == list(range(1_400, 1_500))
        now[0] += HORIZON_MS - 50
        assert [entry.body["n"] for entry in outbox.waiting()] == list(range(1_450, 1_500))
        now[0] += HORIZON_MS
        assert outbox.waiting() == []
        outbox.close()
    assert (tmp_path / "queue.jsonl").stat().st_size < 200_000


async def test_the_client_without_await(server: Server) -> None:
    def shop() -> None:
        server.says(200, {"decisions": [msgspec.to_builtins(PLACE)]})
        with Client(server.url, write_key="hbw_x") as client:
            assert client.decide(user_id="ada") == [PLACE]
            assert client.impression(showing()).kept
            assert client.view(showing(), visible_ms=900, how="dismiss").kept
            assert client.click(showing(), "/x", send=False).state is State.QUEUED
            assert client.waiting == 1
            assert [one.kept for one in client.flush().values()] == [True]
            server.says(200, {"banners": [], "user_id": "ada"})
            assert client.banners(user_id="ada") == []
        client.close()

    await asyncio.to_thread(shop)
    assert server.seen[2][2]["dismissed"] is True
