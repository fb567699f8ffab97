"""How much space is free on the disk of the data directory."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from handbill.kit.clock import Clock
from handbill.kit.errors import Broken
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import metrics

EVERY_S = 5.0
STALE_S = 30.0


class FreeSpace(msgspec.Struct, frozen=True):
    """Free bytes that this process may use, and their share of the file system."""

    free_bytes: int
    free_ratio: float


class DiskLimits(msgspec.Struct, frozen=True):
    """Below either limit the disk counts as low; 0 switches a limit off."""

    free_bytes: int
    free_ratio: float

    def is_low(self, space: FreeSpace) -> bool:
        """Whether less is free than one of the limits."""
        return space.free_bytes < self.free_bytes or space.free_ratio < self.free_ratio

    def is_off(self) -> bool:
        """Whether both limits are switched off."""
        return self.free_bytes == 0 and self.free_ratio == 0


def measure(path: Path) -> FreeSpace:
    """The space of the file system of `path`, or of its nearest parent that exists; may hang as the disk does."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    stat = os.statvfs(path)
    usable = stat.f_blocks - stat.f_bfree + stat.f_bavail
    return FreeSpace(stat.f_bavail * stat.f_frsize, stat.f_bavail / usable if usable else 1.0)


class DiskMonitor:
    """Measures in the background, in a thread: a file system that hangs must not hang the process."""

    def __init__(
        self, path: Path, limits: DiskLimits, clock: Clock, *, measure: Callable[[Path], FreeSpace] = measure
    ) -> None:
        self._path = path
        self._limits = limits
        self._clock = clock
        self._measure = measure
        self._space: FreeSpace | None = None
        self._measured_at = clock.monotonic()
        self._running: asyncio.Future[FreeSpace] | None = None
        # Not required: a restart does not mend a disk. `check` fails when there is no measurement.
        self._task = BackgroundTask(
            "disk-space", self.refresh, period_s=EVERY_S, health=TaskHealth("disk-space", required=False)
        )

    async def start(self) -> None:
        """Measure from now on."""
        self._measured_at = self._clock.monotonic()
        await self._task.start()

    async def stop(self) -> None:
        """Stop measuring; a thread that hangs is left alone."""
        await self._task.stop()

    async def refresh(self) -> None:
        """Measure once. While an earlier measurement hangs, wait for that one: threads must not pile up."""
        if self._running is None or self._running.done():
            self._running = _call_in_thread(lambda: self._measure(self._path))
        space = await asyncio.shield(self._running)
        self._space, self._measured_at = space, self._clock.monotonic()
        metrics.DISK_FREE_BYTES.set(space.free_bytes)
        metrics.DISK_FREE_RATIO.set(space.free_ratio)

    async def check(self) -> dict[str, float]:
        """The last measurement. Raises Broken when the disk is low, or could not be measured for a while."""
        if self._limits.is_off():
            return {}
        age = self._clock.monotonic() - self._measured_at
        if age >= STALE_S:
            raise Broken(
                f"The free space of the disk of the data directory is unknown for {age:.0f} s: the file system does "
                "not answer. Look at the mount and the disk of HANDBILL_HOME.",
                code="DISK_UNKNOWN",
            )
        if self._space is None:
            return {}
        if self._limits.is_low(self._space):
            raise Broken(
                f"{self._space.free_bytes} bytes ({self._space.free_ratio:.1%}) are free on the disk of the data "
                "directory. Free some space or enlarge the disk; what was accepted is kept.",
                code="DISK_LOW",
            )
        return {"free_bytes": self._space.free_bytes, "free_ratio": round(self._space.free_ratio, 4)}


def _call_in_thread(work: Callable[[], FreeSpace]) -> asyncio.Future[FreeSpace]:
    """In a daemon thread: one that hangs holds no place in a pool, and does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[FreeSpace] = loop.create_future()

    def finish(result: FreeSpace | None, error: BaseException | None) -> None:
        if future.done():
            return
        if result is not None:
            future.set_result(result)
        elif error is not None:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except OSError as failure:
            error = failure
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="disk-space", daemon=True).start()
    return future
