"""Every background task of a process raises, hangs and recovers, alone: the process reports it and goes on."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import aiohttp
import pytest

import handbill
from handbill.api.server import serve
from handbill.kit import task_health, tasks
from handbill.kit.tasks import BackgroundTask
from handbill.settings import Settings, load
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.alerts import build_watcher, scrape_targets
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
    "sweep", "gauges", "tenants-sweep", "raised-limits", "people-mender", "overrides", "person-properties",
    "export-audit",
    "sequence-corrections", "message-sweep", "token-ends",
}  # fmt: skip
QUEUES = {
    "banners", "stats-sync", "system", "upload_jobs", "upload_chunks", "import_persistence", "message_dispatch",
    "message_retry", "webhooks", "requests",
}  # fmt: skip
QUEUE_TASKS = {f"jobs:{queue}{part}" for queue in QUEUES for part in ("", ":listen", ":sweep")}
API = {"reply-rate", "readiness", "event-loop", "connection-shares", "geo", "live-tail"}
WATCHER = {"alerts-check", "alerts-webhook"}
SUPERVISOR = {"heartbeats", "engine-logs"}
"""Of `handbill up`: broken and recovered in tests/e2e/test_up_hanging_child.py and tests/unit/test_child_logs.py."""
OTHER_NAMES = {"alerts-email"}
"""The same code as `alerts-webhook` with another sender."""
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


async def break_all(among: Iterable[BackgroundTask]) -> None:
    """Each of them raises, hangs and runs again, side by side; those that others need to recover come after them."""
    last = ("redis-connection", "leader")
    by_name = {task.name: task for task in among}
    await asyncio.gather(*(break_and_recover(task) for name, task in by_name.items() if name not in last))
    for name in last:
        if name in by_name:
            await break_and_recover(by_name[name])


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
        await break_all(by_name.values())
        await eventually(lambda: {task.name for task in tasks.started()} >= LED, what="the led tasks run again")
        await eventually(lambda: task_health.unhealthy() == [], what="the process is healthy again")


@contextlib.asynccontextmanager
async def running_api(settings: Settings) -> AsyncIterator[None]:
    """The whole API process in this event loop, with a live tail open: its task runs for as long as somebody looks."""
    house, is_ready = House(settings), asyncio.Event()
    serving = asyncio.create_task(serve(house, settings, ready=is_ready.set))
    started = asyncio.create_task(is_ready.wait())
    try:
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        assert is_ready.is_set(), serving.exception()
        tenant = (await house.tenants.create_tenant(NewTenant(name="t", slug="t"), actor="t")).tenant_id
        key = (await house.tenants.create_key(tenant, NewKey(kind="secret", name="s", scopes=["*"]), actor="t")).key
        url = f"http://127.0.0.1:{settings.api.port}/v1/insights/tail"
        async with aiohttp.ClientSession() as http, http.get(url, headers={"Authorization": f"Bearer {key}"}) as tail:
            assert tail.status == 200
            yield
    finally:
        started.cancel()
        if not serving.done():
            os.kill(os.getpid(), signal.SIGTERM)  # a handler of the server takes it
        await serving


async def test_every_task_of_an_api_process_raises_hangs_and_recovers(
    handbill_env: dict[str, str], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.001)
    settings = load({**handbill_env, "HANDBILL_BANNERS__GEO_FILE": str(short_tmp / "no.mmdb")})
    async with running_api(settings):
        by_name = {task.name: task for task in tasks.started()}
        assert set(by_name) == API | ENGINES_AND_SERVICES
        await break_all(by_name.values())
        await eventually(lambda: task_health.unhealthy() == [], what="the process is healthy again")


async def test_every_task_of_the_watcher_raises_hangs_and_recovers(
    handbill_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.001)
    settings = load(
        {
            **handbill_env,
            "HANDBILL_ALERTS__WEBHOOK_URL": "https://127.0.0.1:9/x",
            "HANDBILL_ALERTS__SCRAPE": "handbill-api=http://127.0.0.1:9/metrics",
            "HANDBILL_ALERTS__INTERVAL_S": "1",
        }
    )
    watcher = build_watcher(settings, scrape_targets(settings), "alerts.json")
    assert watcher is not None
    await watcher.start()
    try:
        by_name = {task.name: task for task in tasks.started() if task.name.startswith("alerts-")}
        assert set(by_name) == WATCHER
        await break_all(by_name.values())
    finally:
        await watcher.stop()


def task_names() -> Iterator[str]:
    """Every literal name that the sources give a background task. Names that are put together are in `QUEUE_TASKS`."""
    for file in Path(handbill.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            called = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            first = call.args[0]
            if called in ("BackgroundTask", "SubscriptionTask", "_run_task") and isinstance(first, ast.Constant):
                yield str(first.value)


def test_each_background_task_in_the_sources_is_listed_here() -> None:
    assert set(task_names()) <= ENGINES_AND_SERVICES | WORKER | LED | API | WATCHER | SUPERVISOR
