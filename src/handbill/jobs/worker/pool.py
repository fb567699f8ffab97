"""Processes for CPU-bound handlers: as many as cores, each its own, so that a crash or a kill meets one job only."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


class CpuDied(Exception):
    """The process ended under the job: out of memory, a crash in native code, or a kill from outside."""


class CpuPool:
    def __init__(self, size: int | None = None) -> None:
        self.size = size or os.cpu_count() or 1
        self._idle: asyncio.Queue[_Seat] = asyncio.Queue()
        self._seats: list[_Seat] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run it in a free process. Cancelling ends that process: nothing goes on computing for nobody."""
        seat = await self._seat()
        try:
            return await asyncio.wrap_future(seat.executor().submit(function, *args))
        except BrokenProcessPool as error:
            seat.kill()
            raise CpuDied("the process that ran it ended; its memory limit or a crash in native code") from error
        except asyncio.CancelledError:
            seat.kill()
            raise
        finally:
            self._idle.put_nowait(seat)

    async def _seat(self) -> _Seat:
        if self._idle.empty() and len(self._seats) < self.size:
            seat = _Seat()
            self._seats.append(seat)
            return seat
        return await self._idle.get()

    async def stop(self) -> None:
        for seat in self._seats:
            await asyncio.to_thread(seat.kill, wait=True)
        self._seats.clear()


class _Seat:
    """One process, started when first needed and again after it died."""

    def __init__(self) -> None:
        self._executor: ProcessPoolExecutor | None = None

    def executor(self) -> ProcessPoolExecutor:
        if self._executor is None:
            context = multiprocessing.get_context("spawn")  # fork would copy threads' locks in an unknown state
            self._executor = ProcessPoolExecutor(1, mp_context=context, initializer=_follow, initargs=(os.getpid(),))
        return self._executor

    def kill(self, *, wait: bool = False) -> None:
        executor, self._executor = self._executor, None
        if executor is None:
            return
        for process in list((executor._processes or {}).values()):
            process.kill()
        executor.shutdown(wait=wait, cancel_futures=True)


def _follow(parent: int) -> None:
    """End with the parent, even when it was killed without a goodbye."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="follow-parent").start()
