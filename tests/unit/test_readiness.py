"""Rules of /ready and /health, each at its limit, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handbill.api import health
from handbill.api.readiness import check_errors, check_tasks, readiness
from handbill.api.reply_rate import ReplyRate
from handbill.events.edge import Stalled
from handbill.kit import task_health
from handbill.kit.disk import DiskLimits, DiskMonitor, FreeSpace, measure
from handbill.kit.errors import Broken
from handbill.kit.progress import ProgressWatch
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry.metrics import REGISTRY
from tests.kit.clocks import FakeClock
from tests.kit.waiting import soon

GIB = 1 << 30


def test_work_that_does_not_move_for_30_s_is_stalled_and_any_movement_ends_that() -> None:
    clock = FakeClock()
    watch = ProgressWatch(clock, 30.0)
    assert not watch.observe("lane", "1-0", has_work=True)
    clock.advance(seconds=29.9)
    assert not watch.observe("lane", "1-0", has_work=True)
    clock.advance(seconds=0.1)
    assert watch.observe("lane", "1-0", has_work=True)
    assert not watch.observe("lane", "2-0", has_work=True), "it moved"
    clock.advance(seconds=60)
    assert not watch.observe("lane", "2-0", has_work=False), "nothing to do"
    assert not watch.observe("lane", "2-0", has_work=True), "work that has just come"


async def test_many_errors_are_more_than_a_fifth_of_at_least_50_replies_within_30_s() -> None:
    clock = FakeClock()
    replies = ReplyRate(clock)
    for number in range(49):
        replies.count(500 if number < 11 else 200)
    assert not replies.has_many_errors(), "too few replies to know"
    replies.count(499)
    assert replies.has_many_errors()
    with pytest.raises(Broken) as raised:
        await check_errors(replies)
    assert raised.value.code == "MANY_ERRORS"
    for _ in range(5):
        replies.count(200)
    assert replies.recent() == (55, 11)
    assert not replies.has_many_errors(), "exactly a fifth"
    assert await check_errors(replies) == {"replies": 55, "errors": 11}


async def test_errors_are_forgotten_after_30_s() -> None:
    clock = FakeClock()
    replies = ReplyRate(clock)
    for _ in range(100):
        replies.count(503)
    for _ in range(30):
        clock.advance(seconds=1)
        await replies.sample()
    assert replies.recent() == (100, 100)
    clock.advance(seconds=1)
    await replies.sample()
    assert replies.recent() == (0, 0)


@pytest.mark.parametrize(
    ("space", "is_low"),
    [
        (FreeSpace(GIB, 0.05), False),
        (FreeSpace(GIB - 1, 0.5), True),
        (FreeSpace(100 * GIB, 0.0499), True),
    ],
)
async def test_the_disk_is_low_below_either_limit(space: FreeSpace, is_low: bool) -> None:
    monitor = DiskMonitor(Path("/"), DiskLimits(GIB, 0.05), FakeClock(), measure=lambda _: space)
    await monitor.refresh()
    assert REGISTRY.get_sample_value("handbill_disk_free_bytes") == space.free_bytes
    assert REGISTRY.get_sample_value("handbill_disk_free_ratio") == space.free_ratio
    if is_low:
        with pytest.raises(Broken) as raised:
            await monitor.check()
        assert raised.value.code == "DISK_LOW"
    else:
        assert await monitor.check() == {"free_bytes": GIB, "free_ratio": 0.05}
    off = DiskMonitor(Path("/"), DiskLimits(0, 0), FakeClock(), measure=lambda _: space)
    await off.refresh()
    assert await off.check() == {}


async def test_a_disk_that_hangs_uses_one_thread_and_fails_the_check() -> None:
    clock, release, calls = FakeClock(), threading.Event(), []

    def hang(path: Path) -> FreeSpace:
        calls.append(path)
        release.wait(60)
        return FreeSpace(GIB, 1.0)

    monitor = DiskMonitor(Path("/"), DiskLimits(GIB, 0.05), clock, measure=hang)
    try:
        for _ in range(3):
            run = asyncio.create_task(monitor.refresh())
            await asyncio.sleep(0)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        clock.advance(seconds=29.9)
        assert await monitor.check() == {}
        clock.advance(seconds=0.1)
        with pytest.raises(Broken) as raised:
            await monitor.check()
        assert raised.value.code == "DISK_UNKNOWN"
    finally:
        release.set()
    await soon(monitor.refresh())
    assert len(calls) == 1
    assert (await monitor.check())["free_bytes"] == GIB


def test_a_data_directory_that_does_not_exist_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    space = measure(tmp_path / "not" / "yet")
    assert space.free_bytes > 0
    assert 0 < space.free_ratio <= 1


@pytest.fixture
def hung() -> Iterator[TaskHealth]:
    """A required task that has given no sign of life for longer than its limit."""
    clock = FakeClock()
    task = TaskHealth("hung-task", clock=clock)
    task_health.register(task)
    clock.advance(seconds=41)
    yield task
    task_health.unregister(task)


async def test_a_hung_task_fails_health_and_its_name_is_for_operators_only(hung: TaskHealth) -> None:
    body, status = health.current_health()
    assert (body.status, status) == ("stuck", 503)
    with pytest.raises(Broken, match="hung-task") as raised:
        await check_tasks()
    assert raised.value.code == "TASKS_STUCK"
    hung.heartbeat()
    assert health.current_health() == (health.Health(), 200)
    assert "hung-task" in (await check_tasks())["running"]


def _house(**changes: Any) -> Any:
    """What the checks ask for; every engine answers."""

    async def well() -> None:
        return None

    clock = FakeClock()
    engine = SimpleNamespace(health=well)
    events = SimpleNamespace(lag=(3, 0.5), stalled=changes.get("stalled", Stalled()))
    age = changes.get("age", 30.0)
    return SimpleNamespace(
        clock=clock, database=engine, redis=engine, clickhouse=engine, events=events,
        catalogue=SimpleNamespace(age_seconds=lambda: age), disk=SimpleNamespace(check=well),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "part", "code"),
    [
        ({"stalled": Stalled(counting=("lane-1",))}, "counting", "COUNTING_STALLED"),
        ({"stalled": Stalled(exports=("lane-1",))}, "exports", "EXPORTS_STALLED"),
        ({"age": 30.1}, "catalog", "CATALOG_STALE"),
    ],
)
async def test_what_stands_still_is_not_ready_and_a_metric(changes: dict[str, Any], part: str, code: str) -> None:
    well = readiness(_house())
    assert (await well.check()).ready
    await well.evaluate()
    assert REGISTRY.get_sample_value("handbill_not_ready", {"part": part}) == 0
    stalled = readiness(_house(**changes))
    result = await stalled.check()
    assert not result.ready
    assert [name for name, each in result.parts.items() if not each.ok] == [part]
    assert result.public().parts[part].detail == {"code": code}
    await stalled.evaluate()
    assert REGISTRY.get_sample_value("handbill_not_ready", {"part": part}) == 1
    await well.evaluate()
