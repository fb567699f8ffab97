"""Asking the event store: with limits on time, memory and rows, one place per question, ended when the asker leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.infra.clickhouse.client import ClickHouseBusy
from handbill.insights.compile import Compiled
from handbill.kit.errors import Invalid, Throttled
from handbill.kit.telemetry import metrics

# Too many rows or bytes to read, to keep or to answer with; too long; too much memory; too large a statement.
_HEAVY = frozenset({158, 159, 160, 168, 191, 241, 307, 396})
_BLOCK_ROWS = 200
"""Of an export: a block is in memory whole, and the properties of one event may have 220 KiB."""
_NO_TABLE = frozenset({60, 81})


class Bounds(msgspec.Struct, frozen=True):
    """What one question may cost, and how many a tenant and this process may ask at once."""

    seconds: int = 20
    export_seconds: int = 300
    memory_bytes: int = 1 << 30
    rows_read: int = 500_000_000
    rows_answered: int = 200_000
    running: int = 4
    waiting: int = 16
    patience_s: float = 10.0


class Gate:
    """At most `running` questions of a tenant at once; a few more wait a little, the rest are sent away."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._places: dict[int, asyncio.Semaphore] = {}
        self._inside: Counter[int] = Counter()

    @asynccontextmanager
    async def place(self, tenant: int) -> AsyncIterator[None]:
        if self._inside[tenant] >= self._bounds.running + self._bounds.waiting:
            raise self._busy()
        self._inside[tenant] += 1
        places = self._places.setdefault(tenant, asyncio.Semaphore(self._bounds.running))
        try:
            try:
                await asyncio.wait_for(places.acquire(), self._bounds.patience_s)
            except TimeoutError:
                raise self._busy() from None
            try:
                yield
            finally:
                places.release()
        finally:
            self._inside[tenant] -= 1
            if not self._inside[tenant]:
                del self._inside[tenant], self._places[tenant]

    def inside(self, tenant: int) -> int:
        return self._inside[tenant]

    def _busy(self) -> Throttled:
        metrics.INSIGHTS_REFUSED.labels("busy").inc()
        return Throttled(
            f"{self._bounds.running} questions of yours are being answered and others wait; ask again shortly.",
            code="INSIGHTS_BUSY",
            retry_after=2.0,
        )


class EventStoreReader:
    def __init__(self, clickhouse: ClickHouse, bounds: Bounds) -> None:
        self._clickhouse = clickhouse
        self._bounds = bounds
        self.gate = Gate(bounds)

    async def ask(self, question: Compiled, *, again: bool = True) -> list[tuple[Any, ...]]:
        """All rows. When the asking task is cancelled the connection closes, and the engine ends the query with it."""
        try:
            settings = self._settings(self._bounds.seconds)
            return await self._clickhouse.query(question.sql, question.params, settings, again=again)
        except (ClickHouseError, ClickHouseBusy) as error:
            raise _told(error) from error

    async def stream(self, question: Compiled) -> AsyncGenerator[list[tuple[Any, ...]], None]:
        """Block by block, for exports."""
        settings = {**self._settings(self._bounds.export_seconds), "max_block_size": _BLOCK_ROWS}
        try:
            async with aclosing(self._clickhouse.stream(question.sql, question.params, settings)) as blocks:  # type: ignore[type-var]
                async for block in blocks:
                    yield block
        except (ClickHouseError, ClickHouseBusy) as error:
            raise _told(error) from error

    def _settings(self, seconds: int) -> dict[str, Any]:
        bounds = self._bounds
        return {
            "max_execution_time": seconds,
            "max_memory_usage": bounds.memory_bytes,
            "max_rows_to_read": bounds.rows_read,
            "max_result_rows": bounds.rows_answered,
            "result_overflow_mode": "throw",
            "cancel_http_readonly_queries_on_client_close": 1,
        }


def _told(error: ClickHouseError | ClickHouseBusy) -> Exception:
    """What a question cost too much is the asker's to mend; all else stays what it was."""
    code = error.code if isinstance(error, ClickHouseError) else getattr(error.__cause__, "code", None)
    if code in _NO_TABLE:
        return ClickHouseBusy("ClickHouse has no tables yet: they are made with the first events.", code)
    if code not in _HEAVY:
        return error
    metrics.INSIGHTS_REFUSED.labels("heavy").inc()
    return Invalid(
        "The question reads or keeps too much; ask for a shorter range, fewer groups or a narrower filter.",
        code="INSIGHT_TOO_HEAVY",
    )
