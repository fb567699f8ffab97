"""Keeps the engines of one test run: a process of its own, so that no test worker's end takes them from the others.

Workers ask over a Unix socket, one JSON line each way: `{"want": "postgres", "worker": "gw0"}`. An engine starts when
it is first asked for. PostgreSQL is one server for the run; its database `migrated` is migrated once and each worker
gets a copy. Redis is one server per worker. ClickHouse is one server with a database per worker.
"""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import json
import os
import shutil
import sys
import threading
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

TEMPLATE = "migrated"


def with_database(url: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


class Keeper:
    """Starts what is asked for, once, and stops all of it at the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engines: list[Any] = []
        self.copying = asyncio.Lock()  # PostgreSQL copies a template for one at a time
        self.answers: dict[tuple[str, str], asyncio.Task[str]] = {}

    async def answer(self, want: str, worker: str) -> str:
        key = (want, worker)
        if key not in self.answers:
            makers = {"postgres": self.postgres, "redis": self.redis, "clickhouse": self.clickhouse}
            self.answers[key] = asyncio.create_task(makers[want](worker))
        return await asyncio.shield(self.answers[key])

    async def once(self, name: str, start: Any) -> str:
        """The URL of the run's only engine of that name."""
        key = ("engine", name)
        if key not in self.answers:
            self.answers[key] = asyncio.create_task(start())
        return await asyncio.shield(self.answers[key])

    async def started(self, engine: Any) -> str:
        self.engines.append(engine)
        return str(engine.url)

    async def postgres(self, worker: str) -> str:
        server = await self.once("postgres", self._postgres_server)
        async with self.copying:
            await _on_postgres(server, f"create database {worker} template {TEMPLATE}")
        return with_database(server, worker)

    async def _postgres_server(self) -> str:
        from handbill.infra import migrations
        from handbill.infra.embedded.postgres import start_postgres

        server = await self.started(await start_postgres(self.home / "postgres", port=None))
        await _on_postgres(server, f"create database {TEMPLATE}")
        done = migrations.migrate(with_database(server, TEMPLATE))
        if inspect.isawaitable(done):
            await done
        return server

    async def redis(self, worker: str) -> str:
        from handbill.infra.embedded.redis import start_redis

        return await self.started(await start_redis(self.home / f"redis-{worker}", port=None))

    async def clickhouse(self, worker: str) -> str:
        server = await self.once("clickhouse", self._clickhouse_server)
        await _on_clickhouse(server, f"create database if not exists {worker}")
        return with_database(server, worker)

    async def _clickhouse_server(self) -> str:
        from handbill.infra.embedded.clickhouse import start_clickhouse

        return await self.started(await start_clickhouse(self.home / "clickhouse", port=None))

    async def stop(self) -> None:
        for engine in reversed(self.engines):
            try:
                await asyncio.wait_for(engine.stop(), 30)
            except Exception:
                traceback.print_exc()  # into keeper.log; the leash takes what would not go


async def _on_postgres(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _on_clickhouse(url: str, statement: str) -> None:
    import aiohttp

    parts = urlsplit(url)
    login = aiohttp.BasicAuth(parts.username or "", parts.password or "")
    address = f"http://{parts.hostname}:{parts.port}/"
    async with aiohttp.ClientSession(auth=login) as session, session.post(address, data=statement) as reply:
        if reply.status != 200:
            raise RuntimeError(f"ClickHouse refused {statement!r}: {await reply.text()}")


async def serve(home: Path) -> None:
    keeper = Keeper(home)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = json.loads(await reader.readline())
            reply = {"url": await keeper.answer(asked["want"], asked["worker"])}
        except Exception:
            reply = {"error": traceback.format_exc()}
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(talk, home / "keeper.sock")
    print("ready", flush=True)
    await _end_of_run(home)
    server.close()
    await keeper.stop()


async def _end_of_run(home: Path) -> None:
    """Returns when the head of the run has let go of its lock, which the kernel does for it if it was killed."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def wait_for_lock() -> None:
        fd = os.open(home / "alive", os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait_for_lock, daemon=True).start()
    await over.wait()


def main() -> None:
    home = Path(sys.argv[1])
    os.chdir(home)
    try:
        asyncio.run(serve(home))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
