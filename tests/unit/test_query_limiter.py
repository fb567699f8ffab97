"""Slots for questions: limits of a tenant and of the process, taking turns, and what happens when there is no room."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handbill.insights.query_limiter import QueryLimiter, QueryLimits
from handbill.kit.errors import Busy, Throttled
from tests.kit.waiting import soon

HEAVY, LIGHT = 1, 2


class Questions:
    """Questions that run until they are told to end, and the order in which they got their slots."""

    def __init__(self, limits: QueryLimits) -> None:
        self.limiter = QueryLimiter(limits)
        self.order: list[int] = []
        self.ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _ask(self, tenant_id: int) -> None:
        async with self.limiter.slot(tenant_id):
            end = asyncio.Event()
            self.order.append(tenant_id)
            self.ends.append(end)
            try:
                await end.wait()
            finally:
                self.ends.remove(end)

    async def ask(self, tenant_id: int) -> asyncio.Task[None]:
        task = asyncio.create_task(self._ask(tenant_id))
        self.tasks.append(task)
        await turn()
        return task

    async def end(self, number: int = 0) -> None:
        self.ends[number].set()
        await turn()

    async def end_all(self) -> None:
        while self.ends:
            await self.end()
        await soon(asyncio.gather(*self.tasks, return_exceptions=True))


async def turn() -> None:
    for _ in range(5):  # a slot goes from hand to hand in fewer steps
        await asyncio.sleep(0)


async def test_a_tenant_with_one_question_is_next_whatever_another_asks() -> None:
    questions = Questions(QueryLimits(running=2, tenant_running=2))
    for _ in range(10):
        await questions.ask(HEAVY)
    await questions.ask(LIGHT)
    assert questions.order == [HEAVY, HEAVY]
    await questions.end()
    assert questions.order == [HEAVY, HEAVY, LIGHT]
    await questions.end_all()
    assert questions.limiter.running() == questions.limiter.waiting() == 0


async def test_a_tenants_own_limits_are_429_and_concern_nobody_else() -> None:
    questions = Questions(QueryLimits(tenant_running=1, tenant_waiting=1, running=8))
    await questions.ask(HEAVY)
    await questions.ask(HEAVY)
    with pytest.raises(Throttled) as refused:
        async with questions.limiter.slot(HEAVY):
            raise AssertionError("there was no slot")
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("INSIGHTS_BUSY", 429, 2.0)
    async with questions.limiter.slot(LIGHT):
        assert questions.limiter.running(LIGHT) == 1
    await questions.end_all()
    late = QueryLimiter(QueryLimits(tenant_running=1, timeout_s=0.001))
    async with late.slot(HEAVY):
        with pytest.raises(Throttled):
            async with late.slot(HEAVY):
                raise AssertionError("there was no slot")
        assert late.waiting() == 0


async def test_a_full_process_is_503_for_who_waits_too_long() -> None:
    limiter = QueryLimiter(QueryLimits(running=1, timeout_s=0.001))
    async with limiter.slot(HEAVY):
        with pytest.raises(Busy) as refused:
            async with limiter.slot(LIGHT):
                raise AssertionError("there was no slot")
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("INSIGHTS_FULL", 503, 2.0)
    async with limiter.slot(LIGHT):
        assert limiter.running() == 1


async def test_room_to_wait_is_shared_too() -> None:
    questions = Questions(QueryLimits(running=1, waiting=3))
    for _ in range(4):
        await questions.ask(HEAVY)
    await questions.ask(LIGHT)  # the last of the three that wait makes room
    refused = questions.tasks[3]
    assert isinstance(refused.exception(), Busy)
    assert (questions.limiter.waiting(HEAVY), questions.limiter.waiting(LIGHT)) == (2, 1)
    third = await questions.ask(3)
    assert (questions.limiter.waiting(HEAVY), questions.limiter.waiting(3)) == (1, 1)
    fourth = await questions.ask(4)
    assert isinstance(fourth.exception(), Busy), "everybody has one: the last to come is refused"
    assert not third.done()
    await questions.end_all()
    assert questions.limiter.running() == questions.limiter.waiting() == 0


async def test_whoever_leaves_while_waiting_or_with_a_fresh_slot_keeps_nothing() -> None:
    questions = Questions(QueryLimits(running=1))
    await questions.ask(HEAVY)
    waiting = await questions.ask(LIGHT)
    waiting.cancel()
    await turn()
    assert questions.limiter.waiting() == 0
    granted = await questions.ask(LIGHT)
    questions.ends[0].set()
    await asyncio.sleep(0)  # the slot is given in this turn, and the question leaves before it has run
    assert questions.limiter.running(LIGHT) == 1
    granted.cancel()
    await turn()
    assert granted.cancelled()
    assert questions.limiter.running() == 0


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 4))
def test_limits_hold_and_turns_are_fair_for_any_arrivals(seed: int, tenant_running: int, running: int) -> None:
    rng = random.Random(seed)
    kinds = rng.choices(["ask", "end", "leave"], (10, 8, 1), k=300)
    steps = [(kind, min(rng.randrange(10), 4) if kind == "ask" else rng.randrange(300)) for kind in kinds]
    asyncio.run(arrivals(steps, QueryLimits(tenant_running=tenant_running, running=running, tenant_waiting=300)))


async def arrivals(steps: list[tuple[str, int]], limits: QueryLimits) -> None:
    """Five tenants, of which the last asks more than the others."""
    questions = Questions(limits)
    limiter = questions.limiter
    overtaken: dict[int, Counter[int]] = {}
    for what, number in [*steps, *[("end", 0)] * 300]:
        before = len(questions.order)
        waited = {each for each in range(5) if limiter.waiting(each) and limiter.running(each) < limits.tenant_running}
        if what == "ask":
            await questions.ask(number)
        elif what == "leave" and questions.tasks:
            questions.tasks[number % len(questions.tasks)].cancel()
            await turn()
        elif questions.ends:
            await questions.end(number % len(questions.ends))
        assert limiter.running() <= limits.running
        assert all(limiter.running(each) <= limits.tenant_running for each in range(5))
        served = questions.order[before:]
        for tenant_id in range(5):
            if tenant_id not in waited or tenant_id in served:
                overtaken.pop(tenant_id, None)
            else:
                overtaken.setdefault(tenant_id, Counter()).update(served)
        assert all(count <= 2 for others in overtaken.values() for count in others.values()), "nobody is overtaken"
        for each in range(5):  # no slot stays empty while somebody may have it
            can_run = limiter.running() < limits.running and limiter.running(each) < limits.tenant_running
            assert not (can_run and limiter.waiting(each))
    await questions.end_all()
    assert limiter.running() == limiter.waiting() == 0
