"""Forward-only migrations for both stores: numbered files, each applied once, in order, remembered by checksum.

PostgreSQL: one advisory lock for the whole run, one transaction per file, short lock waits (a migration that would make
the house wait gives up and is tried again by the next start). ClickHouse has no transactions: its statements must be
repeatable (`if not exists`), and a file is remembered only after its last one.
"""

from __future__ import annotations

import asyncio

import asyncpg

from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migration_files import Migration, Status, compare, refuse_newer, shipped, split
from handbill.infra.postgres.errors import DRIVER_ERRORS, PostgresAway, PostgresBusy, translated
from handbill.infra.postgres.urls import APP_ROLE, WORKER_ROLE, as_role, masked, role_password
from handbill.kit.errors import Broken
from handbill.kit.telemetry import logs

__all__ = [
    "Migration",
    "Status",
    "compare",
    "migrate",
    "migrate_clickhouse",
    "refuse_newer",
    "shipped",
    "split",
    "status",
]

_log = logs.get("migrations")

LOCK_KEY = 0x68616E6462696C6C  # "handbill" in ASCII: one runner at a time per database
_ROLE_TRIES = 5
_LEDGER = """
create table if not exists public.handbill_migrations (
    number int primary key, name text not null, checksum text not null, applied_at timestamptz not null default now())
"""
_CH_LEDGER = """
create table if not exists handbill_migrations
    (number UInt32, name String, checksum String, applied_at DateTime64(3) default now64(3))
    engine = MergeTree order by number
"""


async def migrate(owner_url: str, *, files: list[Migration] | None = None, lock_timeout_ms: int = 5_000) -> list[str]:
    """Bring the schema up to this code, and the plain roles' passwords with it; the answer names what was applied."""
    connection = await _connect(owner_url)
    try:
        done = await _run(connection, shipped() if files is None else files, lock_timeout_ms)
        await _let_roles_in(connection, owner_url)
    except DRIVER_ERRORS as error:
        raise translated(error, "migrate") from error
    finally:
        await connection.close(timeout=5)
    return done


async def status(owner_url: str) -> Status:
    connection = await _connect(owner_url)
    try:
        return compare(await _applied(connection), shipped())
    except DRIVER_ERRORS as error:
        raise translated(error, "migration status") from error
    finally:
        await connection.close(timeout=5)


async def _connect(owner_url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(owner_url, timeout=10, statement_cache_size=0)
    except DRIVER_ERRORS as error:
        ours = translated(error, "connect")
        if isinstance(ours, PostgresAway):
            raise PostgresAway(
                f"PostgreSQL does not answer at {masked(owner_url)}: {error or type(error).__name__}."
            ) from error
        raise ours from error


async def _run(connection: asyncpg.Connection, files: list[Migration], lock_timeout_ms: int) -> list[str]:
    """The lock is waited for without a limit of its own: whoever holds it is migrating for us."""
    await connection.execute("select pg_advisory_lock($1)", LOCK_KEY)
    try:
        state = compare(await _applied(connection), files)
        refuse_newer(state, "PostgreSQL")
        done = []
        for migration in files:
            if migration.label in state.pending:
                await _apply(connection, migration, lock_timeout_ms)
                done.append(migration.label)
        return done
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", LOCK_KEY)


async def _apply(connection: asyncpg.Connection, migration: Migration, lock_timeout_ms: int) -> None:
    try:
        async with connection.transaction():
            await connection.execute(f"set local lock_timeout={int(lock_timeout_ms)}; set local statement_timeout=0")
            await connection.execute(migration.text)
            await connection.execute(_LEDGER)
            await connection.execute(
                "insert into public.handbill_migrations (number, name, checksum) values ($1, $2, $3)",
                migration.number,
                migration.name,
                migration.checksum,
            )
    except asyncpg.LockNotAvailableError as error:
        raise PostgresBusy(
            f"Migration {migration.label} did not get its lock in time; nothing was changed, try again."
        ) from error
    except asyncpg.PostgresError as error:
        raise Broken(f"Migration {migration.label} failed and was undone: {error}", code="MIGRATION_FAILED") from error
    _log.info("migration-applied", migration=migration.label)


async def _applied(connection: asyncpg.Connection) -> dict[int, tuple[str, str]]:
    if await connection.fetchval("select to_regclass('public.handbill_migrations')") is None:
        return {}
    rows = await connection.fetch("select number, name, checksum from public.handbill_migrations")
    return {row["number"]: (row["name"], row["checksum"]) for row in rows}


async def _let_roles_in(connection: asyncpg.Connection, owner_url: str) -> None:
    """Give the plain roles their derived passwords, where they cannot log in with them already."""
    for role in (APP_ROLE, WORKER_ROLE):
        password = role_password(owner_url, role)
        if password is None or await _can_log_in(as_role(owner_url, role)):
            continue
        statement = f"alter role {role} login password '{password}'"  # a hex digest: nothing in it to quote
        for attempt in range(_ROLE_TRIES):
            try:
                await connection.execute(statement)
                break
            except asyncpg.InsufficientPrivilegeError:
                _log.warning(
                    "role-password-not-set", role=role, hint="handbill doctor prints the SQL for your administrator"
                )
                break
            except asyncpg.InternalServerError:  # roles are the cluster's: another database's runner was faster
                await asyncio.sleep(0.05 * (attempt + 1))
        else:
            raise PostgresBusy(
                f"The password of the role {role} could not be set; another program changes it. Try again."
            )


async def _can_log_in(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=10)
    except asyncpg.InvalidAuthorizationSpecificationError:
        return False
    await connection.close(timeout=5)
    return True


async def migrate_clickhouse(store: ClickHouse, *, files: list[Migration] | None = None) -> list[str]:
    """The same for ClickHouse. Callers hold PostgreSQL's lock or are alone; statements are repeatable either way."""
    files = shipped("clickhouse") if files is None else files
    if not files:
        return []
    await store.command(_CH_LEDGER)
    rows = await store.query("select number, name, checksum from handbill_migrations order by number")
    state = compare({int(number): (str(name), str(checksum)) for number, name, checksum in rows}, files)
    refuse_newer(state, "ClickHouse")
    done = []
    for migration in files:
        if migration.label in state.pending:
            for statement in split(migration.text):
                await store.command(statement)
            await store.insert(
                "handbill_migrations",
                ["number", "name", "checksum"],
                [(migration.number, migration.name, migration.checksum)],
            )
            done.append(migration.label)
    return done
