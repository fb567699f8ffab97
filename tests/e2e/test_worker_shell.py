"""A real `handbill worker`, and what the long-running commands say when something is wrong from the start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import asyncpg
import pytest

from handbill.infra import migrations
from tests.kit.engines import Engines
from tests.kit.processes import free_port, handbill, process


async def test_the_life_of_a_worker(handbill_env: dict[str, str]) -> None:
    port, metrics = free_port(), free_port()
    pages = {"HANDBILL_WORKER__PORT": str(port), "HANDBILL_WORKER__METRICS_PORT": str(metrics)}
    async with process("worker", env=handbill_env | pages) as worker:
        line = await worker.log(event="worker-ready")
        assert set(line["chores"]) >= {"relay", "ledger", "leader"}
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/health") as reply:
                assert reply.status == 200
                body = await reply.json()
                assert body["status"] == "ok"
                assert set(body["tasks"]) >= {"relay", "ledger", "consume", "lock-renewal"}
                assert set(body["tasks"]) >= {f"jobs:upload_jobs{part}" for part in ("", ":listen", ":sweep")}
            async with http.get(f"http://127.0.0.1:{metrics}/metrics") as reply:
                assert "handbill_pg_seconds" in await reply.text()
        heartbeat = Path(handbill_env["HANDBILL_HOME"]) / "run" / "worker.heartbeat"
        assert heartbeat.exists()
        assert await worker.stop() == 0, worker.tail()
        assert worker.seen(event="worker-stopped")
    assert not heartbeat.exists()


async def test_service_type_chooses_the_chores(handbill_env: dict[str, str]) -> None:
    async with process("worker", env=handbill_env | {"SERVICE_TYPE": "OUTBOX"}) as worker:
        line = await worker.log(event="worker-ready")
        assert set(line["chores"]) == {"relay", "ledger"}


MakeDatabase = Callable[[], Awaitable[str]]


@pytest.fixture
async def make_database(engines: Engines) -> AsyncIterator[MakeDatabase]:
    """`await make_database()` gives the owner's URL of an empty database of its own."""
    made: list[str] = []
    owner = await asyncpg.connect(engines.postgres_url)

    async def make() -> str:
        made.append(f"shell_{uuid.uuid4().hex[:12]}")
        await owner.execute(f"create database {made[-1]} template template0")
        return urlunsplit(urlsplit(engines.postgres_url)._replace(path=f"/{made[-1]}"))

    try:
        yield make
    finally:
        for name in made:
            await owner.execute(f"drop database {name} with (force)")
        await owner.close()


async def refused(env: dict[str, str], *words: str) -> str:
    """Both commands end with code 1 and one line for a person; the line of the first is given back."""
    (code, said), (other, _) = await asyncio.gather(handbill("worker", env=env), handbill("api", env=env))
    assert (code, other) == (1, 1), said
    lines = [line for line in said.splitlines() if line.startswith("handbill: ")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    for word in words:
        assert word in lines[0]
    return lines[0]


async def test_an_older_schema_asks_for_migrate_and_a_newer_one_for_the_newer_release(
    handbill_env: dict[str, str], make_database: MakeDatabase, short_tmp: Path
) -> None:
    url = await make_database()
    env = handbill_env | {"HANDBILL_POSTGRES__URL": url}
    await migrations.migrate(url, files=migrations.shipped()[:1])
    await refused(env, "older than this code", "handbill migrate")
    await migrations.migrate(url)
    owner = await asyncpg.connect(url)
    await owner.execute("insert into handbill_migrations (number, name, checksum) values (9999, 'future', 'x')")
    await owner.close()
    await refused(env, "newer than this code", "9999_future", "Run the newer release")


async def test_engines_that_are_away_or_refuse_the_login(handbill_env: dict[str, str]) -> None:
    gone = free_port()
    line = await refused(handbill_env | {"HANDBILL_POSTGRES__URL": f"postgresql://u:hunter2@127.0.0.1:{gone}/x"})
    assert "PostgreSQL" in line
    assert "hunter2" not in line
    parts = urlsplit(handbill_env["HANDBILL_POSTGRES__URL"])
    wrong = parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}")
    await refused(handbill_env | {"HANDBILL_POSTGRES__URL": urlunsplit(wrong)}, "PostgreSQL refused the login")
    line = await refused(handbill_env | {"HANDBILL_REDIS__URL": f"redis://:hunter2@127.0.0.1:{gone}/0"})
    assert "Redis" in line
    assert "hunter2" not in line
    parts = urlsplit(handbill_env["HANDBILL_REDIS__URL"])
    wrong = parts._replace(netloc=f":wrong@{parts.hostname}:{parts.port}")
    await refused(handbill_env | {"HANDBILL_REDIS__URL": urlunsplit(wrong)}, "Redis refused the login")


async def test_a_taken_health_port_is_named(handbill_env: dict[str, str]) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        code, said = await handbill("worker", env=handbill_env | {"HANDBILL_WORKER__PORT": str(port)})
    finally:
        server.close()
        await server.wait_closed()
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "HANDBILL_WORKER__PORT" in said
