"""Law 10, generated: over every table that has a tenant, whatever room it belongs to, now and later."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from handbill.infra.postgres import Database, PermissionDenied, PostgresError, derive
from handbill.infra.postgres.urls import as_role
from handbill.infra.sqlfiles import Sql
from tests.conftest import MakeTenant
from tests.kit.bouncer import bouncer
from tests.kit.catalogue import Rows, Table, insert, tenant_tables
from tests.kit.engines import Engines


@pytest.fixture
async def owner(engines: Engines) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(engines.postgres_url)
    yield connection
    await connection.close()


@pytest.fixture(params=["direct", "pgbouncer"])
async def walled(request: pytest.FixtureRequest, engines: Engines, database: Database) -> AsyncIterator[Database]:
    """The same suite on the server itself and through PgBouncer in transaction mode, where that is installed."""
    if request.param == "direct":
        yield database
        return
    async with bouncer(engines.postgres_url) as (app_url, worker_url):
        through = Database(derive(engines.postgres_url, app=app_url, worker=worker_url), app_size=3)
        await through.start()
        yield through
        await through.stop()


async def test_every_table_with_a_tenant_stands_behind_the_wall(owner: asyncpg.Connection) -> None:
    tables = await tenant_tables(owner)
    assert len(tables) > 10
    assert {table.name: table.faults for table in tables if table.faults} == {}


async def test_the_checker_sees_a_missing_wall(owner: asyncpg.Connection) -> None:
    transaction = owner.transaction()
    await transaction.start()
    name = f"planted_{uuid.uuid4().hex}"
    await owner.execute(
        f"""
        create table public.{name}_bare (tenant_id int not null);
        create table public.{name}_unforced (tenant_id int not null);
        select handbill_wall('public.{name}_unforced');
        alter table public.{name}_unforced no force row level security;
        create table public.{name}_leaky (tenant_id int not null);
        select handbill_wall('public.{name}_leaky');
        create policy everybody on public.{name}_leaky for select using (true);
        create table public.{name}_good (tenant_id int not null);
        select handbill_wall('public.{name}_good');
        """
    )
    faults = {table.name.rpartition("_")[2]: table.faults for table in await tenant_tables(owner) if name in table.name}
    await transaction.rollback()
    assert len(faults["bare"]) == 3
    assert faults["unforced"] == ("row level security is not forced",)
    assert "policies" in faults["leaky"][0]
    assert faults["good"] == ()


async def test_the_roles_are_what_they_should_be(owner: asyncpg.Connection) -> None:
    rows = await owner.fetch("select * from pg_roles where rolname in ('handbill_app', 'handbill_worker')")
    roles = {row["rolname"]: row for row in rows}
    for role in roles.values():
        for power in ("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication"):
            assert not role[power]
        assert role["rolcanlogin"]
    assert not roles["handbill_app"]["rolbypassrls"]
    assert roles["handbill_worker"]["rolbypassrls"]
    assert not await owner.fetchval("select pg_has_role('handbill_app', 'handbill_worker', 'member')")
    owned = "select count(*) from pg_class where relowner = 'handbill_app'::regrole"
    assert await owner.fetchval(owned) == 0


async def test_what_looks_over_the_wall_says_only_tenant_and_ids(owner: asyncpg.Connection) -> None:
    """Functions that run with their owner's rights and that the app may call; and views, which would do the same."""
    rows = await owner.fetch(
        """
        select p.oid::regprocedure::text as name, p.proconfig::text as config,
               p.proargnames[array_length(p.proargmodes, 1) - cardinality(array_positions(p.proargmodes, 't'))
                             - cardinality(array_positions(p.proargmodes, 'o')) + 1:] as told,
               pg_get_function_result(p.oid) as result
        from pg_proc p where p.prosecdef and has_function_privilege('handbill_app', p.oid, 'execute')
        """
    )
    assert rows
    for row in rows:
        assert "search_path" in (row["config"] or ""), row["name"]
        if row["told"] is None:
            assert row["result"] in ("boolean", "integer", "void"), row["name"]
        else:
            assert all(name.endswith("id") for name in row["told"]), row["name"]
    views = await owner.fetch(
        """
        select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('v', 'm') and n.nspname not in ('pg_catalog', 'information_schema')
          and not coalesce('security_invoker=true' = any(c.reloptions), false)
        """
    )
    assert views == []


async def test_nothing_of_one_tenant_reaches_another(
    walled: Database, owner: asyncpg.Connection, make_tenant: MakeTenant
) -> None:
    ours, theirs = await make_tenant(), await make_tenant()
    rows = Rows(owner)
    tables = await tenant_tables(owner)
    for table in tables:
        if not await _takes_rows(owner, table):
            continue
        for tenant in (ours, theirs):
            await rows.row(table.oid, tenant)
        await _sees_only_its_own(walled, table, ours, theirs)
        await _cannot_write_into(walled, table, await rows.values(table.oid, ours), ours, theirs)
        still = await owner.fetchval(f"select count(*) from {table.name} where tenant_id = $1", ours)
        assert still == 1, table.name
    print(f"walls: {len(tables)} tables")


async def _takes_rows(owner: asyncpg.Connection, table: Table) -> bool:
    """A partition takes only what belongs into it: rows go in by its parent; a test below asks it by name."""
    return not await owner.fetchval("select relispartition from pg_class where oid = $1", table.oid)


async def _sees_only_its_own(walled: Database, table: Table, ours: int, theirs: int) -> None:
    for reader, allowed in ((theirs, [theirs]), (ours, [ours]), (None, [])):
        way = walled.lookup() if reader is None else walled.tenant(reader)
        try:
            async with way as tx:
                seen = await tx.fetch(Sql(f"select distinct tenant_id from {table.name}"))
        except PermissionDenied:
            continue
        assert [row["tenant_id"] for row in seen] == allowed, table.name


async def _cannot_write_into(walled: Database, table: Table, values: dict[str, Any], ours: int, theirs: int) -> None:
    with pytest.raises(PermissionDenied):
        async with walled.tenant(theirs) as tx:
            await tx.execute(Sql(insert(table.name, values)), *values.values())
    column = next((name for name in values if name != "tenant_id"), "tenant_id")
    for change in (f"update {table.name} set {column} = {column}", f"delete from {table.name}"):
        try:
            async with walled.tenant(theirs) as tx:
                assert await tx.execute(Sql(f"{change} where tenant_id = $1"), ours) == 0, table.name
        except PermissionDenied:
            continue
    with pytest.raises(PostgresError) as refused:  # nor give a row of one's own away
        async with walled.tenant(theirs) as tx:
            moved = await tx.execute(Sql(f"update {table.name} set tenant_id = $1 where tenant_id = $2"), ours, theirs)
            raise AssertionError(f"{table.name}: {moved} rows were given away")
    assert refused.value.sqlstate in ("42501", "428C9"), table.name  # behind the wall, or a number nobody may set


async def test_a_partition_by_its_own_name_is_walled_too(database: Database, owner: asyncpg.Connection) -> None:
    parts = [table for table in await tenant_tables(owner) if not await _takes_rows(owner, table)]
    assert parts
    for part in parts:
        try:
            async with database.lookup() as tx:
                assert await tx.fetch(Sql(f"select 1 from {part.name}")) == [], part.name
        except PermissionDenied:
            continue


async def test_no_schema_lets_the_roles_create_anything(owner: asyncpg.Connection) -> None:
    may = await owner.fetch(
        """
        select n.nspname, r.rolname from pg_namespace n, pg_roles r
        where r.rolname in ('handbill_app', 'handbill_worker') and n.nspname !~ '^pg_'
          and has_schema_privilege(r.rolname, n.nspname, 'create')
        """
    )
    assert may == []


async def test_the_app_cannot_lift_the_wall(engines: Engines) -> None:
    connection = await asyncpg.connect(as_role(engines.postgres_url, "handbill_app"))
    try:
        for attempt in (
            "set role handbill_worker",
            "set session authorization handbill_worker",
            "alter table tenants.tenants disable row level security",
            "create policy open on tenants.tenants using (true)",
            "alter role handbill_app bypassrls",
            "copy tenants.tenants from stdin",
        ):
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.InvalidParameterValueError)):
                await connection.execute(attempt)
        await connection.execute("set row_security = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("select * from tenants.tenants")
    finally:
        await connection.close()
