"""One transaction, and one session, as a store sees them."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg

from handbill.infra.postgres.errors import DRIVER_ERRORS, translated, unfit
from handbill.infra.sqlfiles import Sql
from handbill.kit import crashpoints
from handbill.kit.telemetry import metrics

Row: TypeAlias = Any  # asyncpg's record: by name, by position, and like a mapping

_seconds: dict[str, Any] = {}


def _observe(name: str, started: float) -> None:
    child = _seconds.get(name)
    if child is None:
        child = _seconds[name] = metrics.PG_SECONDS.labels(name)
    child.observe(time.perf_counter() - started)


class _Speaker:
    """What a transaction and a session have in common: named statements on one connection."""

    _alone = False  # whether each statement is a commit of its own, so that a lost answer leaves its fate unknown

    def __init__(self, connection: asyncpg.Connection, tenant_id: int | None) -> None:
        self._timeout: float | None = None  # None: as the connection was told
        self._connection = connection
        self.tenant_id = tenant_id

    async def fetch(self, sql: Sql, *args: Any) -> list[Row]:
        rows: list[Row] = await self._run("fetch", sql, *args)
        return rows

    async def fetchrow(self, sql: Sql, *args: Any) -> Row | None:
        row: Row | None = await self._run("fetchrow", sql, *args)
        return row

    async def fetchval(self, sql: Sql, *args: Any) -> Any:
        return await self._run("fetchval", sql, *args)

    async def execute(self, sql: Sql, *args: Any) -> int:
        """Run a statement; the answer is the number of rows it touched."""
        status: str = await self._run("execute", sql, *args)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def executemany(self, sql: Sql, rows: Iterable[Sequence[Any]]) -> None:
        await self._run("executemany", sql, rows)

    async def copy_records(self, table: str, columns: Sequence[str], records: Iterable[Sequence[Any]]) -> int:
        """COPY into a temporary table, or into `schema.table`.

        Straight into a table behind the wall only the worker may copy: it bypasses walls, and PostgreSQL refuses COPY
        to everybody else there.
        """
        schema, _, bare = table.rpartition(".")
        name = f"copy_{bare}"
        crashpoints.reached(f"before:pg:{name}")
        started = time.perf_counter()
        try:
            status = await self._connection.copy_records_to_table(
                bare, schema_name=schema or None, columns=list(columns), records=records
            )
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise unfit(error, name) from None
        except DRIVER_ERRORS as error:
            raise translated(error, name, committing=self._alone) from None
        _observe(name, started)
        crashpoints.reached(f"after:pg:{name}")
        return int(status.rpartition(" ")[2])

    async def copy_text(self, table: str, columns: Sequence[str], text: bytes) -> int:
        """COPY of rows that are already in COPY's own text form, made where there was time for it.

        The driver leaves a reference cycle around its source; closed, the source no longer holds megabytes until the
        collector comes by, which in a server is seldom.
        """
        schema, _, bare = table.rpartition(".")
        name = f"copy_{bare}"
        crashpoints.reached(f"before:pg:{name}")
        started = time.perf_counter()
        source = io.BytesIO(text)
        try:
            status = await self._connection.copy_to_table(
                bare, schema_name=schema or None, columns=list(columns), source=source, format="text"
            )
        except DRIVER_ERRORS as error:
            raise translated(error, name, committing=self._alone) from None
        finally:
            source.close()
        _observe(name, started)
        crashpoints.reached(f"after:pg:{name}")
        return int(status.rpartition(" ")[2])

    async def _run(self, verb: str, sql: Sql, *args: Any) -> Any:
        name = getattr(sql, "name", "inline")
        text = getattr(sql, "text", sql)
        crashpoints.reached(f"before:pg:{name}")
        started = time.perf_counter()
        try:
            answer = await getattr(self._connection, verb)(text, *args, timeout=self._timeout)
        except DRIVER_ERRORS as error:
            raise translated(error, name, committing=self._alone) from None  # the driver's own text shows values
        _observe(name, started)
        crashpoints.reached(f"after:pg:{name}")
        return answer


class Tx(_Speaker):
    """One transaction. It commits when its `async with` ends well, and is undone when it ends in an error."""

    def __init__(self, connection: asyncpg.Connection, tenant_id: int | None) -> None:
        super().__init__(connection, tenant_id)
        self.afterwards: list[Callable[[], Awaitable[None]]] = []

    async def patient(self, seconds: float) -> None:
        """Let the statements of this transaction take longer than the house allows: for recounts, not for requests."""
        await self._say(f"set local statement_timeout={int(seconds * 1000)}")
        self._timeout = seconds + 5

    def after_commit(self, work: Callable[[], Awaitable[None]]) -> None:
        """Something small to do once the commit stands (a wake-up). It may fail or be skipped by a crash: a hint."""
        self.afterwards.append(work)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A part that may fail alone: an error undoes what was done inside, and the transaction lives on."""
        await self._say("savepoint part")
        try:
            yield
        except BaseException:
            if not self._connection.is_closed():
                await self._say("rollback to savepoint part; release savepoint part")
            raise
        await self._say("release savepoint part")

    async def _say(self, text: str) -> None:
        try:
            await self._connection.execute(text)
        except DRIVER_ERRORS as error:
            raise translated(error, "savepoint") from error


class Session(_Speaker):
    """A direct connection without a transaction: each statement stands alone; session locks live as long as it."""

    _alone = True

    def is_closed(self) -> bool:
        return bool(self._connection.is_closed())

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[asyncpg.Connection]:
        """The driver's own connection, in a transaction that leaves nothing behind; for this room only."""
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            yield self._connection
        finally:
            if not self._connection.is_closed():
                await transaction.rollback()

    async def try_lock(self, key: int) -> bool:
        """Take a session advisory lock if it is free; it goes with the connection, whatever happens to us."""
        return bool(await self.fetchval(_TRY_LOCK, key))

    async def unlock(self, key: int) -> bool:
        return bool(await self.fetchval(_UNLOCK, key))


_TRY_LOCK = Sql("select pg_try_advisory_lock($1)", "try_lock", "postgres", "a lock is the installation's")
_UNLOCK = Sql("select pg_advisory_unlock($1)", "unlock", "postgres", "a lock is the installation's")
