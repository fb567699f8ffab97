"""A `handbill api` or `worker` of our own: on a leash, its log kept in the home, ready when it says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from handbill.infra.embedded import leash
from handbill.infra.embedded.log_files import LogFile
from handbill.infra.embedded.process import ended
from handbill.kit.cancellation import finish
from handbill.kit.errors import Broken
from handbill.kit.ready_signal import VARIABLE, ReadyListener
from handbill.ops.teller import Teller

LAST_WORDS_SECONDS = 1.0


class Child:
    """One running child. `stop` is polite for `grace` seconds, then firm."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], grace: float) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._grace = grace
        self._tail: deque[str] = deque(maxlen=5)
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, name: str, words: Sequence[str], environ: Mapping[str, str], home: Path, teller: Teller, grace: float
    ) -> Child:
        """Start it and wait for its ready signal; Broken with its last words if it ends first."""
        ready = ReadyListener()
        try:
            await ready.open()
            child = cls(name, _spawn(name, words, {**environ, VARIABLE: ready.address}, home), grace)
            child._reader = asyncio.create_task(child._read(home / "logs" / f"{name}.log", teller))
            try:
                await child._until_ready(ready.received)
            except BaseException:
                await finish(child.stop())
                raise
        finally:
            ready.close()
        return child

    async def wait(self) -> int:
        """The exit code, once it has ended and its last words are read."""
        await ended(self._process)
        if self._reader is not None:
            # Whoever it started may still hold its log open: that must not keep us from starting it anew.
            await asyncio.wait([self._reader], timeout=LAST_WORDS_SECONDS)
        return self._process.wait()

    def kill(self) -> None:
        """End it at once; one that has ended already is left alone."""
        self._process.kill()

    async def stop(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), self._grace)
        except TimeoutError:
            self._process.kill()
            await self.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _until_ready(self, ready: asyncio.Event) -> None:
        tasks = [asyncio.ensure_future(ready.wait()), asyncio.ensure_future(self.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not ready.is_set():
            raise Broken(f"{self.name} could not start: {self.last_words}", code="CHILD_FAILED")

    @property
    def last_words(self) -> str:
        """The line meant for a person, if it said one; else the end of its log."""
        for line in reversed(self._tail):
            if line.startswith("handbill: "):
                return line.removeprefix("handbill: ")
        return self._tail[-1].strip() if self._tail else "it said nothing"

    async def _read(self, log: Path, teller: Teller) -> None:
        """Pass the log on, line by line, into its file.

        Nothing but the end of the pipe ends this: a child whose log is not read stands still once the pipe is full.
        """
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stderr)
        file = LogFile(log, lambda error: _warn_not_written(teller, self.name, log, error))
        try:
            while line := await _line(reader):
                file.write(line)
                text = line.decode(errors="replace").rstrip()
                self._tail.append(text)
                teller.line(text)
        finally:
            file.close()
            transport.close()


def _spawn(name: str, words: Sequence[str], environ: Mapping[str, str], home: Path) -> subprocess.Popen[bytes]:
    lock = home / "run" / f"{name}.lock"
    leashed = [sys.executable, "-I", "-S", leash.__file__, str(int(signal.SIGKILL)), str(os.getpid())]
    return subprocess.Popen(
        [*leashed, str(lock), "10", "-", "--", sys.executable, "-m", "handbill.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(environ),
        start_new_session=True,
    )


def _warn_not_written(teller: Teller, name: str, log: Path, error: OSError) -> None:
    detail = f"{name} runs on, but its log {log} cannot be written: {error.strerror or error}"
    teller.warn("child.log_not_written", detail, name=name)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:  # a line longer than the limit: what is there is dropped, the next is read
        return b"\n"
