"""Processes for CPU-bound handlers: as many as cores, each its own, so that a crash or a kill meets one job only."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from handbill.jobs.model import CpuDied, CpuLimitExceeded
from handbill.kit.errors import Busy

WALL_FACTOR, WALL_EXTRA_S = 10, 30.0
"""A process that waits instead of computing is killed after this many times its CPU limit, and some seconds more."""
EXIT_WAIT_S, EXIT_STEP_S = 10.0, 0.01


class CpuPool:
    """A bounded number of processes, started when they are needed. `memory_bytes` limits the memory of each."""

    def __init__(self, size: int | None = None, memory_bytes: int | None = None) -> None:
        self.size = size or os.cpu_count() or 1
        self._memory_bytes = memory_bytes
        self._idle: asyncio.Queue[_Seat] = asyncio.Queue()
        self._seats: list[_Seat] = []

    async def start(self) -> None:
        """Nothing: a process is started by the first call that needs it."""

    async def run(
        self, function: Callable[..., Any], *args: Any, cpu_s: float | None = None, wall_s: float | None = None
    ) -> Any:
        """Run it in a free process. Cancelling ends that process, so that no work goes on without a caller.

        With `cpu_s`, the kernel ends the process when the call has used that much CPU time, also inside native code;
        one that waits instead is killed after `wall_s` (unset: some multiple of `cpu_s`). Either way, and when memory
        runs out, it raises CpuLimitExceeded, other calls are not touched, and the next call gets a new process.
        CpuDied: the process ended for another reason. Busy: this machine could not start one.
        """
        seat = await self._seat()
        try:
            return await seat.run(function, args, cpu_s, wall_s)
        finally:
            self._idle.put_nowait(seat)

    async def _seat(self) -> _Seat:
        if self._idle.empty() and len(self._seats) < self.size:
            seat = _Seat(self._memory_bytes)
            self._seats.append(seat)
            return seat
        return await self._idle.get()

    async def stop(self) -> None:
        """Kill every process and wait for its end."""
        for seat in self._seats:
            await asyncio.to_thread(seat.kill, wait=True)
        self._seats.clear()
        self._idle = asyncio.Queue()


class _Seat:
    """One process, started when first needed and again after it died."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._memory_bytes = memory_bytes
        self._executor: ProcessPoolExecutor | None = None

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], cpu_s: float | None, wall_s: float | None
    ) -> Any:
        executor = self._started()
        if wall_s is None and cpu_s is not None:
            wall_s = cpu_s * WALL_FACTOR + WALL_EXTRA_S
        timeout = asyncio.timeout(wall_s)
        processes: list[Any] = []
        try:
            async with timeout:
                future = self._submitted(executor, cpu_s, function, args)
                processes = list((executor._processes or {}).values())
                return await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            self.kill()
            if await _exit_code(processes) == -signal.SIGPROF:
                raise CpuLimitExceeded(f"it used more than {cpu_s} s of CPU time") from error
            raise CpuDied("the process that ran it ended; its memory limit or a crash in native code") from error
        except MemoryError as error:
            self.kill()
            raise CpuLimitExceeded("it used more memory than a process may have") from error
        except TimeoutError as error:
            if not timeout.expired():
                raise
            self.kill()
            raise CpuLimitExceeded(f"it did not end within {wall_s} s") from error
        except asyncio.CancelledError:
            self.kill()
            raise

    def _submitted(
        self, executor: ProcessPoolExecutor, cpu_s: float | None, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Future[Any]:
        try:
            return executor.submit(_run_limited, cpu_s, function, args)
        except OSError as error:  # no process, memory or file handle is left on this machine
            self.kill()
            raise Busy("No process could be started; nothing was done.", retry_after=5) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            context = multiprocessing.get_context("spawn")  # fork would copy threads' locks in an unknown state
            self._executor = ProcessPoolExecutor(
                1, mp_context=context, initializer=_prepare, initargs=(os.getpid(), self._memory_bytes)
            )
        return self._executor

    def kill(self, *, wait: bool = False) -> None:
        """End the process, whatever it does; the next call starts another."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        for process in list((executor._processes or {}).values()):
            process.kill()
        executor.shutdown(wait=wait, cancel_futures=True)


async def _exit_code(processes: list[Any]) -> int | None:
    """How the process ended; it has ended already, or is about to."""
    for _ in range(int(EXIT_WAIT_S / EXIT_STEP_S)):
        codes = [process.exitcode for process in processes]
        if codes and codes[0] is not None:
            return int(codes[0])
        await asyncio.sleep(EXIT_STEP_S)  # the executor's thread has taken the code and is about to write it down
    return None


def _run_limited(cpu_s: float | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """In the child: the kernel counts its CPU time, and ends it at the limit without asking Python."""
    if cpu_s is None:
        return function(*args)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _prepare(parent: int, memory_bytes: int | None) -> None:
    """In the child, before its first call."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    _follow(parent)


def _follow(parent: int) -> None:
    """End with the parent, even when it was killed without a goodbye."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="follow-parent").start()
