"""The Python client when something is wrong: with a report, an answer, the line, the disk or the server."""

from __future__ import annotations

import asyncio
import functools
import os
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from handbill.client import AsyncClient, Outbox, rules, sender, transport
from handbill.client.ids import ReportIds
from handbill.client.model import Outcome, State
from handbill.client.transport import Answer, Transport
from tests.kit.scripted_server import PLACE, ScriptedServer, scripted_server, showing
from tests.kit.waiting import eventually, soon

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as made:
        yield made


UNSENDABLE = {
    "object": object(),
    "surrogate": "\ud800",
    "depth": functools.reduce(lambda inner, _: [inner], range(100_000), list[Any]()),
    "integer": 1 << 70_000,
}


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE)
@pytest.mark.parametrize("file", [None, "reports.jsonl"])
async def test_a_report_that_json_cannot_hold_is_refused_and_blocks_no_other(
    server: ScriptedServer, tmp_path: Path, file: str | None, value: Any
) -> None:
    outbox = Outbox(tmp_path / file if file else None)
    async with AsyncClient(server.url, write_key="hbw_x", outbox=outbox) as client:
        assert await client.track("ada", "bad", {"value": value}) == Outcome(State.REFUSED, "NOT_JSON")
        assert client.waiting == 0
        assert (await client.track("ada", "good")).kept
    assert [body["events"][0]["event"] for _, _, body in server.seen] == ["good"]


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


async def test_an_error_while_sending_ends_the_background_task_of_no_client(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, status: int, answer: Any
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
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
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
        await eventually(lambda: client.waiting == 0, what="it is tried again by itself")
    events = [event["properties"].get("text") for _, _, body in server.taken for event in body["events"]]
    assert sorted(filter(None, events)) == ["<script>", "pots", "tea"]


async def test_a_batch_that_is_too_large_is_sent_in_parts(server: ScriptedServer) -> None:
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
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
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


async def test_a_server_that_sends_its_answer_byte_by_byte_is_given_up(server: ScriptedServer) -> None:
    server.drips = True
    server.report.clear()
    async with AsyncClient(server.url, write_key="hbw_x", timeout_s=0.2) as client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
        assert client.waiting == 1
        server.drips = False
        server.report.set()
        await eventually(lambda: client.waiting == 0)


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE)
async def test_a_decision_about_what_json_cannot_hold_is_an_empty_list(server: ScriptedServer, value: Any) -> None:
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert await client.decide(user_id="ada", context={"custom": value}) == []
        assert await client.banners(user_id=value) == []
        assert client.failures == 2


async def test_a_decision_for_more_than_ten_placements_is_asked_for_in_parts(server: ScriptedServer) -> None:
    names = [f"p{number}" for number in range(12)]
    for part in (names[:10], names[10:]):
        server.says(200, {"decisions": [{"placement": name, "placement_id": None, "banners": []} for name in part]})
    async with AsyncClient(server.url, write_key="hbw_x") as client:
        assert [one.placement for one in await client.decide(user_id="ada", placements=names)] == names
    assert [len(body["placements"]) for _, _, body in server.seen] == [10, 2]


async def test_a_client_that_is_open_for_a_moment_asks_for_nothing(server: ScriptedServer) -> None:
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


async def test_a_client_that_is_closed_sends_once_what_has_no_file(server: ScriptedServer) -> None:
    server.says(503, {"code": "BUSY"}, **{"Retry-After": "3600"})
    client = AsyncClient(server.url, write_key="hbw_x")
    async with client:
        assert (await client.view(showing(), visible_ms=3000)).state is State.QUEUED
    assert len(server.ids()) == 2
    assert client.waiting == 0
    assert await client.track("ada", "late") == Outcome(State.REFUSED, "CLOSED")


async def test_a_disk_that_is_full_costs_no_report(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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


async def _ids(client: AsyncClient) -> list[Any]:
    return list(await client.banners(user_id="ada"))
