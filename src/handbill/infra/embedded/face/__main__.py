"""The process: `python -m handbill.infra.embedded.face DATA PORT USER PASSWORD_FILE DATABASE MEMORY BODY_LIMIT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from handbill.infra.embedded.face.engine import Engine
from handbill.infra.embedded.face.lanes import Lanes
from handbill.infra.embedded.face.server import Face

_FAREWELL_SECONDS = 10.0


async def serve(face: Face, engine: Engine, port: int, database: str) -> None:
    """Open the engine, serve until told to stop, close it."""
    stop = asyncio.Event()
    engine.open(database)
    # Only now: opening the engine may install handlers of its own.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await face.serve(port, stop)
    # A query that will not end would hold this up; the data needs no farewell, only waiting async inserts do.
    farewell = threading.Thread(target=engine.close, daemon=True)
    farewell.start()
    farewell.join(_FAREWELL_SECONDS)


async def start(data: str, port: str, user: str, password_file: str, database: str, memory: str, limit: str) -> None:
    engine = Engine(Path(data), memory_bytes=int(memory))
    password = Path(password_file).read_text().strip()
    face = Face(engine, user=user, password=password, body_limit=int(limit), lanes=Lanes())
    await serve(face, engine, int(port), database)


def main(arguments: list[str]) -> None:
    code = 0
    try:
        asyncio.run(start(*arguments))
    except (OSError, RuntimeError) as error:
        print(f"clickhouse: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a query that will not end must not keep the process alive.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
