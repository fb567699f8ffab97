"""The rules of background tasks: errors, hangs, pauses, restarts and what a process reports of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from handbill.kit import task_health, tasks
from handbill.kit.errors import Busy
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask, spawn_watched
from handbill.kit.telemetry.metrics import REGISTRY
from tests.kit.clocks import FakeClock


@asynccontextmanager
async def started(task: BackgroundTask) -> AsyncIterator[BackgroundTask]:
    await task.start()
    try:
        yield task
    finally:
        await task.stop()


def stuck_metric(name: str) -> float | None:
    return REGISTRY.get_sample_value("handbill_task_stuck", {"task": name})


def test_errors_are_forgotten_only_by_finished_work_and_busy_is_no_error() -> None:
    health = TaskHealth("x", clock=FakeClock())
    health.failed(Busy("away"))
    assert health.errors == 0
    health.failed(ValueError("x"))
    health.succeeded()
    assert health.errors == 1
    health.processed(3)
    assert (health.errors, health.done) == (0, 3)


def test_a_task_that_gave_a_sign_of_life_must_give_the_next() -> None:
    clock = FakeClock()
    never, lives = TaskHealth("never", clock=clock), TaskHealth("lives", clock=clock, limit_s=40)
    clock.advance(seconds=100)
    assert not never.is_silent()
    lives.heartbeat()
    clock.advance(seconds=39.9)
    assert not lives.is_silent()
    clock.advance(seconds=0.2)
    assert lives.is_silent()
    assert lives.is_stuck()
    lives.heartbeat()
    assert not lives.is_stuck()


@pytest.mark.parametrize("error", [Busy("away"), ValueError("x")])
async def test_an_earlier_error_does_not_count_while_a_run_rests_at_its_end(error: Exception) -> None:
    clock, rests, runs = FakeClock(), asyncio.Event(), 0

    class Hourly(BackgroundTask):
        async def rest(self, seconds: float) -> None:
            if seconds == 3_600:
                rests.set()
            await super().rest(seconds)

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise error
        await task.rest(3_600)

    task = Hourly("hourly", run, health=TaskHealth("hourly", clock=clock, limit_s=40))
    async with started(task):
        await rests.wait()
        await asyncio.sleep(0)  # sleeps: for no time, the pause begins
        clock.advance(seconds=1_000)
        assert not task.health.is_stuck()
        assert not task.health.is_failing()


def test_an_announced_pause_is_no_silence() -> None:
    clock = FakeClock()
    health = TaskHealth("hourly", clock=clock, limit_s=40)
    health.rest(3_600)
    clock.advance(seconds=3_639)
    assert not health.is_silent()
    clock.advance(seconds=2)
    assert health.is_silent()


def test_an_engine_that_does_not_answer_is_no_progress_but_no_reason_to_restart() -> None:
    clock = FakeClock()
    waits, fails = TaskHealth("waits", clock=clock), TaskHealth("fails", clock=clock)
    for _ in range(5):
        waits.failed(Busy("away"))
        fails.failed(ValueError("bad"))
        clock.advance(seconds=10)
    waits.heartbeat()
    fails.heartbeat()
    assert waits.is_stuck()
    assert not waits.is_failing()
    assert fails.is_stuck()
    assert fails.is_failing()
    waits.succeeded()
    fails.succeeded()
    assert not waits.is_stuck()
    assert not fails.is_stuck()


@pytest.mark.parametrize("error", [ValueError("x"), Busy("away"), RecursionError(), KeyError("k")])
async def test_a_task_survives_every_error(error: Exception) -> None:
    runs = 0
    recovered = asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise error
        recovered.set()
        await asyncio.Event().wait()

    before = REGISTRY.get_sample_value("handbill_task_errors_total", {"task": "survivor"}) or 0.0
    async with started(BackgroundTask("survivor", run)) as task:
        await asyncio.wait_for(recovered.wait(), 30)
        assert task.ready.is_set()
        assert REGISTRY.get_sample_value("handbill_task_errors_total", {"task": "survivor"}) == before + 2


async def test_a_pause_that_the_watch_cancels_does_not_end_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 3_600.0)
    clock, runs, again = FakeClock(), 0, asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("x")
        again.set()
        await asyncio.Event().wait()

    async with started(BackgroundTask("pauses", run, health=TaskHealth("pauses", clock=clock, limit_s=40))) as task:
        await task.ready.wait()
        clock.advance(seconds=10_000)
        await asyncio.sleep(0)
        assert task._timer is not None
        task._timer.cancel()
        task._watch()
        await asyncio.wait_for(again.wait(), 60)


async def test_a_run_that_hangs_is_cancelled_and_started_again() -> None:
    runs = 0
    cancelled, recovered = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        recovered.set()

    health = TaskHealth("hangs", limit_s=0.05)
    async with started(BackgroundTask("hangs", run, period_s=3600, health=health)):
        await asyncio.wait_for(recovered.wait(), 30)
        assert cancelled.is_set()
        assert "TaskStuck" in health.last_error


async def test_a_run_that_reports_progress_is_not_cancelled() -> None:
    """Twenty times the limit in all, and a heartbeat from deep inside before each limit ends."""
    clock = FakeClock()
    health = TaskHealth("long", limit_s=10, clock=clock)
    done = asyncio.Event()

    async def run() -> None:
        for _ in range(20):
            clock.advance(seconds=9)
            assert not health.is_silent()
            await deep()
        done.set()

    async def deep() -> None:
        task_health.heartbeat()

    async with started(BackgroundTask("long", run, period_s=3600, health=health)):
        await asyncio.wait_for(done.wait(), 30)
    assert health.errors == 0


async def test_a_run_that_will_not_be_cancelled_makes_the_process_unhealthy() -> None:
    release, began = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    clock = FakeClock()
    health = TaskHealth("stubborn", limit_s=40, clock=clock)
    async with started(BackgroundTask("stubborn", run, health=health)):
        await began.wait()
        assert "stubborn" not in task_health.unhealthy()
        clock.advance(seconds=41)
        assert "stubborn" in task_health.unhealthy()
        assert "stubborn" in task_health.silent()
        assert stuck_metric("stubborn") == 1.0
        release.set()
    assert "stubborn" not in task_health.unhealthy()
    assert stuck_metric("stubborn") is None


async def test_a_task_that_is_not_required_leaves_the_process_healthy() -> None:
    clock = FakeClock()
    health = TaskHealth("optional", required=False, clock=clock)

    async def run() -> None:
        await asyncio.Event().wait()

    async with started(BackgroundTask("optional", run, health=health)):
        await asyncio.sleep(0)
        clock.advance(seconds=1_000)
        assert "optional" not in task_health.unhealthy()
        assert stuck_metric("optional") == 1.0


async def test_stop_ends_a_pause_and_a_run_at_once_and_may_be_called_twice() -> None:
    async def nothing() -> None:
        return None

    task = BackgroundTask("stops", nothing, period_s=3_600)
    await task.start()
    await asyncio.wait_for(task.ready.wait(), 30)
    await task.stop()
    await task.stop()
    assert all(each.name != "stops" for each in task_health.running())


async def test_a_watched_coroutine_has_a_health_for_as_long_as_it_runs() -> None:
    release = asyncio.Event()
    seen: list[Callable[[], None]] = []

    async def work() -> None:
        seen.append(task_health.heartbeat)
        await release.wait()

    clock = FakeClock()
    health = TaskHealth("lane", clock=clock)
    task = spawn_watched(work, health)
    assert health in task_health.running()
    clock.advance(seconds=100)
    assert "lane" in task_health.unhealthy()
    release.set()
    await task
    await asyncio.sleep(0)
    assert health not in task_health.running()


async def test_a_run_that_swallows_one_cancellation_is_stopped_all_the_same() -> None:
    """As `asyncio.wait_for` of Python 3.11 does when its result comes at the same moment."""
    began = asyncio.Event()

    async def run() -> None:
        began.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                break
        await asyncio.Event().wait()

    task = BackgroundTask("swallows", run)
    await task.start()
    await began.wait()
    await asyncio.wait_for(task.stop(), 30)
    assert all(each.name != "swallows" for each in task_health.running())
