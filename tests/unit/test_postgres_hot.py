"""Look-ups of hot routes on a PostgreSQL that does not answer: who waits, who does not, and when it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from handbill.infra.postgres import HotLookups, HotTimeouts, PostgresAway, PostgresBusy, PostgresError
from tests.kit.clocks import FakeClock
from tests.kit.waiting import eventually, soon

NEVER = HotTimeouts(fallback_s=1e6, lookup_s=1e6)
SHORT = HotTimeouts(fallback_s=0.001, lookup_s=0.001)


class Engine:
    """Answers when the test says so; counts who asked and who was cancelled."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.asked = self.cancelled = self.pinged = 0
        self.error: Exception | None = None

    async def ask(self) -> str:
        self.asked += 1
        try:
            await self.answering.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return "answer"

    async def ping(self) -> None:
        self.pinged += 1
        await self.answering.wait()
        if self.error is not None:
            raise self.error


MakeHot = Callable[..., HotLookups]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def make_hot(engine: Engine) -> AsyncIterator[MakeHot]:
    made: list[HotLookups] = []

    def make(timeouts: HotTimeouts, **options: Any) -> HotLookups:
        made.append(HotLookups(engine.ping, timeouts, **options))
        made[-1].start()
        return made[-1]

    yield make
    for hot in made:
        await hot.stop()


async def test_an_answer_in_time_is_given(engine: Engine, make_hot: MakeHot) -> None:
    hot = make_hot(NEVER)
    engine.answering.set()
    assert await hot.run(engine.ask, has_fallback=True) == "answer"
    assert not hot.is_silent(has_fallback=True)
    assert engine.pinged == 0


async def test_the_first_waits_for_the_timeout_and_the_others_not_at_all(engine: Engine, make_hot: MakeHot) -> None:
    hot = make_hot(SHORT)
    with pytest.raises(PostgresAway) as away:
        await soon(hot.run(engine.ask))
    assert (away.value.status, away.value.retry_after) == (503, 1.0)
    await eventually(lambda: engine.cancelled == 1)
    for _ in range(100):
        with pytest.raises(PostgresAway):
            await hot.run(engine.ask)
    assert engine.asked == 1, "nobody queues behind a silent engine"
    assert engine.pinged == 1, "one probe waits for it"
    engine.answering.set()
    await eventually(lambda: not hot.is_silent(has_fallback=False))
    assert await hot.run(engine.ask) == "answer"


async def test_silence_counts_from_the_first_question_without_an_answer(engine: Engine, make_hot: MakeHot) -> None:
    clock = FakeClock()
    hot = make_hot(HotTimeouts(fallback_s=100.0, lookup_s=1000.0), monotonic=clock.monotonic)
    waiting = asyncio.create_task(hot.run(engine.ask))
    await eventually(lambda: engine.asked == 1)
    clock.advance(seconds=99.9)
    assert not hot.is_silent(has_fallback=True)
    clock.advance(seconds=0.1)
    assert hot.is_silent(has_fallback=True)
    assert not hot.is_silent(has_fallback=False), "where only PostgreSQL knows the answer, it has longer"
    with pytest.raises(PostgresAway):
        await hot.run(engine.ask, has_fallback=True)
    assert engine.asked == 1
    clock.advance(seconds=900)
    assert hot.is_silent(has_fallback=False)
    hot.record_answer()  # somebody else's question was answered
    assert not hot.is_silent(has_fallback=True)
    engine.answering.set()
    assert await waiting == "answer"


@pytest.mark.parametrize("lost", [PostgresAway("cut"), PostgresBusy("all connections are in use")])
async def test_a_failure_is_probed_until_an_answer(engine: Engine, make_hot: MakeHot, lost: Exception) -> None:
    hot = make_hot(NEVER)
    engine.error = lost
    engine.answering.set()
    with pytest.raises(type(lost)):
        await hot.run(engine.ask)
    await eventually(lambda: engine.pinged >= 2, what="a probe that failed and tried again")
    engine.error = PostgresError("refused", sqlstate="42501", constraint=None, statement="ping")
    pinged = engine.pinged
    await eventually(lambda: engine.pinged > pinged and hot._probe is not None and hot._probe.done())
    assert hot._unanswered_since is None, "a refusal is an answer"


async def test_a_surprise_does_not_end_the_probe(engine: Engine, make_hot: MakeHot) -> None:
    hot = make_hot(SHORT)
    with pytest.raises(PostgresAway):
        await soon(hot.run(engine.ask))
    engine.error = ZeroDivisionError()
    engine.answering.set()
    await eventually(lambda: engine.pinged >= 2)
    engine.error = None
    await eventually(lambda: not hot.is_silent(has_fallback=False))


async def test_a_caller_that_leaves_cancels_its_question_and_leaves_no_silence_behind(
    engine: Engine, make_hot: MakeHot
) -> None:
    hot = make_hot(NEVER)
    caller = asyncio.create_task(hot.run(engine.ask))
    await eventually(lambda: engine.asked == 1)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await eventually(lambda: engine.cancelled == 1 and engine.pinged == 1)
    engine.answering.set()
    await eventually(lambda: hot._unanswered_since is None)


async def test_too_many_at_once_are_refused(engine: Engine, make_hot: MakeHot) -> None:
    hot = make_hot(NEVER, max_running=3)
    waiting = [asyncio.create_task(hot.run(engine.ask)) for _ in range(3)]
    await eventually(lambda: engine.asked == 3)
    with pytest.raises(PostgresBusy):
        await hot.run(engine.ask)
    engine.answering.set()
    assert await asyncio.gather(*waiting) == ["answer"] * 3
    assert await hot.run(engine.ask) == "answer"


async def test_a_wait_that_ends_leaves_the_work_of_others_alone(engine: Engine, make_hot: MakeHot) -> None:
    hot = make_hot(SHORT)
    shared = asyncio.create_task(_shared(engine.ask))
    with pytest.raises(PostgresAway):
        await soon(hot.wait(shared))
    engine.answering.set()
    assert await soon(shared) == "answer"


async def _shared(work: Callable[[], Coroutine[Any, Any, str]]) -> str:
    return await work()


async def test_stop_ends_what_runs_and_starts_no_probe(engine: Engine) -> None:
    hot = HotLookups(engine.ping, NEVER)
    hot.start()
    waiting = asyncio.create_task(hot.run(engine.ask))
    await eventually(lambda: engine.asked == 1)
    await hot.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert hot._probe is None
