"""The Python client against a server that answers as it is told: retries, batches and the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from handbill.client import AsyncClient, Client, Outbox, rules, sender
from handbill.client.model import Outcome, State
from handbill.client.rules import HORIZON_MS
from tests.kit.scripted_server import BANNER, PLACE, ScriptedServer, scripted_server, showing
from tests.kit.waiting import eventually, soon

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as made:
        yield made


async def test_a_decision_and_what_is_asked(server: ScriptedServer) -> None:
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


async def test_any_failure_is_an_empty_list(server: ScriptedServer) -> None:
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


async def test_a_report_is_kept_queued_or_refused(server: ScriptedServer) -> None:
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


async def test_what_was_refused_for_now_comes_again_by_itself_with_the_same_id(server: ScriptedServer) -> None:
    server.says(429, {"code": "THROTTLED"}, **{"Retry-After": "1"})
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        await eventually(lambda: client.waiting == 0)
    first, second = server.ids()
    assert first == second


async def test_batches_hold_one_kind_and_name_their_refusals(server: ScriptedServer) -> None:
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


async def test_a_queue_in_a_file_outlives_its_process(server: ScriptedServer, tmp_path: Path) -> None:
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


async def test_a_report_is_sent_as_it_was_when_it_was_made(server: ScriptedServer) -> None:
    items: list[Any] = [1]
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        await client.track("ada", "cart", {"items": items}, send=False)
        items.append(object())
        await client.flush()
    assert server.seen[0][2]["events"][0]["properties"] == {"items": [1]}


async def test_what_an_earlier_run_left_is_sent_without_a_new_report(server: ScriptedServer, tmp_path: Path) -> None:
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
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, ask: str, status: int
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
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
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


async def test_a_program_that_always_decides_sends_what_waited(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "IDLE_S", 0.05)
    server.decide.clear()
    async with AsyncClient(server.url, write_key="hbw_x", outbox=left_by_an_earlier_run(), timeout_s=60) as client:
        decision = asyncio.create_task(client.decide(user_id="ada"))
        await eventually(lambda: client.waiting == 0)
        assert not decision.done()
        server.decide.set()
        await soon(decision)


async def test_a_report_that_is_sent_again_waits_for_a_decision(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
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


async def test_one_kind_that_is_refused_for_now_keeps_no_other_kind_waiting(server: ScriptedServer) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        for _ in range(120):
            await client.track("ada", "order", send=False)
        await client.view(showing(), visible_ms=3000, send=False)
        server.says(503, {"code": "BUSY"}, **{"Retry-After": "3600"})
        await client.flush()
        assert [path for path, _, _ in server.seen] == ["/v1/events", "/views"]
        assert client.waiting == 120


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


async def test_the_client_without_await(server: ScriptedServer) -> None:
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
