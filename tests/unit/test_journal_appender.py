"""The answer to an append is about the events, and every caller gets one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from handbill.infra.journal.appender import LaneAppender
from handbill.infra.redis import RedisError
from handbill.kit.errors import Busy


async def test_an_error_of_a_command_beside_the_append_is_not_its_answer() -> None:
    async def write(bodies: list[bytes], extra: list[Any], tenant_ids: Collection[int]) -> tuple[str, list[Any]]:
        return "1-0", [RedisError("WRONGTYPE", "wrong kind of value") for _ in extra]

    appender = LaneAppender("0", write)
    assert await appender.add([b"event"], [("HSET", "key", "a", "b")]) == "1-0"


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_cancelled_flush_leaves_nobody_waiting(is_begun: bool) -> None:
    begun = asyncio.Event()
    is_hanging = True

    async def write(bodies: list[bytes], extra: list[Any], tenant_ids: Collection[int]) -> tuple[str, list[Any]]:
        begun.set()
        if is_hanging:
            await asyncio.Event().wait()
        return "1-0", []

    appender = LaneAppender("0", write)
    calls = [appender.add([b"x" * 200_000], ()) for _ in range(10)]  # more than one entry
    if is_begun:
        await begun.wait()
    assert appender._task is not None
    appender._task.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [Busy] * 10
    is_hanging = False
    assert await appender.add([b"next"], ()) == "1-0"
