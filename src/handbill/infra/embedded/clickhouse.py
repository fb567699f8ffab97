"""ClickHouse from the chdb wheel, in a process of its own that speaks ClickHouse's HTTP protocol (see `face`)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from handbill.infra.embedded import home as homes
from handbill.infra.embedded import ports, process
from handbill.infra.embedded.process import Engine, EngineProcess, Launch
from handbill.kit.errors import Broken, HandbillError

NAME = "clickhouse"
USER = "handbill"
DATABASE = "handbill"
_BODY_LIMIT = 64 * 1024 * 1024
_FACE = "handbill.infra.embedded.face"


async def start_clickhouse(
    home: Path,
    *,
    port: int | None = None,
    memory_bytes: int = 2 * 1024**3,
    body_limit: int = _BODY_LIMIT,
    timeout: float = 180.0,
) -> Engine:
    """Start the process and wait until it answers. Memory is bounded as a server's, not per query."""
    home = homes.prepare(home)
    room = home / NAME
    data = room / "data"
    with homes.explained(room):
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    await homes.vacant(room / "lock", NAME)
    password, _ = homes.secret(home, NAME)

    async def begin(chosen: int) -> EngineProcess:
        words = (data, chosen, USER, home / "secrets" / NAME, DATABASE, memory_bytes, body_limit)
        plan = Launch(
            name=NAME,
            command=(sys.executable, "-P", "-m", _FACE, *(str(word) for word in words)),
            lock=room / "lock",
            log=home / "logs" / "clickhouse.log",
            stop_signal=process.STOP,
            # A query cannot always be interrupted; nothing acknowledged is lost by ending the process at once.
            orphan_signal=process.KILL,
            environ={**process.plain_environ(), "PYTHONPATH": _same_path()},
            cwd=room,
        )
        engine = process.launch(plan, f"http://{USER}:{password}@127.0.0.1:{chosen}/{DATABASE}")
        await engine.until_ready(
            lambda: _ready(engine, chosen), lambda code, tail: _explain(code, tail, data, chosen, plan.log), timeout
        )
        return engine

    return await ports.on_port(home, NAME, port, begin)


def _same_path() -> str:
    """The child finds its modules where we found ours, installed or not."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)


async def _ready(engine: EngineProcess, port: int) -> bool:
    """Ready when the one who answers carries our child's pid."""
    try:
        said = await asyncio.wait_for(_ping(port), 5.0)
    except (OSError, TimeoutError):
        return False
    return f"Display-Name: handbill-{engine.pid}\r\n".encode() in said


async def _ping(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return await reader.read(4096)
    finally:
        writer.close()


def _explain(code: int, tail: str, data: Path, port: int, log: Path) -> HandbillError:
    if "address already in use" in tail.lower():
        return ports.port_taken(NAME, port)
    if "Cannot lock file" in tail:
        return Broken(
            f"Another process has the ClickHouse directory {data} open. Nothing was changed. Stop that process, then "
            f"start again.",
            code="ENGINE_LOCKED",
        )
    if process.disk_full(tail):
        return Broken(
            f"ClickHouse stopped because the disk that holds {data} is full. Every acknowledged insert is still there. "
            f"Free some space, then start again.",
            code="DISK_FULL",
        )
    return Broken(
        f"ClickHouse ended with code {code} while starting. Its data in {data} was kept. Read {log}; the last lines "
        f"were:\n{tail}",
        code="ENGINE_FAILED",
    )
