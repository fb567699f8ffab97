"""The ClickHouse adapter on the real engine: queries, tokens, streams, errors, migrations, outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from handbill.infra.clickhouse import ClickHouse, ClickHouseAway, ClickHouseError
from handbill.infra.migrations import Migration, migrate_clickhouse
from handbill.kit.errors import Broken
from handbill.kit.retry import Retry
from tests.kit.crashes import dying_at
from tests.kit.engines import Engines
from tests.kit.proxy import proxy
from tests.kit.waiting import eventually

Unique = Callable[[str], str]
HASTY = Retry(tries=2, delay_ms=10)


@pytest.fixture
async def table(clickhouse: ClickHouse, unique: Unique) -> AsyncIterator[str]:
    name = unique("t").replace("-", "_")
    await clickhouse.command(
        f"create table {name} (n UInt32, s String) engine = MergeTree order by n"
        " settings non_replicated_deduplication_window = 100"
    )
    yield name
    await clickhouse.command(f"drop table {name}")


async def test_rows_go_in_once_per_token_and_come_out(clickhouse: ClickHouse, table: str) -> None:
    rows = [(n, f"s{n}") for n in range(1_000)]
    for _ in range(3):
        await clickhouse.insert(table, ["n", "s"], rows, token="batch-1")
    await clickhouse.insert(table, ["n", "s"], [(5_000, "x")], token="batch-2")
    await clickhouse.insert(table, ["n", "s"], [])
    assert await clickhouse.query(f"select count(), max(n) from {table}") == [(1_001, 5_000)]
    found = await clickhouse.query(f"select s from {table} where n = {{wanted:UInt32}}", {"wanted": 7})
    assert found == [("s7",)]
    blocks = [
        block async for block in clickhouse.stream(f"select n from {table} order by n", None, {"max_block_size": 100})
    ]
    assert [row[0] for block in blocks for row in block] == [*range(1_000), 5_000]


async def test_a_refusal_has_the_engines_code(clickhouse: ClickHouse, table: str) -> None:
    for statement, code in ((f"select nothing from {table}", 47), ("selekt", 62), ("select * from nowhere_at_all", 60)):
        with pytest.raises(ClickHouseError) as refused:
            await clickhouse.query(statement)
        assert refused.value.code == code
    with pytest.raises(ClickHouseError):
        async for _ in clickhouse.stream("select * from nowhere_at_all"):
            raise AssertionError("rows from nowhere")
    with pytest.raises(ClickHouseError, match="no column q"):
        await clickhouse.insert(table, ["n", "q"], [(1, "a")])
    await clickhouse.insert(table, ["n"], [(1,)])


async def test_every_call_is_a_crash_point(clickhouse: ClickHouse, table: str) -> None:
    await clickhouse.insert(table, ["n", "s"], [(1, "a")])
    with dying_at(0) as points:
        await clickhouse.insert(table, ["n", "s"], [(2, "b")])
        await clickhouse.query("select 1")
    assert points == ["before:ch:insert", "after:ch:insert", "before:ch:query", "after:ch:query"]


async def test_away_is_busy_and_back_is_back(engines: Engines, clickhouse: ClickHouse, table: str) -> None:
    async with proxy(engines.clickhouse_url) as (net, url):
        through = ClickHouse(url, engines.worker, policy=HASTY)
        net.down()
        await through.start()  # needs no engine
        with pytest.raises(ClickHouseAway) as away:
            await through.health()
        assert away.value.code == "CLICKHOUSE_AWAY"
        net.up()
        await through.health()
        net.cut_on = b"insert_deduplication_token"
        await through.insert(table, ["n", "s"], [(1, "a")], token="once")  # cut once, sent again, stored once
        net.cut_after = b"insert_deduplication_token"
        await through.insert(table, ["n", "s"], [(2, "b")])  # the driver repeats by itself; stored once all the same
        net.down()
        with pytest.raises(ClickHouseAway):
            await through.query("select 1")
        net.up()
        assert await through.query(f"select n from {table} order by n") == [(1,), (2,)]
        await through.stop()
        with pytest.raises(ClickHouseAway, match="stopped"):
            await through.health()


async def test_a_wrong_password_is_broken_not_busy(engines: Engines) -> None:
    head, _, tail = engines.clickhouse_url.partition("://")
    stranger = ClickHouse(f"{head}://handbill:wrong@{tail.rpartition('@')[2]}")
    await stranger.start()
    with pytest.raises(Broken) as refused:
        await stranger.health()
    assert refused.value.code == "CLICKHOUSE_LOGIN"
    await stranger.stop()


async def test_a_cancelled_query_leaves_the_client_well(clickhouse: ClickHouse) -> None:
    task = asyncio.create_task(clickhouse.query("select sleepEachRow(1) from numbers(20) settings max_block_size = 1"))
    await eventually(
        lambda: clickhouse.query(
            "select 1 from system.processes where query like '%sleepEachRow%' and query not like '%processes%'"
        )
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await clickhouse.query("select 1") == [(1,)]


async def test_migrations_in_the_same_style(clickhouse: ClickHouse, unique: Unique) -> None:
    name = unique("m").replace("-", "_")
    ledgered = f"{clickhouse.database}_{name}"
    await clickhouse.command(f"create database {ledgered}")
    store = ClickHouse("", ledgered)
    store.__dict__.update(clickhouse.__dict__, database=ledgered, _client=None, _connecting=asyncio.Lock())
    try:
        first = Migration(1, "first", "create table if not exists a (n Int8) engine = Memory;\n\n-- b\nselect 1;\n")
        second = Migration(2, "second", "create table if not exists b (n Int8) engine = Memory")
        assert await migrate_clickhouse(store, files=[first]) == ["0001_first"]
        assert await migrate_clickhouse(store, files=[first, second]) == ["0002_second"]
        assert await migrate_clickhouse(store, files=[first, second]) == []
        with pytest.raises(Broken, match="newer"):
            await migrate_clickhouse(store, files=[first])
        with pytest.raises(Broken, match="another text"):
            await migrate_clickhouse(store, files=[Migration(1, "first", "select 2"), second])
    finally:
        await store.stop()
        await clickhouse.command(f"drop database {ledgered}")
