"""A whole installation: `handbill up` with embedded engines, `handbill watch`, and the pids of its parts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import psutil

from handbill.settings import Settings
from handbill.settings import load as load_settings
from handbill.wiring import addresses
from tests.kit.alert_receiver import AlertReceiver
from tests.kit.processes import Process, free_port, process

_MARKS: Mapping[str, Callable[[list[str]], bool]] = {
    "api": lambda words: words[-2:] == ["handbill.cli", "api"],
    "worker": lambda words: words[-2:] == ["handbill.cli", "worker"],
    "postgres": lambda words: Path(words[0]).name == "postgres",
    "redis": lambda words: "redis-server" in words[0],
    "clickhouse": lambda words: "handbill.infra.embedded.face" in words,
}
PARTS = (*_MARKS, "up", "watch")


class Installation:
    """`up` and `watch` send their alerts to two addresses of one receiver. Timeouts and intervals are as shipped."""

    def __init__(self, home: Path, receiver: AlertReceiver) -> None:
        ports = ("API__PORT", "API__METRICS_PORT", "WORKER__PORT", "WORKER__METRICS_PORT")
        self._env = {f"HANDBILL_{name}": str(free_port()) for name in ports} | {
            "HANDBILL_HOME": str(home),
            "HANDBILL_DEMO": "off",
            "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0",
            "HANDBILL_ALERTS__MAX_PER_HOUR": "1000",
        }
        self._receiver = receiver
        self._stacks: dict[str, AsyncExitStack] = {}
        self._running: dict[str, Process] = {}
        self.url = f"http://127.0.0.1:{self._env['HANDBILL_API__PORT']}"
        self._worker_url = f"http://127.0.0.1:{self._env['HANDBILL_WORKER__PORT']}"

    def settings(self) -> Settings:
        """With the addresses of the engines that run now."""
        return addresses.resolve(load_settings(self._env))

    async def start(self, name: str) -> None:
        """Start `up` or `watch`; one that was killed is started again on the same data."""
        await self._close(name)
        words = ("up", "--json", "--json-logs") if name == "up" else (name,)
        env = {**self._env, "HANDBILL_ALERTS__WEBHOOK_URL": self._receiver.url(name)}
        stack = AsyncExitStack()
        self._stacks[name] = stack
        self._running[name] = await stack.enter_async_context(process(*words, env=env))
        await self._running[name].log(event="alerts.watching", timeout=180)

    def pid(self, name: str) -> int | None:
        """None while there is no such process."""
        running = self._running[name if name in self._running else "up"]
        if running.child.returncode is not None:
            return None
        if name in self._running:
            return running.pid
        for child in psutil.Process(running.pid).children():
            with contextlib.suppress(psutil.Error, IndexError):
                if _MARKS[name](child.cmdline()):
                    return child.pid
        return None

    async def failing(self, http: aiohttp.ClientSession) -> list[str]:
        """What of the installation is not well now, by the answers of /ready and of the worker's /health."""
        wrong = [name for name in ("api", "worker") if self.pid(name) is None]
        try:
            async with http.get(f"{self.url}/ready") as reply:
                parts = (await reply.json())["parts"]
                wrong += [name for name, part in parts.items() if not part["ok"]]
            async with http.get(f"{self._worker_url}/health") as reply:
                wrong += [] if reply.status == 200 else ["worker"]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            wrong.append(type(error).__name__)
        return wrong

    def restarts(self) -> list[str]:
        """Log events of the supervisor about processes that it ended or started again."""
        lines = [
            line for line in self._running["up"].logs if str(line.get("event", "")).startswith(("unit-", "heartb"))
        ]
        return [f"{line['event']} {line.get('name', '')}" for line in lines]

    async def _close(self, name: str) -> None:
        if stack := self._stacks.pop(name, None):
            await stack.aclose()

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[Installation]:
        """From a first start to the end of everything."""
        try:
            await self.start("up")
            await self.start("watch")
            yield self
            for name in ("watch", "up"):
                assert await self._running[name].stop() == 0, self._running[name].tail()
        finally:
            for name in ("watch", "up"):
                await self._close(name)
