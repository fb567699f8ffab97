"""Bounded retries with jitter, as frozen values; presets carry the numbers the engines were given."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Retry(msgspec.Struct, frozen=True):
    """`tries` in all, `delay_ms` between them, each delay spread by up to `jitter` of itself to both sides."""

    tries: int
    delay_ms: int
    jitter: float = 0.2

    def delay(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the given failed attempt (counted from 1)."""
        spread = 1 + self.jitter * (2 * draw() - 1)
        return self.delay_ms / 1000 * spread


CLICKHOUSE = Retry(tries=3, delay_ms=1000)
POSTGRES = Retry(tries=3, delay_ms=200)
DEFINITIONS = Retry(tries=3, delay_ms=50)


async def retrying(
    policy: Retry,
    work: Callable[[], Awaitable[T]],
    again: Callable[[BaseException], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Run `work` until it succeeds, fails in a way that `again` calls final, or the tries are used up."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return await work()
        except Exception as error:
            if attempt >= policy.tries or not again(error):
                raise
        await sleep(policy.delay(attempt))
