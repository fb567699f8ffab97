"""What a waiting read answers, and that it ends with its client. Without any engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from handbill.cli.waiting import completeness
from handbill.kit.errors import Invalid, NotFound
from handbill.kit.read_waits import Completeness, Lag, Until, WaitFor, headers_of, read_after, read_waiting
from tests.kit.waiting import soon

BEHIND = Completeness(complete=False, lag=Lag(1.5, 7))


class Answer(Completeness, frozen=True):
    value: int


class Waits:
    """Says a given state, at once or never."""

    def __init__(self, state: Completeness | None) -> None:
        self.state = state
        self.asked: list[tuple[int, float, str]] = []
        self.begun = asyncio.Event()
        self.is_ended = False

    async def wait(self, tenant_id: int, seconds: float, until: Until) -> Completeness:
        self.asked.append((tenant_id, seconds, until))
        self.begun.set()
        try:
            while self.state is None:
                await asyncio.Event().wait()
            return self.state
        finally:
            self.is_ended = True


class Connection:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.gone: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    @property
    def receive(self) -> Callable[[], Awaitable[Any]]:
        return lambda: asyncio.shield(self.gone)


async def read() -> Answer:
    return Answer(7)


async def nothing() -> Answer:
    raise NotFound("Nobody.", code="PERSON_NOT_FOUND")


async def test_an_answer_says_how_complete_it_is_where_it_was_asked_to_wait() -> None:
    waits, here = Waits(Completeness(complete=True)), Connection()
    assert await read_after(waits, here, WaitFor(3, None, "people"), read) == Answer(7)
    assert waits.asked == []
    assert await read_after(waits, here, WaitFor(3, 2.0, "people"), read) == Answer(7, complete=True)
    assert waits.asked == [(3, 2.0, "people")]
    found = await read_waiting(Waits(BEHIND), WaitFor(3, 2.0, "counted"), read)
    assert found == Answer(7, complete=False, lag=Lag(1.5, 7))
    assert completeness(found) == ["not complete: 7 events wait, the oldest for 1.5 s"]
    assert completeness(Answer(7, complete=True)) == completeness(Answer(7)) == []
    assert headers_of(None) == {}
    assert headers_of(BEHIND) == {
        "Handbill-Complete": "false", "Handbill-Lag-Seconds": "1.5", "Handbill-Lag-Entries": "7",
    }  # fmt: skip


async def test_who_is_not_there_yet_may_come() -> None:
    with pytest.raises(NotFound) as missing:
        await read_waiting(Waits(BEHIND), WaitFor(3, 1.0, "people"), nothing)
    assert missing.value.public_detail.endswith("not all counted yet; ask again.")
    with pytest.raises(NotFound) as missing:
        await read_waiting(Waits(Completeness(complete=True)), WaitFor(3, 1.0, "people"), nothing)
    assert missing.value.public_detail == "Nobody."


async def test_a_read_ends_with_its_client() -> None:
    waits, here = Waits(None), Connection()
    reading = asyncio.create_task(read_after(waits, here, WaitFor(3, 5.0, "people"), read))
    await soon(waits.begun.wait())
    here.gone.set_result({"type": "http.disconnect"})
    with pytest.raises(Invalid) as left:
        await soon(reading)
    assert left.value.code == "CLIENT_LEFT"
    assert waits.is_ended
