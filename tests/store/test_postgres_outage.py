"""PostgreSQL goes away and comes back: bounded waits before, a clear error in the middle, never a silent repeat."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handbill.infra.migrations import migrate
from handbill.infra.postgres import Database, PostgresAway, derive
from handbill.infra.sqlfiles import Sql
from handbill.kit.retry import Retry
from tests.conftest import OwnEngine
from tests.kit.engines import Engines
from tests.kit.proxy import Proxy, proxy
from tests.kit.waiting import eventually

ADD = Sql("select set_config('handbill.none', '1', true)", "touch")
AUDIT = Sql(
    "insert into tenants.audit_log (tenant_id, audit_id, at, actor, action, object)"
    " values ($1, $2, now(), 'a', 'b', 'c')",
    "add_audit",
)
FIND = Sql("select 1 from tenants.audit_log where tenant_id = $1 and audit_id = $2", "find_audit")
OWN_PID = Sql("select pg_backend_pid()", "own_pid")
END = Sql("select pg_terminate_backend($1)", "end_backend")
HASTY = Retry(tries=3, delay_ms=10)


@pytest.fixture
async def line(engines: Engines) -> AsyncIterator[tuple[Proxy, Database]]:
    async with proxy(engines.postgres_url) as (net, url):
        database = Database(derive(url), acquire_timeout_ms=20_000, policy=HASTY)
        await database.start()
        yield net, database
        await database.stop()


async def test_away_at_the_start_is_busy_and_back_is_back(line: tuple[Proxy, Database]) -> None:
    net, database = line
    await database.health()
    net.down()
    with pytest.raises(PostgresAway) as away:
        await database.health()
    assert away.value.code == "POSTGRES_AWAY"
    assert not away.value.maybe_done
    net.up()
    await database.health()


async def test_a_backend_ended_by_the_server_is_away_whenever_its_goodbye_arrives(database: Database) -> None:
    """The driver has three different errors for this, by the moment at which the goodbye is read."""
    for _ in range(25):
        with pytest.raises(PostgresAway):
            async with database.session() as session:
                own = await session.fetchval(OWN_PID)
                async with database.worker() as tx:
                    assert await tx.fetchval(END, own)
                async with asyncio.timeout(60):
                    while await session.fetchval(OWN_PID):
                        await asyncio.sleep(0)


async def test_a_stale_connection_is_replaced_before_the_caller_notices(line: tuple[Proxy, Database]) -> None:
    net, database = line
    for _ in range(5):
        async with database.lookup() as tx:
            await tx.execute(ADD)
        net.cut()  # behind our back, while the connection rests in the pool
    async with database.lookup() as tx:
        await tx.execute(ADD)


async def test_cut_at_begin_is_tried_again_and_cut_later_is_not(line: tuple[Proxy, Database], tenant: int) -> None:
    net, database = line
    await database.health()
    net.cut_on = b"begin"
    async with database.tenant(tenant) as tx:  # the second try got through
        await tx.execute(AUDIT, tenant, uuid.uuid4())
    tries = 0
    net.cut_on = b"select set_config"
    with pytest.raises(PostgresAway) as away:
        async with database.lookup() as tx:
            tries += 1
            await tx.execute(ADD)
    assert tries == 1
    assert not away.value.maybe_done
    await database.health()


@pytest.mark.parametrize("reached", [False, True], ids=["before the engine", "behind the engine"])
async def test_a_commit_without_an_answer_says_so(
    line: tuple[Proxy, Database], database: Database, tenant: int, reached: bool
) -> None:
    net, through = line
    row = uuid.uuid4()
    with pytest.raises(PostgresAway) as away:
        async with through.tenant(tenant) as tx:
            await tx.execute(AUDIT, tenant, row)
            if reached:
                net.cut_after = b"commit"
            else:
                net.cut_on = b"commit"
    assert away.value.maybe_done
    if reached:

        async def stored() -> bool:
            async with database.tenant(tenant) as tx:
                return bool(await tx.fetchval(FIND, tenant, row))

        await eventually(stored)
    else:
        async with database.tenant(tenant) as tx:
            assert await tx.fetchval(FIND, tenant, row) is None


async def test_a_statement_of_a_session_stands_alone_and_says_so(line: tuple[Proxy, Database]) -> None:
    net, database = line
    async with database.session() as session:
        net.cut_after = b"select set_config"
        with pytest.raises(PostgresAway) as away:
            await session.execute(ADD)
        assert away.value.maybe_done
        assert session.is_closed()
    async with database.session() as session:
        await session.execute(ADD)


async def test_a_frozen_engine_holds_nobody_for_ever(engines: Engines) -> None:
    async with proxy(engines.postgres_url) as (net, url):
        database = Database(derive(url), acquire_timeout_ms=300, policy=Retry(tries=2, delay_ms=1))
        await database.start()
        net.freeze()
        with pytest.raises(PostgresAway):
            await database.health()
        net.thaw()
        await database.stop()


async def test_kill_dash_nine_and_a_new_start(own_postgres: OwnEngine, short_tmp: Path) -> None:
    home = short_tmp / "killed"
    engine = await own_postgres(at=home, durable=False)
    await migrate(engine.url)
    async with proxy(engine.url) as (net, url):
        database = Database(derive(url), policy=HASTY, acquire_timeout_ms=20_000)
        await database.start()
        with pytest.raises(PostgresAway):
            async with database.worker() as tx:
                await tx.execute(ADD)
                os.kill(engine.pid, signal.SIGKILL)
                await engine.wait()
                while True:  # the first statement that notices raises
                    await tx.execute(ADD)
        with pytest.raises(PostgresAway):
            await database.health()
        net.aim((await own_postgres(at=home, durable=False)).url)
        await database.health()
        await database.stop()
