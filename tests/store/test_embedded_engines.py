"""The engines as a household: a killed supervisor leaves nobody behind, and a new one finds everything again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import pytest

from handbill.infra.embedded.clickhouse import start_clickhouse
from handbill.kit.errors import Broken
from tests.kit.waiting import eventually, soon

if TYPE_CHECKING:
    from tests.conftest import OwnEngine

SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from handbill.infra.embedded import Home, start_clickhouse, start_postgres, start_redis
async def main():
    home = Home.open(Path(sys.argv[1])).path
    engines = [await start_postgres(home), await start_redis(home), await start_clickhouse(home)]
    print(*(word for engine in engines for word in (engine.pid, engine.url)), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""

HOLDER = """
import sys, chdb
connection = chdb.connect(sys.argv[1])
print(connection.query("select count() from handbill.t", "TSV"), end="", flush=True)
input()
"""


def alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def start(home: Path) -> tuple[subprocess.Popen[bytes], list[int], list[str]]:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(home)], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    words = supervisor.stdout.readline().decode().split()
    supervisor.stdout.close()
    return supervisor, [int(word) for word in words[::2]], words[1::2]


async def clickhouse(url: str, statement: str) -> tuple[int, str]:
    parts = urlsplit(url)
    keys = {"X-ClickHouse-User": parts.username or "", "X-ClickHouse-Key": parts.password or ""}
    address = f"http://127.0.0.1:{parts.port}/?database={parts.path.lstrip('/')}"
    async with aiohttp.ClientSession(headers=keys) as session, session.post(address, data=statement) as reply:
        return reply.status, await reply.text()


async def test_kill_9_of_the_supervisor_takes_all_three_along_and_loses_nothing(short_tmp: Path) -> None:
    home = short_tmp / "home"
    supervisor, pids, urls = await asyncio.to_thread(start, home)
    try:
        assert all(alive(pid) for pid in pids)
        connection = await asyncpg.connect(urls[0])
        await connection.execute("create table t as select 7 as n")
        await connection.close()
        assert (await clickhouse(urls[2], "create table t (n Int8) engine = MergeTree order by n"))[0] == 200
        assert (await clickhouse(urls[2], "insert into t values (7)"))[0] == 200
    finally:
        supervisor.kill()
        supervisor.wait()

    # At once, while the old ones may still be leaving: the locks make the new ones wait for them.
    supervisor, new_pids, new_urls = await asyncio.to_thread(start, home)
    try:
        assert [urlsplit(url).password for url in new_urls] == [urlsplit(url).password for url in urls]
        urls = new_urls
        await eventually(lambda: not any(alive(pid) for pid in pids))
        connection = await asyncpg.connect(urls[0])
        assert await connection.fetchval("select n from t") == 7
        await connection.close()
        assert await clickhouse(urls[2], "select n from t") == (200, "7\n")
    finally:
        supervisor.kill()
        supervisor.wait()
    await eventually(lambda: not any(alive(pid) for pid in new_pids))


async def test_clickhouse_limits_its_bodies_survives_kill_9_and_names_a_foreign_owner(
    own_clickhouse: OwnEngine, short_tmp: Path
) -> None:
    home = short_tmp / "home"
    engine = await own_clickhouse(at=home, body_limit=100_000)
    await clickhouse(engine.url, "create table t (s String) engine = MergeTree order by s")
    status, text = await clickhouse(engine.url, "insert into t format TSV\n" + "x\n" * 60_000)
    assert status == 413
    assert "smaller batches" in text
    assert await clickhouse(engine.url, "insert into t format TSV\nx\n") == (200, "")
    os.kill(engine.pid, signal.SIGKILL)
    assert await soon(engine.wait()) == -signal.SIGKILL

    data = home / "clickhouse" / "data"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert await asyncio.to_thread(other.stdout.readline) == b"1\n"
        with pytest.raises(Broken, match="Another process has the ClickHouse directory") as caught:
            await start_clickhouse(home)
        assert caught.value.code == "ENGINE_LOCKED"
        other.kill()
    again = await own_clickhouse(at=home)
    assert await clickhouse(again.url, "select count() from t") == (200, "1\n")
