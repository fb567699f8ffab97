"""Every background task of a process raises, hangs and recovers, alone: the process reports it and goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from handbill.kit import task_health, tasks
from handbill.kit.tasks import BackgroundTask
from handbill.settings import load
from handbill.wiring.chores import PLANS, Chore
from handbill.wiring.house import House
from tests.kit.waiting import eventually

ENGINES_AND_SERVICES = {
    "shared-clock", "redis-connection", "tenants-changes", "intake-lag", "disk-space", "banner-rates",
    "catalog-changes", "catalog-poll",
}  # fmt: skip
"""What runs in every process: the API and the worker."""
WORKER = {
    "relay", "relay-wake", "ledger", "consume", "caps-keeper", "incoming", "segments", "webhook-work", "cron", "leader",
}  # fmt: skip
LED = {
    "sweep", "gauges", "tenants-sweep", "raised-limits", "people-mender", "overrides", "export-audit", "message-sweep",
}  # fmt: skip
QUEUES = {
    "banners", "stats-sync", "system", "upload_jobs", "upload_chunks", "import_persistence", "message_dispatch",
    "message_retry", "webhooks", "requests",
}  # fmt: skip
QUEUE_TASKS = {f"jobs:{queue}{part}" for queue in QUEUES for part in ("", ":listen", ":sweep")}
WATCHED = ("lane-", "export-", "lock-renewal")
"""Run by an owner that starts them again: they have a health, and no loop of their own."""


@contextlib.asynccontextmanager
async def running_worker(env: dict[str, str]) -> AsyncIterator[None]:
    house = House(load(env))
    chores: list[Chore] = []
    await house.start("worker")
    try:
        for plan in PLANS:
            chores.append(plan.build(house))
            await chores[-1].start()
        for chore in chores:
            await chore.ready.wait()  # type: ignore[attr-defined] # every chore of the product has it
        yield
    finally:
        for chore in reversed(chores):
            await chore.stop()
        await house.stop()


def silence(task: BackgroundTask) -> None:
    """As if the run under way had given no sign of life for longer than the limit, and the watch looked now."""
    assert task._timer is not None
    task._timer.cancel()
    task._watched_at = asyncio.get_running_loop().time()
    task.health._expected = -1e9
    task._watch()


class Faulty:
    """Raises the first time, hangs the second, and is the task's own run from then on."""

    def __init__(self, task: BackgroundTask) -> None:
        self.calls = 0
        self.is_cancelled = False
        self._task = task
        self._run: Callable[[], Awaitable[object]] = task.run

    async def __call__(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("injected")
        if self.calls == 2:
            try:
                await asyncio.Event().wait()
            finally:
                self.is_cancelled = True
        await self._run()


async def break_and_recover(task: BackgroundTask) -> None:
    faulty = Faulty(task)
    task.run = faulty
    silence(task)  # the run under way ends: it hung
    await eventually(lambda: faulty.calls >= 2, what=f"{task.name} runs again after it hung and after it raised")
    assert "injected" in task.health.last_error
    silence(task)
    await eventually(lambda: faulty.calls >= 3, what=f"{task.name} runs again after it hung")
    assert faulty.is_cancelled


async def test_every_task_raises_hangs_and_recovers(
    handbill_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.001)
    async with running_worker(handbill_env):
        by_name = {task.name: task for task in tasks.started()}
        assert set(by_name) >= WORKER | LED | QUEUE_TASKS | ENGINES_AND_SERVICES
        assert {name: task.health.name for name, task in by_name.items()} == {name: name for name in by_name}
        assert len({id(task.health) for task in by_name.values()}) == len(by_name), "each has a health of its own"
        healths = {health.name for health in task_health.running()}
        assert healths >= set(by_name), "the process watches every one, led or not"
        unexpected = healths - set(by_name) - {name for name in healths if name.startswith(WATCHED)}
        assert not unexpected
        assert task_health.unhealthy() == []
        others = [task for name, task in by_name.items() if name not in ("leader", "redis-connection")]
        await asyncio.gather(*(break_and_recover(task) for task in others))
        await break_and_recover(by_name["redis-connection"])
        await break_and_recover(by_name["leader"])
        await eventually(lambda: {task.name for task in tasks.started()} >= LED, what="the led tasks run again")
        await eventually(lambda: task_health.unhealthy() == [], what="the process is healthy again")
