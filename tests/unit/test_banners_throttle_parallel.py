"""Parallel requests of one address share what is taken for it, in any order of requests, answers, time and ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.infra.redis import Keys, Redis
from handbill.kit.errors import Busy, Throttled
from tests.kit.clocks import FakeClock

LIMIT, LEASE, CREDIT = 30, 5, 4
"""What costs more than is left of the credit does not use it: it may be refused while so much is left."""
POLICY = ThrottlePolicy(
    limit=2 * LIMIT, burst=LIMIT, window_s=float(LIMIT), lease=LEASE, credit=CREDIT
)  # one token a second
ADDRESS = "192.0.2.1"


class SlowBucket:
    """The bucket in Redis; answers when the test lets it."""

    def __init__(self) -> None:
        self.full_at_ms = 0.0
        self.answers: list[tuple[asyncio.Future[list[int]], list[int]]] = []
        self.most_at_once = 0

    def script(self, _: str) -> Any:
        return self._take

    async def _take(self, _: Sequence[str], arguments: Sequence[float]) -> list[int]:
        now, need, want, burst, each = arguments[:5]
        full_at = max(self.full_at_ms, now)
        room = math.floor(burst - (full_at - now) / each + 0.000001)
        result = [0, math.ceil(full_at + (need - burst) * each - now)]
        if room >= need:
            result = [int(min(room, want)), 0]
            self.full_at_ms = full_at + result[0] * each
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.answers.append((future, result))
        self.most_at_once = max(self.most_at_once, len(self.answers))
        return await future

    def answer(self) -> None:
        if self.answers:
            future, result = self.answers.pop(0)
            if not future.done():
                future.set_result(result)

    def fail(self) -> None:
        future, _ = self.answers.pop(0)
        future.set_exception(Busy("away"))


class Scene:
    """Requests of one address under way, and how they ended."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.redis = SlowBucket()
        self.throttle = Throttle(cast(Redis, self.redis), Keys("t"), self.clock, POLICY)
        self.tasks: list[tuple[int, asyncio.Task[None]]] = []
        self.passed: list[tuple[float, int]] = []
        self.refused: list[int] = []
        self.cancelled = 0
        self.moved = False

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def send(self, cost: int) -> None:
        self.tasks.append((cost, asyncio.create_task(self._send(cost))))

    def cancel(self, number: int) -> None:
        running = [(cost, task) for cost, task in self.tasks if not task.done()]
        if running:
            cost, task = running[number % len(running)]
            if task.cancel():
                self.cancelled += cost + LEASE  # who asked takes the answer along

    async def end(self) -> None:
        await self.settle()
        while self.redis.answers:
            self.redis.answer()
            await self.settle()
        assert all(task.done() for _, task in self.tasks), "nobody waits for ever"
        await asyncio.gather(*(task for _, task in self.tasks), return_exceptions=True)

    async def _send(self, cost: int) -> None:
        try:
            await self.throttle.take(ADDRESS, cost)
        except Throttled:
            self.refused.append(cost)
            under_way = sum(each for each, task in self.tasks if not task.done())
            assert self.level() + under_way + self.cancelled > LIMIT - CREDIT, "refused while there was room"
        else:
            self.passed.append((self.clock.monotonic(), cost))
            assert self.level() <= LIMIT + LEASE * self.moved

    def level(self) -> float:
        """The bucket, worked out by hand."""
        level, last = 0.0, self.clock.monotonic()
        for number, (at, cost) in enumerate(self.passed):
            level = max(0.0, level - (at - last if number else 0.0)) + cost
            last = at
        return max(0.0, level - (self.clock.monotonic() - last))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from((1, 1, 1, 2, 7, 20))),
        st.tuples(st.just("send"), st.just(1)),
        st.tuples(st.just("answer"), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 5)),
        st.tuples(st.just("advance"), st.integers(1, 12)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
    ),
    max_size=80,
)


async def play(moves: Sequence[tuple[str, int]], *, advancing: bool) -> Scene:
    scene = Scene()
    for move, number in moves:
        match move:
            case "send":
                scene.send(number)
            case "answer":
                await scene.settle()
                scene.redis.answer()
            case "turn":
                for _ in range(number):
                    await asyncio.sleep(0)
            case "cancel":
                scene.cancel(number)
            case "advance" if advancing:
                await scene.settle()
                while scene.redis.answers:  # an answer takes no time
                    scene.redis.answer()
                    await scene.settle()
                scene.clock.advance(seconds=number)
                scene.moved = True
    await scene.end()
    for _, task in scene.tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return scene


@given(steps)
@settings(max_examples=300, deadline=None)
def test_a_burst_meets_the_limit_exactly_in_any_order(moves: list[tuple[str, int]]) -> None:
    scene = asyncio.run(play(moves, advancing=False))
    passed = sum(cost for _, cost in scene.passed)
    assert passed <= LIMIT
    assert all(passed + cost + scene.cancelled > LIMIT - CREDIT for cost in scene.refused), (
        "refused while tokens were left"
    )
    assert scene.redis.most_at_once <= 1 + len([move for move, _ in moves if move == "cancel"])


@given(steps)
@settings(max_examples=300, deadline=None)
def test_nobody_is_refused_while_tokens_are_left_as_time_passes(moves: list[tuple[str, int]]) -> None:
    asyncio.run(play(moves, advancing=True))


async def test_hundreds_at_once_ask_twice_and_all_pass() -> None:
    scene = Scene()
    for _ in range(LIMIT):
        scene.send(1)
    await scene.settle()
    scene.redis.answer()
    await scene.settle()
    scene.redis.answer()
    await scene.settle()
    assert (len(scene.passed), scene.refused, scene.redis.answers) == (LIMIT, [], [])


@pytest.mark.parametrize("count", [1, 10])
async def test_who_waits_for_a_redis_that_is_away_passes_with_the_one_who_asked(count: int) -> None:
    scene = Scene()
    scene.send(CREDIT)
    for _ in range(count):
        scene.send(1)
    await scene.settle()
    assert len(scene.redis.answers) == 1
    scene.redis.fail()
    await scene.settle()
    assert (len(scene.passed), scene.redis.answers) == (1 + count, [])
