"""The one ClickHouse client. An engine that is away or overloaded is busy, never poison."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from handbill.kit import crashpoints, retry
from handbill.kit.errors import Broken, Busy, EngineRefused
from handbill.kit.ids import new_id
from handbill.kit.telemetry import logs, metrics

if TYPE_CHECKING:
    from clickhouse_connect.driver.asyncclient import AsyncClient

_log = logs.get("clickhouse")
T = TypeVar("T")

# Too many queries, parts or bytes, a time or memory limit, no space, read-only, a lost replica: not our rows' fault.
_BUSY_CODES = frozenset({159, 160, 202, 203, 209, 210, 225, 241, 242, 243, 252, 279, 285, 319, 394, 425, 439, 999})
_LOGIN_CODES = frozenset({192, 193, 194, 497, 516})


class ClickHouseAway(Busy):
    """The engine did not answer. `maybe_done`: the request had been sent."""

    code = "CLICKHOUSE_AWAY"

    def __init__(self, detail: str, *, maybe_done: bool = True) -> None:
        super().__init__(detail, retry_after=1.0)
        self.maybe_done = maybe_done


class ClickHouseBusy(Busy):
    """The engine cannot now, or not so much at once. `engine_code` is its own word for why."""

    code = "CLICKHOUSE_BUSY"

    def __init__(self, detail: str, engine_code: int = 0) -> None:
        super().__init__(detail, retry_after=1.0)
        self.engine_code = engine_code


class ClickHouseError(EngineRefused):
    """The engine refused a statement or its rows."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"ClickHouse {code}: {message}")
        self.code = code
        self.message = message


class ClickHouse:
    """Queries, inserts with deduplication tokens, streams. Connects at first use and again after a loss."""

    def __init__(
        self,
        url: str,
        database: str | None = None,
        *,
        timeout_s: float = 30.0,
        policy: retry.Retry = retry.CLICKHOUSE,
    ) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme in ("https", "clickhouses")
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (8443 if self._secure else 8123)
        self._place = f"{self._host}:{self._port}"
        self._user = unquote(parts.username or "default")
        self._password = unquote(parts.password or "")
        self.database = database or parts.path.strip("/") or "default"
        self._timeout = timeout_s
        self._policy = policy
        self._client: AsyncClient | None = None
        self._types: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._connecting = asyncio.Lock()
        self._stopped = True

    async def start(self) -> None:
        """Be ready; the engine itself may come later."""
        self._stopped = False

    async def stop(self) -> None:
        self._stopped = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def health(self) -> None:
        """Raise Busy unless the engine answers a query."""
        await self._once("ping", lambda client: client.query("select 1"))

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        again: bool = True,
    ) -> list[tuple[Any, ...]]:
        """All rows of a query that is known to be small; a read is tried again when the engine is away."""

        async def work(client: AsyncClient) -> list[tuple[Any, ...]]:
            result = await client.query(sql, parameters=_dict(params), settings=_dict(settings))
            return [tuple(row) for row in result.result_rows]

        return await (self._again if again else self._once)("query", work)

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], token: str | None = None
    ) -> None:
        """Insert one batch. With a token a repeat is dropped by the table's window, so only then is it tried again.

        The driver itself sends an insert a second time when the connection breaks under it, token or not; so a batch
        without a token gets one of its own, and tables without a window should not be written this way.
        """
        if rows:
            await self._insert(table, columns, rows, token, len(rows), by_column=False, again=token is not None)

    async def insert_columns(
        self, table: str, columns: Sequence[str], values: Sequence[Sequence[Any]], token: str | None = None
    ) -> None:
        """The same, with the values of each column together, as the engine wants them: faster for large batches.

        Tried once: whoever sends large batches has a way of their own to wait.
        """
        if values and values[0]:
            await self._insert(table, columns, values, token, len(values[0]), by_column=True, again=False)

    async def _insert(
        self, table: str, columns: Sequence[str], data: Sequence[Sequence[Any]], token: str | None, rows: int,
        *, by_column: bool, again: bool,
    ) -> None:  # fmt: skip
        settings = {
            "async_insert": 0,
            "insert_deduplication_token": token or str(new_id()),
            "max_partitions_per_insert_block": 0,  # months of an import are many; their number is no fault
        }
        key = (table, tuple(columns))
        types = self._types.get(key)
        if types is None:
            types = self._types[key] = await self._column_types(table, columns, again=again)

        async def work(client: AsyncClient) -> None:
            await client.insert(
                table, data, column_names=list(columns), column_type_names=types, column_oriented=by_column,
                settings=settings,
            )  # fmt: skip

        try:
            await (self._again if again else self._once)("insert", work)
        except ClickHouseError:
            self._types.pop(key, None)  # perhaps the table changed; the next batch looks again
            raise
        metrics.CH_ROWS.labels(table).inc(rows)

    async def command(self, sql: str, settings: Mapping[str, Any] | None = None) -> Any:
        """A statement without rows: DDL, KILL QUERY, and the like. Never repeated behind the caller's back."""
        return await self._once("command", lambda client: client.command(sql, settings=_dict(settings)))

    async def stream(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """A large result, block by block: memory holds one block, whatever the size of the whole."""
        stream: Any = await self._again(
            "stream",
            lambda client: client.query_row_block_stream(sql, parameters=_dict(params), settings=_dict(settings)),
        )
        async with stream:
            blocks = stream.__aiter__()
            while True:
                try:
                    block = await blocks.__anext__()
                except StopAsyncIteration:
                    return
                except Exception as error:
                    raise _translated(error, self._place) from error
                yield [tuple(row) for row in block]

    async def _column_types(self, table: str, columns: Sequence[str], *, again: bool) -> list[str]:
        """Asked once per table: the driver would ask before every insert."""
        types = {row[0]: row[1] for row in await self.query(f"describe table {table}", again=again)}
        missing = [column for column in columns if column not in types]
        if missing:
            raise ClickHouseError(16, f"the table {table} has no column {', '.join(missing)}")
        return [types[column] for column in columns]

    async def _again(self, kind: str, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        return await retry.retrying(
            self._policy, lambda: self._once(kind, work), lambda error: isinstance(error, ClickHouseAway)
        )

    async def _once(self, kind: str, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        client = await self._connected()
        crashpoints.reached(f"before:ch:{kind}")
        started = time.perf_counter()
        try:
            answer = await work(client)
        except Exception as error:
            raise _translated(error, self._place) from error
        metrics.CH_SECONDS.labels(kind).observe(time.perf_counter() - started)
        crashpoints.reached(f"after:ch:{kind}")
        return answer

    async def _connected(self) -> AsyncClient:
        if self._client is not None:
            return self._client
        async with self._connecting:
            if self._client is None:
                self._client = await self._opened()
            return self._client

    async def _opened(self) -> AsyncClient:
        if self._stopped:
            raise ClickHouseAway("The ClickHouse client is stopped.", maybe_done=False)
        import clickhouse_connect  # half a second of import, spent only where ClickHouse is used

        try:
            return await clickhouse_connect.get_async_client(
                host=self._host,
                port=self._port,
                username=self._user,
                password=self._password,
                database=self.database,
                secure=self._secure,
                connect_timeout=5,
                send_receive_timeout=self._timeout,
                query_retries=0,
                autogenerate_session_id=False,
                compress=self._host not in ("127.0.0.1", "localhost", "::1"),  # on loopback it only costs time
            )
        except Exception as error:
            ours = _translated(error, self._place)
            if isinstance(ours, ClickHouseAway):
                ours.maybe_done = False
            raise ours from error


def _translated(error: Exception, place: str) -> Exception:
    """Our error for the driver's. Without an engine code the engine was not there to give one."""
    import aiohttp
    from clickhouse_connect.driver import exceptions as driver

    code = getattr(error, "code", None)
    if isinstance(error, driver.ClickHouseError) and isinstance(code, int):
        metrics.CH_ERRORS.labels(str(code)).inc()
        text = str(error).strip()
        if code in _BUSY_CODES:
            return ClickHouseBusy(f"ClickHouse is busy (code {code}); try again. {text}", code)
        if code in _LOGIN_CODES:
            return Broken(
                f"ClickHouse refused the login (code {code}). Check the URL and the password.", code="CLICKHOUSE_LOGIN"
            )
        return ClickHouseError(code, text)
    if isinstance(error, driver.OperationalError | aiohttp.ClientError | OSError | TimeoutError):
        metrics.CH_ERRORS.labels("0").inc()
        return ClickHouseAway(f"ClickHouse does not answer at {place} ({type(error).__name__}); try again.")
    if isinstance(error, driver.DataError | struct.error | UnicodeError | OverflowError):
        return ClickHouseError(0, f"the driver cannot write a value: {type(error).__name__}")
    return error


def _dict(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else dict(values)
