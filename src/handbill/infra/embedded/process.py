"""One engine as a running process: start it on a leash, wait until it is ready, stop it, hear of its death.

Start engines from the main thread: the kernel ties the leash to the thread that started the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from handbill.infra.embedded import leash, log_files
from handbill.kit.cancellation import finish
from handbill.kit.errors import Broken, Busy, HandbillError

STOP = int(signal.SIGTERM)
STOP_FAST = int(signal.SIGINT)  # PostgreSQL's SIGTERM waits for every client to leave
KILL = int(signal.SIGKILL)
_TAIL_LINES = 12
_POLL_SECONDS = 0.02
_DISK_FULL = ("No space left on device", "Disk quota exceeded", "Check free disk space")


class Engine(Protocol):
    """What the rest of the house sees of an engine that it runs itself."""

    name: str
    url: str
    pid: int

    async def stop(self) -> None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


class Launch(msgspec.Struct, frozen=True):
    """How to start one engine: the command, where it writes its log, and how it is told to leave."""

    name: str
    command: tuple[str, ...]
    lock: Path
    log: Path
    stop_signal: int
    orphan_signal: int
    user: tuple[int, int] | None = None
    environ: Mapping[str, str] | None = None
    cwd: Path | None = None
    patience: float = 30.0


class EngineProcess:
    """A started engine. `stop` is polite first, firm after `grace` seconds, and may be called twice."""

    def __init__(self, launch: Launch, url: str, child: subprocess.Popen[bytes], log_start: int) -> None:
        self.name = launch.name
        self.url = url
        self.pid = child.pid
        self._launch = launch
        self._child = child
        self._log_start = log_start

    @property
    def returncode(self) -> int | None:
        return self._child.poll()

    async def wait(self) -> int:
        """Return the exit code once the engine has ended (minus the signal's number when a signal ended it)."""
        code = self._child.poll()
        if code is not None:
            return code
        await ended(self._child)
        return self._child.wait()

    def kill(self) -> None:
        """End it at once; one that has ended already is left alone."""
        self._child.kill()

    async def stop(self, grace: float = 30.0) -> None:
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(self._launch.stop_signal)
        try:
            await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self._child.kill()
            await self.wait()

    def log_tail(self) -> str:
        """The last lines that this very start wrote."""
        return tail(self._launch.log, self._log_start)

    async def until_ready(
        self,
        ready: Callable[[], Awaitable[bool]],
        explain: Callable[[int, str], HandbillError],
        timeout: float,
    ) -> None:
        """Poll `ready`; an engine that ends first is explained, one that never gets ready is stopped and reported."""
        deadline = time.monotonic() + timeout
        try:
            while not await ready():
                self._check_start(explain)
                if time.monotonic() > deadline:
                    self._give_up(timeout)
                await asyncio.sleep(_POLL_SECONDS)
        except BaseException:
            await finish(self.stop(grace=5.0))
            raise

    def _check_start(self, explain: Callable[[int, str], HandbillError]) -> None:
        code = self.returncode
        if code is None:
            return
        if code != leash.LOCKED:
            raise explain(code, self.log_tail())
        raise Busy(
            f"{self.name}: another process still holds {self._launch.lock} after {self._launch.patience:.0f} s. "
            f"Nothing was changed. Stop the other Handbill that runs on this home, then start again.",
            code="ENGINE_LOCKED",
        )

    def _give_up(self, timeout: float) -> None:
        raise Busy(
            f"{self.name} did not become ready within {timeout:g} s and was stopped. Its data was not changed by us. "
            f"Read {self._launch.log}; the last lines were:\n{self.log_tail()}",
            code="ENGINE_NOT_READY",
        )


def launch(plan: Launch, url: str) -> EngineProcess:
    """Start the program on its leash. Returns at once; see `until_ready`."""
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    if plan.log.exists() and plan.log.stat().st_size > log_files.LOG_LIMIT:
        plan.log.replace(log_files.older_file(plan.log))
    user = "-" if plan.user is None else f"{plan.user[0]}:{plan.user[1]}"
    words = [str(int(plan.orphan_signal)), str(os.getpid()), str(plan.lock), str(plan.patience), user, "--"]
    with plan.log.open("ab") as log:
        start = log.tell()
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", leash.__file__, *words, *plan.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=plan.cwd,
            env=None if plan.environ is None else dict(plan.environ),
            start_new_session=True,
        )
    return EngineProcess(plan, url, child, start)


def run(command: Sequence[str | Path], *, user: tuple[int, int] | None, cwd: Path, stdin: bytes = b"") -> None:
    """Run one of an engine's own tools to its end; Broken with what it printed when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=plain_environ(),
        user=user[0] if user else None,
        group=user[1] if user else None,
        extra_groups=[] if user else None,
        check=False,
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()
        if disk_full(said):
            raise Broken(
                f"{Path(command[0]).name} failed because the disk that holds {cwd} is full. What was saved before is "
                f"still there. Free some space, then start again.",
                code="DISK_FULL",
            )
        last = "\n".join(said.splitlines()[-_TAIL_LINES:])
        raise Broken(
            f"{Path(command[0]).name} failed with code {done.returncode}. Nothing that was there before was changed. "
            f"Its last words:\n{last}",
            code="ENGINE_TOOL_FAILED",
        )


def disk_full(said: str) -> bool:
    """Do an engine's words mean a full disk? PostgreSQL tells a half-written page by a hint only."""
    return any(words in said for words in _DISK_FULL)


def plain_environ() -> dict[str, str]:
    """A bare environment for engines: nothing of ours leaks in, and messages come in English."""
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def tail(path: Path, start: int = 0) -> str:
    """The last few lines of a log, from byte `start` on."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start if start <= end else 0, end - 8192))  # the log may have been truncated since
            lines = log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"({path} cannot be read: {error.strerror})"
    return "\n".join(lines[-_TAIL_LINES:])


async def ended(child: subprocess.Popen[bytes]) -> None:
    """Sleep until the child has ended, on whichever event loop runs now."""
    if child.poll() is not None:
        return
    try:
        handle = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # not on this system, or no file handle is left
        while child.poll() is None:  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.1)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        loop.add_reader(handle, over.set)
        await over.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
