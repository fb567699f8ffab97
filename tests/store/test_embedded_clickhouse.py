"""The ClickHouse face, spoken to by the unmodified driver: whatever a server does, it does."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

from tests.kit.waiting import eventually, soon

if TYPE_CHECKING:
    from tests.kit.engines import Engines

ROWS = 100_000
TABLE = """
create table {name} (id UUID, kind LowCardinality(String), at DateTime64(3, 'UTC'), n UInt32)
engine = MergeTree order by n settings non_replicated_deduplication_window = 100
"""
COLUMNS = ["id", "kind", "at", "n"]


async def connect(url: str, compress: bool | str = False) -> Any:
    parts = urlsplit(url)
    return await clickhouse_connect.get_async_client(
        host=parts.hostname,
        port=parts.port,
        username=parts.username,
        password=parts.password or "",
        database=parts.path.lstrip("/"),
        compress=compress,
        autogenerate_session_id=False,
        tz_mode="aware",
    )


@pytest.fixture
async def client(engines: Engines) -> AsyncIterator[Any]:
    made = await connect(engines.clickhouse_url)
    yield made
    await made.close()


@pytest.fixture
async def table(client: Any) -> str:
    name = f"t_{uuid.uuid4().hex[:12]}"
    await client.command(TABLE.format(name=name))
    return name


def rows(count: int) -> list[list[object]]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [[uuid.UUID(int=n), f"kind-{n % 7}", at, n] for n in range(count)]


async def running(client: Any, mark: str, wanted: int) -> bool:
    """Whether exactly so many queries with this mark in their text run now."""
    where = f"position(query, '{mark}') > 0 and position(query, 'system.processes') = 0"
    return bool(await client.command(f"select count() from system.processes where {where}") == wanted)


async def test_definitions_parameters_and_answers(client: Any, table: str) -> None:
    assert table in (await client.query("show tables")).result_columns[0]
    awkward = "a'b\\c\n\t{x}"
    found = await client.query(
        "select {n:UInt32} + 1, {s:String}, {a:Array(String)}", parameters={"n": 5, "s": awkward, "a": [awkward, ""]}
    )
    assert found.result_rows == [(6, awkward, [awkward, ""])]
    long = "x" * 200_000
    assert (await client.query("select {s:String}", parameters={"s": long})).result_rows == [(long,)]
    assert (await client.query(f"select * from {table}")).result_rows == []
    assert await client.command(f"exists table {table}") == 1
    assert await client.command("select currentDatabase()") == client.database


@pytest.mark.parametrize("encoding", [False, "lz4", "zstd", "gzip"])
async def test_rows_go_in_and_come_back_in_every_encoding(engines: Engines, table: str, encoding: bool | str) -> None:
    client = await connect(engines.clickhouse_url, compress=encoding)
    try:
        sent = rows(ROWS if encoding == "lz4" else 2_000)
        summary = await client.insert(table, sent, column_names=COLUMNS)
        assert summary.written_rows == len(sent)
        back = await client.query(f"select id, kind, at, n from {table} order by n")
        assert [list(row) for row in back.result_rows] == sent
    finally:
        await client.close()


async def test_a_repeated_token_is_dropped(client: Any, table: str) -> None:
    for _ in range(2):
        settings = {"insert_deduplication_token": "batch-1"}
        await client.insert(table, rows(10), column_names=COLUMNS, settings=settings)
    assert await client.command(f"select count() from {table}") == 10
    settings = {"insert_deduplication_token": "batch-2"}
    await client.insert(table, rows(10), column_names=COLUMNS, settings=settings)
    assert await client.command(f"select count() from {table}") == 20


@pytest.mark.parametrize(
    ("code", "table_settings", "settings"),
    [
        (243, "min_free_disk_bytes_to_perform_insert = 1000000000000000000", {}),
        (241, "index_granularity = 8192", {"max_memory_usage": "9000000"}),
        (252, "parts_to_throw_insert = 1, parts_to_delay_insert = 1, max_delay_to_insert = 0", {}),
        (252, "index_granularity = 8192", {"max_partitions_per_insert_block": "2"}),
        (469, "index_granularity = 8192", {"description": "constraint"}),
    ],
    ids=["disk full", "memory limit", "too many parts", "too many partitions", "constraint"],
)
async def test_rows_that_the_table_does_not_keep_are_refused(
    client: Any, code: int, table_settings: str, settings: dict[str, str]
) -> None:
    """Errors of the sink, behind the parsing: an answer of 200 means that the rows are there."""
    name, bad = f"t_{uuid.uuid4().hex[:12]}", [(n, "x" * 200) for n in range(20_000)]
    await client.command(
        f"create table {name} (n UInt32, s String, constraint small check n < 20000)"
        f" engine = MergeTree order by n partition by n % 4 settings {table_settings}"
    )
    if settings.pop("description", None):
        bad = [(20_000, "x")]
    if "parts_to_throw_insert" in table_settings:
        await client.insert(name, [(0, "first")], column_names=["n", "s"])
        bad = [(0, "second")]
    before = await client.command(f"select count() from {name}")
    with pytest.raises(DatabaseError) as caught:
        await client.insert(name, bad, column_names=["n", "s"], settings=settings)
    assert caught.value.code == code
    assert await client.command(f"select count() from {name}") == before


async def test_an_insert_may_have_settings_and_any_bytes(engines: Engines, client: Any, table: str) -> None:
    """Rows of a binary format hold what a statement could hold, and arrive as they were."""
    texts = ["a;b", "'", "\n\nINSERT INTO x VALUES", "\0;\n;", "\\", "é" * 3]
    name = f"t_{uuid.uuid4().hex[:12]}"
    await client.command(f"create table {name} (n UInt32, `settings` String) engine = MergeTree order by n")
    await client.insert(name, list(enumerate(texts)), column_names=["n", "settings"])
    rows_of = f"select settings from {name} order by n"
    assert [row[0] for row in (await client.query(rows_of)).result_rows] == texts
    parts = urlsplit(engines.clickhouse_url)
    statement = f"insert into {name} (n, settings) settings max_insert_block_size = 1000 format TabSeparated"
    keys = {"X-ClickHouse-User": parts.username or "", "X-ClickHouse-Key": parts.password or ""}
    words = {"query": statement, "database": parts.path.lstrip("/")}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{parts.port}/", params=words, data=b"6\tlast\n", headers=keys) as reply,
    ):
        assert reply.status == 200, await reply.text()
    assert [row[0] for row in (await client.query(rows_of)).result_rows] == [*texts, "last"]


async def test_long_results_come_in_pieces(client: Any) -> None:
    total = count = 0
    query = "select number, toString(cityHash64(number)) from numbers(400000)"
    async with await client.query_row_block_stream(query) as stream:
        async for block in stream:
            count += 1
            total += sum(row[0] for row in block)
    assert total == sum(range(400_000))
    assert count > 1


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("select nonsense", 47),
        ("select * from nowhere", 60),
        ("selec 1", 62),
        ("select sum(number) from numbers(1000000000000) settings max_execution_time = 0.2", 159),
        ("select groupArray(number) from numbers(50000000) settings max_memory_usage = 10000000", 241),
        ("select 1 settings no_such_setting = 1", 115),
    ],
)
async def test_refusals_carry_the_servers_code(client: Any, query: str, code: int) -> None:
    with pytest.raises(DatabaseError) as caught:
        await client.query(query)
    assert caught.value.code == code


async def test_a_fault_in_the_middle_of_a_result_is_no_short_result(client: Any) -> None:
    with pytest.raises(StreamFailureError, match="395"):
        await client.query("select throwIf(number = 2000000) from numbers(3000000)")
    assert await client.command("select 1") == 1


async def test_settings_of_one_query_do_not_reach_the_next(client: Any) -> None:
    asked = "select getSetting('max_block_size')"
    assert (await client.query(asked, settings={"max_block_size": 77})).result_rows == [(77,)]
    assert (await client.query(asked)).result_rows != [(77,)]


async def test_the_bare_protocol(engines: Engines, table: str) -> None:
    """What other programs say: curl, health checks, a wrong password."""
    parts = urlsplit(engines.clickhouse_url)
    base = f"http://127.0.0.1:{parts.port}/"
    user, password = parts.username or "", parts.password or ""
    keys = {"X-ClickHouse-User": user, "X-ClickHouse-Key": password}
    database = parts.path.lstrip("/")
    async with aiohttp.ClientSession() as session:

        async def say(method: str, headers: dict[str, str], body: bytes = b"", **words: str) -> tuple[int, str, Any]:
            async with session.request(method, base, params=words, data=body, headers=headers) as reply:
                return reply.status, await reply.text(), reply.headers

        async with session.get(base + "ping") as pong:
            assert (pong.status, await pong.text()) == (200, "Ok.\n")
        assert (await say("GET", keys, query="select 1 as x format JSONEachRow"))[:2] == (200, '{"x":1}\n')
        assert (await say("POST", keys, b"select 2", default_format="CSV"))[:2] == (200, "2\n")
        status, _, headers = await say("POST", keys, b"select 3", user=user, password=password, query_id="mine")
        assert (status, headers["X-ClickHouse-Query-Id"]) == (200, "mine")

        insert = f"insert into {database}.{table} (n) format TabSeparated"
        assert (await say("POST", keys, b"1\n2\n", query=insert))[0] == 200
        count = f"select count() from {table}"
        assert (await say("GET", keys, query=count, database=database))[1] == "2\n"
        status, text, headers = await say("GET", keys, query=f"truncate table {database}.{table}")
        assert (status, headers["X-ClickHouse-Exception-Code"]) == (403, "164"), text

        for wrong in ({}, {"X-ClickHouse-User": user, "X-ClickHouse-Key": "guess"}, {"Authorization": "Basic ???"}):
            status, text, headers = await say("POST", wrong, b"select 1")
            assert (status, headers["X-ClickHouse-Exception-Code"]) == (403, "516")
            assert password not in text
        assert (await say("POST", {**keys, "Content-Encoding": "gzip"}, b"junk"))[0] == 400
        assert (await say("POST", keys))[0] == 400
        form = aiohttp.FormData({"query": "select {x:String}", "param_x": "long"}, default_to_multipart=True)
        async with session.post(base, data=form, headers=keys) as reply:
            assert await reply.text() == "long\n"


WORKER = """
import asyncio, sys
from tests.store.test_embedded_clickhouse import COLUMNS, connect, rows
async def main(url, table):
    client = await connect(url)
    for turn in range(5):
        await client.insert(table, rows(400), column_names=COLUMNS)
        await client.query(f"select kind, count() from {table} group by kind")
    await client.close()
asyncio.run(main(*sys.argv[1:]))
"""


async def test_four_processes_at_once(engines: Engines, client: Any, table: str) -> None:
    # The same rows from everybody: no deduplication here, or the blocks would be taken for repeats.
    await client.command(f"alter table {table} modify setting non_replicated_deduplication_window = 0")
    command = (sys.executable, "-c", WORKER, engines.clickhouse_url, table)
    workers = [await asyncio.create_subprocess_exec(*command) for _ in range(4)]
    assert await soon(asyncio.gather(*(worker.wait() for worker in workers)), 120) == [0, 0, 0, 0]
    assert await client.command(f"select count() from {table}") == 4 * 5 * 400


async def test_a_short_question_is_answered_while_three_scans_run_and_a_lost_client_ends_its_scan(
    engines: Engines, client: Any, table: str
) -> None:
    mark = uuid.uuid4().hex
    slow = f"select sum(sleepEachRow(0.2)), '{mark}' from numbers(3000) settings max_block_size = 1"

    async def scan() -> None:
        own = await connect(engines.clickhouse_url)
        try:
            await own.query(slow)
        finally:
            await own.close()

    scans = [asyncio.create_task(scan()) for _ in range(3)]
    try:
        await eventually(lambda: running(client, mark, 3))
        insert = asyncio.create_task(client.insert(table, rows(ROWS), column_names=COLUMNS))
        for _ in range(20):
            assert await soon(client.command("select 1")) == 1
        await soon(insert)
        assert await client.command(f"select count() from {table}") == ROWS
        assert not any(task.done() for task in scans)
    finally:
        for task in scans:
            task.cancel()
        await asyncio.gather(*scans, return_exceptions=True)
    await eventually(lambda: running(client, mark, 0))


async def test_a_reader_who_leaves_in_the_middle_ends_his_query(engines: Engines, client: Any) -> None:
    """He reads slower than the engine writes, so the query waits for him; then he is gone."""
    mark = uuid.uuid4().hex
    parts = urlsplit(engines.clickhouse_url)
    keys = {"X-ClickHouse-User": parts.username or "", "X-ClickHouse-Key": parts.password or ""}
    endless = f"select number, '{mark}' from numbers(1000000000000)"
    async with (
        aiohttp.ClientSession(headers=keys) as session,
        session.post(f"http://127.0.0.1:{parts.port}/", data=endless) as reply,
    ):
        assert reply.status == 200
        assert len(await reply.content.readexactly(1_000_000)) == 1_000_000
        assert await running(client, mark, 1)
        reply.close()
    await eventually(lambda: running(client, mark, 0))
