"""Transactions, tenants, errors and limits of the PostgreSQL adapter, on the real engine."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handbill.infra.postgres import (
    CheckViolation,
    Database,
    PermissionDenied,
    PostgresAway,
    PostgresBusy,
    PostgresError,
    TransactionAborted,
    UniqueViolation,
    derive,
)
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Broken, Busy
from tests.conftest import MakeTenant
from tests.kit.crashes import Died, dying_at
from tests.kit.engines import Engines
from tests.kit.waiting import eventually, soon

WHO = Sql("select current_user || '/' || coalesce(current_setting('handbill.tenant', true), '')", "who")
AUDIT = Sql(
    "insert into tenants.audit_log (tenant_id, audit_id, at, actor, action, object)"
    " values ($1, $2, now(), 'a', 'b', 'c')",
    "add_audit",
)
COUNT = Sql("select count(*) from tenants.audit_log where tenant_id = $1", "count_audit")


@asynccontextmanager
async def started(engines: Engines, **options: Any) -> AsyncIterator[Database]:
    database = Database(derive(engines.postgres_url), acquire_timeout_ms=30_000, **options)
    await database.start()
    try:
        yield database
    finally:
        await database.stop()


async def test_each_way_in_has_its_role_and_no_tenant_stays_behind(database: Database) -> None:
    for _ in range(3):  # the same few connections, again and again
        async with database.tenant(7) as tx:
            assert await tx.fetchval(WHO) == "handbill_app/7"
            assert tx.tenant_id == 7
        async with database.lookup() as tx:
            assert await tx.fetchval(WHO) == "handbill_app/"
        async with database.worker() as tx:
            assert await tx.fetchval(WHO) == "handbill_worker/"
        async with database.session() as session:
            assert await session.fetchval(WHO) == "handbill_worker/"


@pytest.mark.parametrize("wrong", [0, -1, 2**31, "7", "7'; drop table x; --", True, None, 7.0])
async def test_only_a_true_tenant_number_gets_into_the_text(database: Database, wrong: object) -> None:
    with pytest.raises(ValueError, match="not a tenant id"):
        database.tenant(wrong)  # type: ignore[arg-type]


async def test_a_good_end_commits_and_a_bad_end_undoes(database: Database, tenant: int) -> None:
    async with database.tenant(tenant) as tx:
        assert await tx.execute(AUDIT, tenant, uuid.uuid4()) == 1
    with pytest.raises(RuntimeError, match="changed my mind"):
        async with database.tenant(tenant) as tx:
            await tx.execute(AUDIT, tenant, uuid.uuid4())
            raise RuntimeError("changed my mind")
    async with database.tenant(tenant) as tx:
        assert await tx.fetchval(COUNT, tenant) == 1


async def test_a_commit_that_postgresql_answers_with_rollback_is_an_error(database: Database, tenant: int) -> None:
    twice, ran = uuid.uuid4(), []

    async def work() -> None:
        ran.append(1)

    with pytest.raises(TransactionAborted) as aborted:
        async with database.tenant(tenant) as tx:
            tx.after_commit(work)
            await tx.execute(AUDIT, tenant, twice)
            with contextlib.suppress(UniqueViolation):  # without a savepoint
                await tx.execute(AUDIT, tenant, twice)
    assert aborted.value.code == "TRANSACTION_ABORTED"
    assert not ran, "nothing was committed"
    async with database.tenant(tenant) as tx:
        assert await tx.fetchval(COUNT, tenant) == 0


async def test_a_savepoint_fails_alone(database: Database, tenant: int) -> None:
    twice = uuid.uuid4()
    async with database.tenant(tenant) as tx:
        await tx.execute(AUDIT, tenant, twice)
        with pytest.raises(UniqueViolation):
            async with tx.savepoint():
                async with tx.savepoint():
                    await tx.execute(AUDIT, tenant, uuid.uuid4())
                await tx.execute(AUDIT, tenant, twice)
        async with tx.savepoint():
            await tx.execute(AUDIT, tenant, uuid.uuid4())
    async with database.tenant(tenant) as tx:
        assert await tx.fetchval(COUNT, tenant) == 2


async def test_what_waits_for_the_commit_runs_only_after_it_and_may_fail(database: Database, tenant: int) -> None:
    seen: list[int] = []

    async def look() -> None:
        async with database.tenant(tenant) as tx:
            seen.append(await tx.fetchval(COUNT, tenant))

    async def fail() -> None:
        raise RuntimeError("nobody listens")

    async with database.tenant(tenant) as tx:
        tx.after_commit(fail)
        tx.after_commit(look)
        await tx.execute(AUDIT, tenant, uuid.uuid4())
        assert seen == []
    assert seen == [1]
    with pytest.raises(ZeroDivisionError):
        async with database.tenant(tenant) as tx:
            tx.after_commit(look)
            raise ZeroDivisionError
    assert seen == [1]


async def test_refusals_carry_the_rule_and_never_the_row(database: Database, make_tenant: MakeTenant) -> None:
    mine, other = await make_tenant(), await make_tenant()
    secret = uuid.uuid4()
    async with database.tenant(mine) as tx:
        await tx.execute(AUDIT, mine, secret)
    with pytest.raises(UniqueViolation) as unique:
        async with database.tenant(mine) as tx:
            await tx.execute(AUDIT, mine, secret)
    assert unique.value.constraint == "audit_log_pkey"
    assert unique.value.sqlstate == "23505"
    assert str(secret) not in str(unique.value)
    assert unique.value.__suppress_context__  # a printed traceback does not show the driver's DETAIL either
    with pytest.raises(PermissionDenied):
        async with database.tenant(mine) as tx:
            await tx.execute(AUDIT, other, uuid.uuid4())
    with pytest.raises(CheckViolation):
        async with database.tenant(mine) as tx:
            await tx.execute(Sql("update tenants.tenants set tier = 'gold' where tenant_id = $1"), mine)
    with pytest.raises(PostgresError) as missing:
        async with database.tenant(mine) as tx:
            await tx.execute(Sql("select * from tenants.nowhere"))
    assert missing.value.sqlstate == "42P01"


BAD_ROWS = [(2**40, "x", None), ("s", "x", None), (1, 5, None), (1, "a\0b", None), (1, "\ud800", None), (1, "x", "no")]


async def test_a_value_that_does_not_fit_is_one_bad_row(database: Database) -> None:
    insert = Sql("insert into scratch values ($1, $2, $3)", "scratch")
    columns = ["a", "b", "c"]
    async with database.worker() as tx:
        await tx.execute(Sql("create temp table scratch (a int, b text, c uuid) on commit drop"))
        for row in BAD_ROWS:
            for send in (
                lambda row=row: tx.execute(insert, *row),
                lambda row=row: tx.executemany(insert, [(1, "good", None), row]),
                lambda row=row: tx.copy_records("scratch", columns, [(1, "good", None), row]),
            ):
                with pytest.raises(PostgresError) as bad:
                    async with tx.savepoint():
                        await send()
                assert bad.value.sqlstate.startswith("22")
                assert "good" not in str(bad.value)
        assert await tx.copy_records("scratch", columns, [(n, "x", uuid.uuid4()) for n in range(500)]) == 500
        assert await tx.fetchval(Sql("select count(*) from scratch")) == 500


async def test_locks_and_slow_statements_end_as_busy(engines: Engines, tenant: int) -> None:
    lock = Sql("select 1 from tenants.tenants where tenant_id = $1 for update", "lock_tenant")
    async with started(engines, lock_timeout_ms=100) as impatient, impatient.tenant(tenant) as holder:
        await holder.execute(lock, tenant)
        with pytest.raises(PostgresBusy, match="lock"):
            async with impatient.tenant(tenant) as tx:
                await tx.execute(lock, tenant)
    async with started(engines, statement_timeout_ms=200) as hasty:
        with pytest.raises(PostgresBusy, match="time limit"):
            async with hasty.lookup() as tx:
                await tx.execute(Sql("select pg_sleep(100)", "slow"))


async def test_a_full_pool_says_busy_and_recovers(engines: Engines) -> None:
    async with started(engines, app_size=1) as narrow:
        async with narrow.lookup():
            narrow._acquire_timeout = 0.1  # only now: making the connection may take its time
            with pytest.raises(PostgresBusy, match="in use"):
                async with narrow.lookup():
                    raise AssertionError("two transactions on one connection")
            narrow._acquire_timeout = 30
        async with narrow.lookup() as tx:
            assert await tx.fetchval(WHO) == "handbill_app/"


async def test_a_cancelled_caller_leaves_nothing_and_breaks_nothing(engines: Engines, tenant: int) -> None:
    database = Database(derive(engines.postgres_url), app_size=1, acquire_timeout_ms=30_000)
    await database.start()
    key = uuid.uuid4().int & (2**31 - 1)
    asleep = Sql("select 1 from pg_locks where locktype = 'advisory' and objid = $1::bigint::oid")

    async def work() -> None:
        async with database.tenant(tenant) as tx:
            await tx.execute(AUDIT, tenant, uuid.uuid4())
            await tx.execute(Sql("select pg_advisory_xact_lock($1), pg_sleep(100)", "sleep"), key)

    async def sleeping() -> bool:
        async with database.worker() as tx:
            return bool(await tx.fetch(asleep, key))

    try:
        for _ in range(3):
            task = asyncio.create_task(work())
            await eventually(sleeping)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await soon(task)
            async with database.tenant(tenant) as tx:
                assert await tx.fetchval(COUNT, tenant) == 0
    finally:
        await database.stop()


async def test_a_session_lock_is_held_by_one_and_goes_with_the_session(database: Database) -> None:
    key = uuid.uuid4().int & (2**62 - 1)
    async with database.session() as first, database.session() as second:
        assert await first.try_lock(key)
        assert not await second.try_lock(key)
        assert await first.unlock(key)
        assert await second.try_lock(key)
    async with database.session() as third:
        assert await third.try_lock(key)


async def test_every_step_of_a_transaction_is_a_crash_point(database: Database, tenant: int) -> None:
    """Die at each point in turn: the row is there exactly when the commit had been reached."""

    async def once(number: int) -> tuple[list[str], bool]:
        row = uuid.uuid4()
        with dying_at(number) as seen:
            try:
                async with database.tenant(tenant) as tx:
                    await tx.execute(AUDIT, tenant, row)
            except Died:
                pass
        async with database.tenant(tenant) as tx:
            found = await tx.fetchval(Sql("select 1 from tenants.audit_log where audit_id = $1"), row)
        return seen, found is not None

    points, stored = await once(0)
    assert points == [f"{when}:pg:{step}" for step in ("begin", "add_audit", "commit") for when in ("before", "after")]
    assert stored
    for number, point in enumerate(points, start=1):
        seen, stored = await once(number)
        assert seen[-1] == point
        assert stored == (point == "after:pg:commit")
    print(f"crash points of one transaction: {len(points)}")


async def test_a_wrong_password_is_broken_not_busy(engines: Engines) -> None:
    urls = derive(engines.postgres_url, app=engines.postgres_url.replace("handbill:", "handbill_app:wrong", 1))
    database = Database(urls)
    await database.start()
    try:
        with pytest.raises(Broken) as refused:
            await database.health()
        assert refused.value.code == "POSTGRES_LOGIN"
    finally:
        await database.stop()


async def test_without_named_statements_everything_still_works(engines: Engines, tenant: int) -> None:
    """The way behind an older PgBouncer: nothing is kept on the connection between transactions."""
    database = Database(derive(engines.postgres_url, prepared=False))
    await database.start()
    try:
        for _ in range(3):
            async with database.tenant(tenant) as tx:
                await tx.execute(AUDIT, tenant, uuid.uuid4())
                await tx.executemany(AUDIT, [(tenant, uuid.uuid4()) for _ in range(3)])
        async with database.tenant(tenant) as tx:
            assert await tx.fetchval(COUNT, tenant) == 12
            assert await tx.fetch(Sql("select name from pg_prepared_statements where name <> ''")) == []
    finally:
        await database.stop()


async def test_a_stop_waits_for_what_is_under_way_and_cuts_what_never_ends(engines: Engines, tenant: int) -> None:
    database = Database(derive(engines.postgres_url), acquire_timeout_ms=30_000)
    await database.start()
    row = uuid.uuid4()
    async with database.tenant(tenant) as tx:
        await tx.execute(AUDIT, tenant, row)
        stopping = asyncio.create_task(database.stop())
        await asyncio.sleep(0)
        with pytest.raises(PostgresAway, match="stopped"):
            await database.health()
    await soon(stopping)
    await database.start()
    pool = database._pools["app"]
    with pytest.raises(PostgresAway):
        async with database.tenant(tenant) as tx:
            assert await tx.fetchval(COUNT, tenant) == 1
            assert not await pool.close(patience=0.01)
            await tx.fetchval(COUNT, tenant)
    await database.stop()


async def test_stopped_twice_and_used_after_the_stop(engines: Engines) -> None:
    database = Database(derive(engines.postgres_url))
    await database.start()
    await database.health()
    await database.stop()
    await database.stop()
    with pytest.raises(Exception, match="stopped"):
        await database.health()


async def test_a_patient_transaction_outlives_the_usual_limit_and_no_other_does(engines: Engines) -> None:
    adapter = Database(derive(engines.postgres_url), statement_timeout_ms=200, acquire_timeout_ms=30_000)
    await adapter.start()
    try:
        nap = Sql("select pg_sleep(0.5)", "nap")
        async with adapter.worker() as tx:
            await tx.patient(60)
            await tx.execute(nap)
        with pytest.raises(Busy):
            async with adapter.worker() as tx:
                await tx.execute(nap)
    finally:
        await adapter.stop()
