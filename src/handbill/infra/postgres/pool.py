"""A small pool. The driver's own spends a task on every release and a round trip on every reset; we need neither:
each transaction sets its state locally, and a connection that is in doubt is closed, not repaired."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import asyncpg

from handbill.infra.postgres.errors import DRIVER_ERRORS, PostgresAway, PostgresBusy, translated
from handbill.kit.telemetry import metrics

IDLE_S = 300.0


class Pool:
    """At most `size` connections, made when needed; the last one returned is the first one taken."""

    def __init__(self, name: str, size: int, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        self.name = name
        self._size = size
        self._connect = connect
        self._free = asyncio.Semaphore(size)
        self._idle: list[tuple[asyncpg.Connection, float]] = []
        self._out: set[asyncpg.Connection] = set()
        self._closed = False
        self._last: asyncio.Event | None = None  # the last one home during a close
        self._waited = metrics.PG_WAIT_SECONDS.labels(name)
        self._in_use = metrics.PG_IN_USE.labels(name)

    async def acquire(self, timeout: float) -> asyncpg.Connection:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            detail = f"All {self._size} connections of the {self.name} pool are in use; nothing was done, try again."
            raise PostgresBusy(detail, retry_after=1.0) from None
        try:
            connection = self._rested() or await self._connect()
        except BaseException as error:
            self._free.release()
            if isinstance(error, DRIVER_ERRORS):
                raise translated(error, "connect") from error
            raise
        if self._closed:
            connection.terminate()
            self._free.release()
            raise PostgresAway("The database is stopped.")
        self._out.add(connection)
        self._waited.observe(time.perf_counter() - started)
        self._in_use.inc()
        return connection

    def release(self, connection: asyncpg.Connection, *, broken: bool) -> None:
        """Give it back; one that is broken, or comes home to a closed pool, is closed."""
        self._out.discard(connection)
        if self._last is not None and not self._out:
            self._last.set()
        self._in_use.dec()
        if (broken or self._closed) and not connection.is_closed():
            connection.terminate()
        if not connection.is_closed():
            self._idle.append((connection, time.monotonic()))
            self._drop_stale()
        self._free.release()

    async def close(self, patience: float) -> bool:
        """Wait a little for those that are out, then close all; False when some had to be cut off."""
        self._closed = True
        if self._out:
            self._last = asyncio.Event()
            with contextlib.suppress(TimeoutError):  # those that are still out are cut off below
                await asyncio.wait_for(self._last.wait(), patience)
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            try:
                await connection.close(timeout=2)
            except DRIVER_ERRORS:
                connection.terminate()
        cut = list(self._out)
        for connection in cut:
            connection.terminate()
        return not cut

    def forget_idle(self) -> None:
        """One connection turned out to be dead: the others that rest here most likely are, too."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.terminate()

    def _rested(self) -> asyncpg.Connection | None:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _drop_stale(self) -> None:
        """The one that rested longest lies at the bottom; one a time is enough."""
        connection, since = self._idle[0]
        if time.monotonic() - since > IDLE_S:
            del self._idle[0]
            connection.terminate()
