"""`handbill up`: engines without a URL, the schemas, the demo tenant if wanted, api and worker, supervised."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from handbill.alerts.watcher import Watcher, run_watcher
from handbill.infra.embedded.home import Home
from handbill.infra.redis import refuse_cluster
from handbill.kit.errors import Broken
from handbill.kit.ready_signal import notify_ready
from handbill.kit.tasks import BackgroundTask
from handbill.ops import demo, engine_logs, heartbeats
from handbill.ops.child import Child
from handbill.ops.engine_logs import EngineLogs
from handbill.ops.engines import Starter, starters
from handbill.ops.heartbeats import HeartbeatCheck
from handbill.ops.ready import Ready
from handbill.ops.teller import Teller
from handbill.ops.unit import Running, Unit
from handbill.settings import Settings, for_child, ready_socket, replace
from handbill.wiring import addresses, alerts, schema, secrets
from handbill.wiring.heartbeat_files import api_heartbeat_file, worker_heartbeat_file


async def up(settings: Settings, teller: Teller, tell_ready: Callable[[Ready], None]) -> None:
    """Run until a stop signal; whatever was started is stopped in order, also after a failed start."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    with Home.open(Path(settings.home)) as home:
        supervisor = Supervisor(replace(settings, {"home": str(home.path)}), home.path, teller)
        try:
            ready = await _unless(asked, supervisor.start())
            if ready is not None:
                tell_ready(ready)
                await supervisor.watch(asked)
        finally:
            await supervisor.stop()


async def _unless(asked: asyncio.Event, work: Awaitable[Ready]) -> Ready | None:
    """The work's result, or None when a stop is asked for first; the work is then cancelled and waited for."""
    task = asyncio.ensure_future(work)
    wait = asyncio.ensure_future(asked.wait())
    await asyncio.wait([task, wait], return_when=asyncio.FIRST_COMPLETED)
    wait.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait([task])
    return None


class Supervisor:
    """Starts from the ground up, engines side by side; stops from the top down."""

    def __init__(self, settings: Settings, home: Path, teller: Teller) -> None:
        self._settings = settings
        self._home = home
        self._teller = teller
        self._units: list[Unit] = []
        self._watcher: Watcher | None = None
        self._began = time.monotonic()
        self._heartbeats = HeartbeatCheck(teller)
        self._tasks: list[BackgroundTask] = []

    async def start(self) -> Ready:
        check_ports(self._settings)
        self._watcher = alerts.build_watcher(self._settings, alerts.local_targets(self._settings), "alerts.json")
        secrets.seal_key(self._settings)
        embedded = "postgres" in addresses.missing(self._settings)
        await self._engines()
        made = await demo.ensure(self._settings, self._home, embedded=embedded)
        await self._run_task("heartbeats", self._heartbeats.check, heartbeats.PERIOD_S)
        await self._side_by_side([self._unit_of_child(name) for name in self._children()])
        seconds = round(time.monotonic() - self._began, 1)
        self._teller.say("up-ready", f"ready in {seconds} s", seconds=seconds, pid=os.getpid())
        notify_ready(ready_socket())
        return Ready(self._settings, self._home, made, seconds)

    async def watch(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; meanwhile incidents are reported, if the settings say to whom."""
        await (stop.wait() if self._watcher is None else run_watcher(self._watcher, stop))

    async def stop(self) -> None:
        """Children first, engines after; one that cannot stop does not keep the next from stopping."""
        while self._tasks:
            await self._tasks.pop().stop()
        addresses.forget(self._settings)
        if self._units:
            self._teller.say("up-stopping", "stopping")
        while self._units:
            unit = self._units.pop()
            try:
                await unit.stop()
            except Exception as error:  # noqa: BLE001 - the rest must still be stopped
                self._teller.warn("unit-not-stopped", f"{unit.name}: {type(error).__name__}: {error}", name=unit.name)
        self._teller.say("up-stopped", "stopped; everything accepted is kept")

    async def _engines(self) -> None:
        """All at once, the slowest first; PostgreSQL's schema is made while ClickHouse still starts."""
        wanted = starters(self._settings, self._home)
        by_name = {starter.name: starter for starter in wanted}
        logs = EngineLogs([self._home / "logs" / f"{name}.log" for name in by_name], self._teller)
        await self._run_task("engine-logs", logs.truncate, engine_logs.PERIOD_S)
        # Registered in the order in which they are stopped last: ClickHouse goes before Redis, PostgreSQL goes last.
        units = {name: self._unit(name, starter) for name, starter in by_name.items()}
        await _all(self._clickhouse(units, by_name), self._redis(units), self._postgres(units, by_name))
        found = {f"{starter.name}.url": starter.url for starter in wanted}
        self._settings = replace(self._settings, found)
        urls = {starter.name: starter.url for starter in wanted}
        addresses.write(self._settings, addresses.Addresses(pid=os.getpid(), **urls))

    async def _postgres(self, units: dict[str, Unit], by_name: dict[str, Starter]) -> None:
        if "postgres" in units:
            await units["postgres"].start()
        known = self._known("postgres", by_name)
        if known.postgres.url is not None:  # with the plain roles' addresses alone, somebody else migrates
            self._tell_applied("postgres", await schema.migrate_postgres(known))

    async def _redis(self, units: dict[str, Unit]) -> None:
        if "redis" in units:
            await units["redis"].start()
        elif self._settings.redis.url is not None:
            await refuse_cluster(self._settings.redis.url, timeout=self._settings.redis.timeout_ms / 1000)

    async def _clickhouse(self, units: dict[str, Unit], by_name: dict[str, Starter]) -> None:
        if "clickhouse" in units:
            await units["clickhouse"].start()
        elif why := await schema.clickhouse_away(self._settings):
            kept = "events wait in the journal until it answers"
            self._teller.warn("clickhouse-away", f"{why} Going on without: {kept}. Check HANDBILL_CLICKHOUSE__URL.")
            return  # its tables are made with the first shipment
        self._tell_applied("clickhouse", await schema.migrate_clickhouse(self._known("clickhouse", by_name)))

    def _known(self, name: str, by_name: dict[str, Starter]) -> Settings:
        return replace(self._settings, {f"{name}.url": by_name[name].url}) if name in by_name else self._settings

    def _tell_applied(self, name: str, applied: list[str]) -> None:
        if applied:
            self._teller.say("migrated", f"{name}: applied {', '.join(applied)}", name=name, applied=applied)

    def _children(self) -> list[str]:
        count = self._settings.api.processes
        return ["worker", "api", *(f"api-{number}" for number in range(2, count + 1))]

    def _child(self, name: str) -> Callable[[], Awaitable[Running]]:
        """How one child is started. Several API processes share the port; each has a metrics page of its own."""
        kind, _, number = name.partition("-")
        settings = self._settings
        values = {f"{engine}.url": getattr(settings, engine).url for engine in addresses.ENGINES}
        values |= {"home": str(self._home), f"{kind}.heartbeat_file": str(self._heartbeat_file(name))}
        if number and settings.api.metrics_port:
            values["api.metrics_port"] = settings.api.metrics_port + 10 * int(number)
        known = {path: value for path, value in values.items() if value is not None}
        grace = {"api": settings.api.kill_timeout_s + 10, "worker": settings.worker.stop_seconds + 10}[kind]

        async def start() -> Running:
            self._heartbeats.prepare_start(name)
            return await Child.start(name, [kind], for_child(known), self._home, self._teller, grace)

        return start

    def _heartbeat_file(self, child: str) -> Path:
        number = child.partition("-")[2]
        return (
            worker_heartbeat_file(self._settings) if child == "worker" else api_heartbeat_file(self._settings, number)
        )

    def _unit_of_child(self, name: str) -> Unit:
        unit = self._unit(name, self._child(name))
        self._heartbeats.watch(unit, self._heartbeat_file(name))
        return unit

    async def _run_task(self, name: str, run: Callable[[], Awaitable[object]], period_s: float) -> None:
        task = BackgroundTask(name, run, period_s=period_s)
        self._tasks.append(task)
        await task.start()

    def _unit(self, name: str, start: Callable[[], Awaitable[Running]]) -> Unit:
        unit = Unit(name, start, self._teller)
        self._units.append(unit)
        return unit

    async def _side_by_side(self, units: list[Unit]) -> None:
        await _all(*(unit.start() for unit in units))


async def _all(*works: Awaitable[None]) -> None:
    """Side by side; at the first failure the others are cancelled and waited for, and that failure is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_ports(settings: Settings) -> None:
    """Before anything starts: API processes could share a port with a stranger's and never notice."""
    api, worker = settings.api, settings.worker
    wanted = (
        ("HANDBILL_API__PORT", api.host, api.port),
        ("HANDBILL_API__METRICS_PORT", api.metrics_host, api.metrics_port),
        ("HANDBILL_WORKER__PORT", worker.host, worker.port),
        ("HANDBILL_WORKER__METRICS_PORT", worker.host, worker.metrics_port),
    )
    for variable, host, port in wanted:
        if port and (why := taken(host, port)):
            raise Broken(
                f"Port {port} on {host} cannot be used ({why}). Nothing was started. Stop the program that has it, or "
                f"set {variable}.",
                code="PORT_TAKEN",
            )


def taken(host: str, port: int) -> str | None:
    """Why nobody could listen there now; None when one could."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None
