"""The shared read of caps: one round trip for all who ask, and an answer for each of them whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handbill.caps.model import Subject
from handbill.caps.store import CapsStore, Reading
from handbill.infra.redis import Keys
from handbill.kit.errors import Busy
from tests.kit.waiting import soon


class Redis:
    """Answers reads when it is let, and counts them; `error` is raised instead."""

    def __init__(self) -> None:
        self.reads = 0
        self.may_answer = asyncio.Event()
        self.error: BaseException | None = None

    def script(self, source: str) -> None: ...

    async def call(self, name: str, *keys: bytes) -> list[bytes | None]:
        self.reads += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [None] * len(keys)


def ask(store: CapsStore, number: int) -> asyncio.Task[tuple[list[Reading], tuple[bytes | None, ...]]]:
    return asyncio.create_task(store.read([Subject(1, f"u{number}")]))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def redis() -> Redis:
    return Redis()


@pytest.fixture
def store(redis: Any) -> CapsStore:
    return CapsStore(redis, Keys())


async def test_who_asks_during_a_read_shares_the_next_one(store: CapsStore, redis: Redis) -> None:
    first = [ask(store, number) for number in range(10)]
    await turns()
    later = [ask(store, number) for number in range(10, 20)]
    await turns()
    redis.may_answer.set()
    await soon(asyncio.gather(*first, *later))
    assert redis.reads == 2


async def test_an_error_goes_to_all_who_asked_and_the_next_read_is_a_new_one(store: CapsStore, redis: Redis) -> None:
    redis.error = Busy("away")
    redis.may_answer.set()
    asked = [ask(store, number) for number in range(3)]
    results = await soon(asyncio.gather(*asked, return_exceptions=True))
    assert [type(result) for result in results] == [Busy] * 3
    redis.error = None
    assert len((await soon(ask(store, 1)))[0]) == 1


@pytest.mark.parametrize("moment", ["before it begins", "while it waits"])
async def test_a_read_that_is_cancelled_leaves_nobody_waiting(store: CapsStore, redis: Redis, moment: str) -> None:
    asked = [ask(store, number) for number in range(3)]
    await asyncio.sleep(0)
    if moment == "while it waits":
        await turns()
        assert redis.reads == 1
        asked.append(ask(store, 3))  # for the next read
        await asyncio.sleep(0)
    reading = store._asking
    assert reading is not None
    reading.cancel()
    results = await soon(asyncio.gather(*asked, return_exceptions=True), what="everybody who asked learns it")
    assert [type(result) for result in results] == [asyncio.CancelledError] * len(asked)
    redis.may_answer.set()
    assert len((await soon(ask(store, 1)))[0]) == 1, "the next who asks begins a new read"
