"""The pools, and the four ways to get a connection out of them.

`begin` and the tenant (behind a pooler the time limits, too) go to the server as one simple query, so that a tenant
costs no round trip and nothing depends on session state that a pooler would lose. Retries happen only before anything
of the caller's was sent: once a statement is out, a broken connection is the caller's to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import asyncpg

from handbill.infra.postgres.errors import DRIVER_ERRORS, PostgresAway, TransactionAborted, is_away, translated
from handbill.infra.postgres.hot import HotLookups, HotTimeouts
from handbill.infra.postgres.pool import Pool
from handbill.infra.postgres.tx import Session, Tx
from handbill.infra.postgres.urls import PostgresUrls
from handbill.infra.sqlfiles import Sql
from handbill.kit import crashpoints, retry, task_health
from handbill.kit.telemetry import logs

_log = logs.get("postgres")
_CLEAN = "select pg_advisory_unlock_all(); close all; unlisten *; reset all"
_PING = Sql("select 1", "ping", "postgres", "asks only whether the engine answers")


class Database:
    """All of PostgreSQL as the house uses it. Built by the wiring; `start` needs no engine, `health` asks for one."""

    def __init__(
        self,
        urls: PostgresUrls,
        *,
        app_size: int = 10,
        worker_size: int = 10,
        direct_size: int = 2,
        statement_timeout_ms: int = 30_000,
        lock_timeout_ms: int = 5_000,
        acquire_timeout_ms: int = 5_000,
        hot: HotTimeouts | None = None,
        policy: retry.Retry = retry.POSTGRES,
    ) -> None:
        self._urls = urls
        self._sizes = {"app": app_size, "worker": worker_size, "direct": direct_size}
        self._limits = {"statement_timeout": str(int(statement_timeout_ms)), "lock_timeout": str(int(lock_timeout_ms))}
        # A session keeps its limits; behind a pooler nobody knows whose session it is, so each BEGIN brings them along.
        local = "".join(f"; set local {name}={value}" for name, value in self._limits.items())
        self._begin = f"begin{local}" if urls.pooled else "begin"
        self._command_timeout = statement_timeout_ms / 1000 + 5
        self._acquire_timeout = acquire_timeout_ms / 1000
        self._policy = policy
        self._pools: dict[str, Pool] = {}
        self.hot = HotLookups(self.health, hot or HotTimeouts())
        """For whoever asks on behalf of a hot route."""

    async def start(self) -> None:
        if self._pools:
            return
        self.hot.start()
        for name, url in (("app", self._urls.app), ("worker", self._urls.worker), ("direct", self._urls.direct)):
            named = self._urls.prepared or name == "direct"
            connect = partial(
                asyncpg.connect,
                url,
                timeout=self._acquire_timeout,
                command_timeout=self._command_timeout,
                statement_cache_size=400 if named else 0,
                server_settings=None if self._urls.pooled or name == "direct" else self._limits,
            )
            self._pools[name] = Pool(name, self._sizes[name], connect)

    async def stop(self) -> None:
        """Wait a little for transactions under way, then close; safe to call twice."""
        pools, self._pools = self._pools, {}
        await self.hot.stop()
        for name, pool in pools.items():
            if not await pool.close(patience=10):
                _log.warning("postgres-stop-forced", pool=name)

    async def health(self) -> None:
        """Raise Busy unless a transaction of the app role can be had and answers, retries included, in good time."""
        try:
            async with asyncio.timeout(self._acquire_timeout), self.lookup() as tx:
                await tx.fetchval(_PING)
        except TimeoutError:
            raise PostgresAway(f"PostgreSQL did not answer within {self._acquire_timeout:g} s.") from None

    def tenant(self, tenant_id: int) -> AbstractAsyncContextManager[Tx]:
        """A transaction of one tenant, behind the wall."""
        if type(tenant_id) is not int or not 0 < tenant_id < 2**31:  # it goes into the text of a statement
            raise ValueError(f"not a tenant id: {tenant_id!r}")
        return self._transaction("app", tenant_id)

    def lookup(self) -> AbstractAsyncContextManager[Tx]:
        """A transaction of no tenant: it sees no row, and may call the look-up functions."""
        return self._transaction("app", None)

    def worker(self) -> AbstractAsyncContextManager[Tx]:
        """A transaction across tenants, for consumers, relay, rollups and loaders."""
        return self._transaction("worker", None)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A direct connection of one's own. At the end its locks are let go, or the connection with them."""
        pool = self._pool("direct")
        connection = await pool.acquire(self._acquire_timeout)
        broken = True
        try:
            yield Session(connection, None)
            broken = not await _said(connection, _CLEAN)
        finally:
            pool.release(connection, broken=broken)

    @asynccontextmanager
    async def _transaction(self, name: str, tenant_id: int | None) -> AsyncIterator[Tx]:
        pool = self._pool(name)
        connection = await self._begun(pool, tenant_id)
        tx = Tx(connection, tenant_id)
        broken = True
        try:
            try:
                yield tx
            except BaseException:
                broken = not await _said(connection, "rollback")
                raise
            await _commit(connection)
            broken = False
            task_health.heartbeat()
        finally:
            pool.release(connection, broken=broken)
        for work in tx.afterwards:
            try:
                await work()
            except Exception:  # noqa: BLE001 - the commit stands, and the work was a hint
                _log.exception("after-commit-failed")

    async def _begun(self, pool: Pool, tenant_id: int | None) -> asyncpg.Connection:
        wall = "" if tenant_id is None else f"; set local handbill.tenant='{tenant_id:d}'"
        text = f"{self._begin}{wall}"

        async def attempt() -> asyncpg.Connection:
            connection = await pool.acquire(self._acquire_timeout)
            begun = False
            try:
                crashpoints.reached("before:pg:begin")
                await connection.execute(text, timeout=self._acquire_timeout)
                crashpoints.reached("after:pg:begin")
                begun = True
                if pool.name == "app":
                    self.hot.record_answer()
            except DRIVER_ERRORS as error:
                if is_away(error):
                    pool.forget_idle()
                raise translated(error, "begin") from error
            finally:
                if not begun:
                    pool.release(connection, broken=True)
            return connection

        return await retry.retrying(self._policy, attempt, lambda error: isinstance(error, PostgresAway))

    def _pool(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            raise PostgresAway("The database is stopped.")
        return pool


async def _commit(connection: asyncpg.Connection) -> None:
    """Commit, or raise. PostgreSQL answers the COMMIT of an aborted transaction with ROLLBACK and no error."""
    crashpoints.reached("before:pg:commit")
    try:
        status = await connection.execute("commit")
    except DRIVER_ERRORS as error:
        raise translated(error, "commit", committing=True) from error
    if status != "COMMIT":
        raise TransactionAborted
    crashpoints.reached("after:pg:commit")


async def _said(connection: asyncpg.Connection, text: str) -> bool:
    """Undo or clean up; False when the connection cannot be used again (closing it does the same)."""
    if connection.is_closed():
        return False
    try:
        await connection.execute(text, timeout=5)
    except DRIVER_ERRORS:
        return False
    return True
