"""Batches: bounded in items and bytes, and halved until the item at fault is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.batcher import Batcher, BatchLimits
from handbill.kit.errors import Broken, Busy, EngineRefused
from tests.kit.waiting import soon


class Sink:
    """Takes batches; refuses each that holds a bad item, and waits at the gate if told to."""

    def __init__(self, bad: frozenset[int] = frozenset(), error: type[Exception] = EngineRefused) -> None:
        self.bad = bad
        self.error = error
        self.stored: list[int] = []
        self.sizes: list[int] = []
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, items: Sequence[int]) -> list[int]:
        self.sizes.append(len(items))
        self.entered.set()
        await self.gate.wait()
        if self.bad.intersection(items):
            raise self.error("refused")
        self.stored += items
        return [item * 2 for item in items]


@given(
    count=st.integers(1, 60),
    bad=st.frozensets(st.integers(0, 59), max_size=8),
    batch_items=st.integers(1, 60),
    batch_bytes=st.integers(1, 400),
    error=st.sampled_from([EngineRefused, ValueError]),
)
def test_batcher_fails_exactly_the_bad_items(
    count: int, bad: frozenset[int], batch_items: int, batch_bytes: int, error: type[Exception]
) -> None:
    async def run() -> tuple[Sink, list[int | BaseException]]:
        sink = Sink(bad, error)
        limits = BatchLimits(batch_items=batch_items, batch_bytes=batch_bytes)
        batcher = Batcher(sink.handle, lambda _: 10, limits)
        results = await asyncio.gather(*map(batcher.submit, range(count)), return_exceptions=True)
        return sink, results

    sink, results = asyncio.run(run())
    for item, result in enumerate(results):
        assert isinstance(result, error) if item in bad else result == item * 2
    assert sink.stored == [item for item in range(count) if item not in bad]  # in order, each once
    assert max(sink.sizes) <= min(batch_items, max(1, batch_bytes // 10))


async def test_batcher_halves_no_further_than_the_bad_item_needs() -> None:
    sink = Sink(frozenset({300}))
    batcher = Batcher(sink.handle, lambda _: 1)
    await soon(asyncio.gather(*map(batcher.submit, range(500)), return_exceptions=True))
    assert len(sink.sizes) <= 1 + 2 * 9


@pytest.mark.parametrize("error", [Busy, Broken])
async def test_batcher_does_not_halve_for_an_engine_that_is_unavailable(error: type[Exception]) -> None:
    sink = Sink(frozenset({3}), error)
    batcher = Batcher(sink.handle, lambda _: 1)
    results = await soon(asyncio.gather(*map(batcher.submit, range(10)), return_exceptions=True))
    assert all(isinstance(result, error) for result in results)
    assert sink.sizes == [10]


@pytest.mark.parametrize(
    "limits", [BatchLimits(waiting_items=4), BatchLimits(waiting_bytes=40)], ids=["items", "bytes"]
)
async def test_batcher_answers_busy_at_its_limit_and_takes_more_afterwards(limits: BatchLimits) -> None:
    sink = Sink()
    sink.gate.clear()
    batcher = Batcher(sink.handle, lambda _: 10, limits)
    first = asyncio.create_task(batcher.submit(0))
    await soon(sink.entered.wait())
    rest = [asyncio.create_task(batcher.submit(item)) for item in range(1, 4)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await soon(batcher.submit(4))
    sink.gate.set()
    assert await soon(asyncio.gather(first, *rest)) == [0, 2, 4, 6]
    assert await soon(batcher.submit(4)) == 8


async def test_batcher_takes_one_item_that_is_larger_than_its_limits() -> None:
    sink = Sink()
    batcher = Batcher(sink.handle, lambda _: 1_000, BatchLimits(waiting_bytes=10, batch_bytes=10))
    assert await soon(batcher.submit(1)) == 2


async def test_batcher_reports_missing_results_to_every_caller_without_a_second_try() -> None:
    calls: list[int] = []

    async def handle(items: Sequence[int]) -> list[int]:
        calls.append(len(items))
        return list(items)[:1]

    batcher = Batcher(handle, lambda _: 1)
    results = await soon(asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True))
    assert all(isinstance(result, RuntimeError) for result in results)
    assert calls == [2]


@pytest.mark.parametrize("moment", ["before it begins", "while it writes"])
async def test_a_run_that_is_cancelled_leaves_nobody_waiting(moment: str) -> None:
    sink = Sink()
    batcher = Batcher(sink.handle, lambda item: 1, BatchLimits(batch_items=2))
    sink.gate.clear()
    submitted = [asyncio.create_task(batcher.submit(item)) for item in range(5)]
    await asyncio.sleep(0)
    if moment == "while it writes":
        await soon(sink.entered.wait())
    run = batcher._task
    assert run is not None
    run.cancel()
    results = await soon(asyncio.gather(*submitted, return_exceptions=True), what="everybody learns it")
    assert [type(result) for result in results] == [asyncio.CancelledError] * 5
    sink.gate.set()
    assert await soon(batcher.submit(21)) == 42, "the next item begins a new run"
    assert batcher.is_idle
