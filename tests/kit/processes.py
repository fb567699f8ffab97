"""Real handbill processes: start one, wait for a line of its JSON log, kill it, see how it ended.

    async with process("worker", "--only", "jobs", env=handbill_env) as worker:
        await worker.log(event="worker-ready")
        worker.kill()
        assert await worker.exit() == -signal.SIGKILL

Every wait fails with the tail of the output, and at once when the process ends before it said what was awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from handbill.settings.aliases import ALIASES
from tests.kit.leash import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
ALIASED = tuple(alias.name for alias in ALIASES)
"""Names like REDIS_URL and LOG_LEVEL, which the machine that runs the tests may well have set for others."""
HANDBILL = (sys.executable, "-c", "from handbill.cli import main; main()")

T = TypeVar("T")


class Process:
    """One running program and everything it has said."""

    def __init__(self, child: asyncio.subprocess.Process, command: Sequence[str]) -> None:
        self.child = child
        self.command = tuple(command)
        self.lines: list[str] = []
        self.logs: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        assert child.stdout is not None
        assert child.stderr is not None
        self._readers = [asyncio.create_task(self._read(stream)) for stream in (child.stdout, child.stderr)]

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            text = line.decode(errors="replace").rstrip("\n")
            async with self._news:
                self.lines.append(text)
                if text.startswith("{"):
                    with contextlib.suppress(ValueError):
                        self.logs.append(json.loads(text))
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    def seen(self, **fields: Any) -> list[dict[str, Any]]:
        """All log lines so far whose fields equal these."""
        return [line for line in self.logs if all(line.get(k) == v for k, v in fields.items())]

    async def log(self, *, count: int = 1, timeout: float = 60, **fields: Any) -> dict[str, Any]:
        """Wait for the count-th log line with these fields; lines said before the call count too."""
        return (await self._until(lambda: self.seen(**fields), count, timeout, f"log line {fields}"))[count - 1]

    async def says(self, text: str, *, timeout: float = 60) -> str:
        """Wait for an output line that contains `text`."""
        lines = await self._until(lambda: [line for line in self.lines if text in line], 1, timeout, f"output {text!r}")
        return lines[0]

    async def _until(self, look: Callable[[], list[T]], count: int, timeout: float, what: str) -> list[T]:
        try:
            async with asyncio.timeout(timeout), self._news:
                while len(found := look()) < count:
                    if all(reader.done() for reader in self._readers):
                        raise AssertionError(f"{self.name} ended without {what}\n{self.tail()}")
                    await self._news.wait()
                return found
        except TimeoutError:
            raise AssertionError(f"no {what} from {self.name} in {timeout:g} s\n{self.tail()}") from None

    @property
    def name(self) -> str:
        return " ".join(self.command[-3:])

    def tail(self, lines: int = 60) -> str:
        return "\n".join(("--- output ---", *self.lines[-lines:], "--- end ---"))

    def signal(self, number: int) -> None:
        if self.child.returncode is None:
            self.child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no goodbye, as the laws are tested."""
        self.signal(signal.SIGKILL)

    async def exit(self, timeout: float = 60) -> int:
        """Wait for its end and give the exit code (negative: the signal that killed it)."""
        try:
            async with asyncio.timeout(timeout):
                code = await self.child.wait()
                await asyncio.gather(*self._readers)
        except TimeoutError:
            raise AssertionError(f"{self.name} did not end in {timeout:g} s\n{self.tail()}") from None
        return code

    async def stop(self, timeout: float = 60) -> int:
        """SIGTERM, as an operator's tools send it, and wait."""
        self.signal(signal.SIGTERM)
        return await self.exit(timeout)

    async def succeeds(self, timeout: float = 120) -> str:
        """Wait for exit code 0 and give the whole output."""
        code = await self.exit(timeout)
        assert code == 0, f"{self.name} ended with {code}\n{self.tail()}"
        return self.output


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own environment without any setting of Handbill in it, plus the given ones."""
    ours = (*(name for name in os.environ if name.startswith("HANDBILL_")), *ALIASED, "PYTHONDONTWRITEBYTECODE")
    base = {name: value for name, value in os.environ.items() if name not in ours}
    return {**base, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))), **(extra or {})}


@contextlib.asynccontextmanager
async def program(
    *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> AsyncIterator[Process]:
    """Start any program; whatever still runs at the end of the block is killed and reaped."""
    child = await asyncio.create_subprocess_exec(
        *command,
        env=environment(env),
        cwd=cwd or ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    running = Process(child, command)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its children too: they share its session
        await running.exit()


@contextlib.asynccontextmanager
async def process(*args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> AsyncIterator[Process]:
    """`handbill ARGS` as a real process."""
    async with program(*HANDBILL, *args, env=env, cwd=cwd) as running:
        yield running


async def handbill(*args: str, env: Mapping[str, str] | None = None, timeout: float = 120) -> tuple[int, str]:
    """Run `handbill ARGS` to its end: exit code and output."""
    async with process(*args, env=env) as running:
        return await running.exit(timeout), running.output


def free_cluster_port() -> int:
    """A free port for a Redis in cluster mode, which binds the one 10,000 above it as well.

    That one lies between the ports that `free_port` gives and those that the kernel uses for outgoing connections.
    """
    while not (_PORTS.stop <= (port := free_port()) + 10_000 < _FIRST_OUTGOING):
        continue
    return port


def free_port() -> int:
    """A loopback port that nobody listens on. Where a program can bind port 0 itself, let it.

    Taken from below the range that the kernel uses for outgoing connections: one of those could grab a port between
    our look and the program's bind.
    """
    while True:
        port = _lottery.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port


_PORTS = range(15_000, 31_000)
_FIRST_OUTGOING = 32_768
_given: set[int] = set()
_lottery = random.SystemRandom()  # several workers and runs draw at once: a seeded draw would make them meet
