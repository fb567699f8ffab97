"""One process kept alive: started, waited for, and started again with growing pauses when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from handbill.kit.errors import HandbillError
from handbill.ops.teller import Teller

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 30.0
"""A process that lived this long is forgiven its earlier deaths."""


class Running(Protocol):
    """A process that was started and is ready: an engine, or a child of our own."""

    pid: int

    async def stop(self) -> None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


def pause_after(pause: float, lived: float) -> float:
    """The next pause: twice the last one, or the first again after a steady life."""
    return FIRST_PAUSE if lived >= STEADY_SECONDS else min(pause * 2, LONGEST_PAUSE)


class Unit:
    """`start` returns when the process is ready and raises when it cannot be; after that it is kept until `stop`."""

    def __init__(self, name: str, start: Callable[[], Awaitable[Running]], teller: Teller) -> None:
        self.name = name
        self._start = start
        self._teller = teller
        self._running: Running | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._running.pid if self._running else None

    def kill(self) -> None:
        """End the process at once, if it is ready; it is then started again like any other that died."""
        if self._running is not None:
            self._running.kill()

    async def start(self) -> None:
        """Start the process and keep it alive from then on; raises when the first start fails."""
        began = time.monotonic()
        self._running = await self._start()
        seconds = round(time.monotonic() - began, 2)
        self._teller.say("unit-ready", f"{self.name} is ready ({seconds} s)", name=self.name, seconds=seconds)
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.name}")

    async def stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        running, self._running = self._running, None
        if running is not None:
            await running.stop()

    async def _keep(self) -> None:
        """Until cancelled: whatever goes wrong is logged and followed by a growing pause."""
        pause = FIRST_PAUSE / 2
        while True:
            began = time.monotonic()
            try:
                await self._wait_for_end()
            except Exception as error:  # noqa: BLE001 - a supervisor that ends would leave the process unwatched
                self._warn("unit-not-watched", error)
            pause = pause_after(pause, time.monotonic() - began)
            await asyncio.sleep(pause)
            if self._running is None:
                await self._restart()

    async def _wait_for_end(self) -> None:
        if self._running is None:
            return
        code = await self._running.wait()
        await self._running.stop()  # nothing of it is left open
        self._running = None
        why = f"signal {-code}" if code < 0 else f"code {code}"
        self._teller.warn("unit-died", f"{self.name} ended with {why}; starting it again", name=self.name, code=code)

    async def _restart(self) -> None:
        try:
            self._running = await self._start()
        except Exception as error:  # noqa: BLE001 - no memory, no process, no file left: the next try may find them
            self._warn("unit-not-started", error)
            return
        self.restarts += 1
        self._teller.say("unit-restarted", f"{self.name} runs again", name=self.name, restarts=self.restarts)

    def _warn(self, event: str, error: Exception) -> None:
        if isinstance(error, HandbillError):
            detail, code = error.detail, error.code
        else:
            detail, code = f"{type(error).__name__}: {error}; trying again", "INTERNAL"
        self._teller.warn(event, f"{self.name}: {detail}", name=self.name, code=code)
