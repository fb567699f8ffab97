"""The worker process: starts the house and its chores, watches them, and stops everything in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from handbill.kit import agents, garbage, task_health
from handbill.kit.errors import Broken
from handbill.kit.heartbeat import Heartbeat
from handbill.kit.ready_signal import notify_ready
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry import logs
from handbill.settings import Settings, ready_socket
from handbill.wiring.heartbeat_files import worker_heartbeat_file
from handbill.wiring.house import House
from handbill.worker.chore import Chore, Plan, chosen
from handbill.worker.pages import Pages

_log = logs.get("worker")

TICK_SECONDS = 1.0


async def serve(house: House, settings: Settings, plans: Sequence[Plan] | None = None) -> None:
    """Run until a stop signal. Broken when a chore fails again and again: whoever started us starts us again."""
    shell = Shell(house, settings, chosen(settings.worker.only) if plans is None else plans)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shell.ask_to_stop)
    await shell.run()


class Shell:
    def __init__(self, house: House, settings: Settings, plans: Sequence[Plan]) -> None:
        self._house = house
        self._settings = settings
        self._plans = plans
        self._own = TaskHealth("event-loop", limit_s=30.0)
        self._chores: list[tuple[str, Chore]] = []
        self._asked = asyncio.Event()
        self._started = house.clock.monotonic()
        self._heartbeat = Heartbeat(worker_heartbeat_file(settings))
        worker = settings.worker
        self._pages = Pages(worker.host, worker.port, worker.metrics_port, self.health)

    def ask_to_stop(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        try:
            await self._start()
            await self._watch()
        finally:
            await self._stop()

    async def _start(self) -> None:
        agents.warm()
        await self._pages.start()
        await self._house.start("worker")
        task_health.register(self._own)
        self._heartbeat.start()
        for plan in self._plans:
            chore = plan.build(self._house)
            self._chores.append((plan.name, chore))
            await chore.start()
        for _, chore in self._chores:
            await self._until_ready(chore)
        garbage.settle()
        _log.info("worker-ready", chores=[plan.name for plan in self._plans])
        notify_ready(ready_socket())

    async def _until_ready(self, chore: Chore) -> None:
        """Wait for a chore that says when it is ready, but not past a stop signal."""
        ready = getattr(chore, "ready", None)
        if not isinstance(ready, asyncio.Event):
            return
        waits = [asyncio.ensure_future(ready.wait()), asyncio.ensure_future(self._asked.wait())]
        _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in left:
            wait.cancel()

    async def _watch(self) -> None:
        """Go round once a second until asked to stop, or until a chore has failed too often in a row."""
        while not self._asked.is_set():
            self._own.succeeded()
            for health in task_health.running():
                if health.required and health.errors >= self._settings.worker.max_errors:
                    raise Broken(
                        f"The task {health.name} failed {health.errors} times in a row, last with {health.last_error}. "
                        "What it had accepted is kept. The worker exits to be started again.",
                        code="TOO_MANY_ERRORS",
                    )
            try:
                await asyncio.wait_for(self._asked.wait(), TICK_SECONDS)
            except TimeoutError:
                continue

    async def _stop(self) -> None:
        """Last started, first stopped; a chore that cannot stop in time is left behind, the next is not."""
        _log.info("worker-stopping", chores=[name for name, _ in self._chores])
        while self._chores:
            name, chore = self._chores.pop()
            try:
                await asyncio.wait_for(chore.stop(), self._settings.worker.stop_seconds)
            except TimeoutError:
                _log.error("chore-stop-timed-out", chore=name, seconds=self._settings.worker.stop_seconds)
            except Exception as error:  # noqa: BLE001 - one chore's failure must not keep the next from stopping
                _log.error("chore-stop-failed", chore=name, error=f"{type(error).__name__}: {error}")
        await self._pages.stop()
        await self._house.stop()
        await asyncio.to_thread(self._heartbeat.stop)
        task_health.unregister(self._own)
        _log.info("worker-stopped")

    def health(self) -> tuple[bool, dict[str, object]]:
        """200 while every required task makes progress; the body names those that do not."""
        unhealthy = task_health.unhealthy()
        tasks = {each.name: {"done": each.done, "errors": each.errors} for each in task_health.running()}
        return not unhealthy, {
            "status": "stuck" if unhealthy else "ok",
            "queue": "stats-sync",
            "uptime": round(self._house.clock.monotonic() - self._started),
            "stuck": unhealthy,
            "tasks": tasks,
            "chores": tasks,  # its name in earlier releases
        }
