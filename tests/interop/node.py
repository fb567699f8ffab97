"""Node's side: installed once into a directory of its own, driven line by line."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "node"


def installed() -> Path:
    """A directory with the locked packages; named by the lock file, so that a second run finds the first one's."""
    lock = (HERE / "package-lock.json").read_bytes()
    home = Path(tempfile.gettempdir()) / f"handbill-interop-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, home)
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"], cwd=home, check=True
        )
        (home / "installed").touch()
    for script in HERE.glob("*.js"):
        shutil.copy(script, home)
    return home


class Refused(Exception):
    """Node's library said no."""


class Node:
    """One Node process with one of the two libraries."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self.version = ""
        self._reader = asyncio.create_task(self._read())
        self._greeting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[0] = self._greeting

    async def _read(self) -> None:
        assert self._child.stdout is not None
        while line := await self._child.stdout.readline():
            answer = json.loads(line)
            future = self._asked.pop(answer["n"])
            if "error" in answer:
                future.set_exception(Refused(answer["error"]))
            else:
                future.set_result(answer["ok"])

    async def __call__(self, verb: str, **arguments: Any) -> Any:
        self._count += 1
        future = self._asked[self._count] = asyncio.get_running_loop().create_future()
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"n": self._count, "verb": verb, **arguments}).encode() + b"\n")
        return await asyncio.wait_for(future, 60)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, home: Path, library: str, url: str) -> AsyncIterator[Node]:
        child = await asyncio.create_subprocess_exec(
            "node", "driver.js", library, url, cwd=home, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        node = cls(child)
        try:
            node.version = await asyncio.wait_for(node._greeting, 60)
            yield node
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            node._reader.cancel()
            await asyncio.gather(node._reader, return_exceptions=True)
