"""Asking the event store: with limits on time, memory and rows, one place per question, ended when the asker leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.infra.clickhouse.client import ClickHouseBusy
from handbill.insights.compile import Compiled
from handbill.insights.query_limiter import QueryLimiter, QueryLimits
from handbill.kit.errors import Invalid
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
    disk_bytes: int = 4 << 30
    rows_read: int = 500_000_000
    rows_answered: int = 200_000
    queries: QueryLimits = QueryLimits()


class EventStoreReader:
    def __init__(self, clickhouse: ClickHouse, bounds: Bounds) -> None:
        self._clickhouse = clickhouse
        self._bounds = bounds
        self.limiter = QueryLimiter(bounds.queries)

    async def ask(self, question: Compiled, *, again: bool = True) -> list[tuple[Any, ...]]:
        """All rows. When the asking task is cancelled the connection closes, and the engine ends the query with it."""
        try:
            settings = self._settings(self._bounds.seconds, question)
            return await self._clickhouse.query(question.sql, question.params, settings, again=again)
        except (ClickHouseError, ClickHouseBusy) as error:
            raise _told(error) from error

    async def stream(self, question: Compiled) -> AsyncGenerator[list[tuple[Any, ...]], None]:
        """Block by block, for exports."""
        settings = {**self._settings(self._bounds.export_seconds, question), "max_block_size": _BLOCK_ROWS}
        try:
            async with aclosing(self._clickhouse.stream(question.sql, question.params, settings)) as blocks:  # type: ignore[type-var]
                async for block in blocks:
                    yield block
        except (ClickHouseError, ClickHouseBusy) as error:
            raise _told(error) from error

    def _settings(self, seconds: int, question: Compiled) -> dict[str, Any]:
        bounds = self._bounds
        # As many rows as a tenant has people are joined on disk beyond a part of the memory.
        on_disk = {"join_algorithm": "grace_hash", "max_bytes_in_join": bounds.memory_bytes // 6}
        return {
            **(on_disk if question.joins_people else {}),
            "max_execution_time": seconds,
            "max_memory_usage": bounds.memory_bytes,
            # What is grouped or sorted waits on disk beyond a third of the memory: the rest is for what is done with it
            # afterwards.
            "max_bytes_before_external_group_by": bounds.memory_bytes // 3,
            "max_bytes_before_external_sort": bounds.memory_bytes // 3,
            "max_bytes_ratio_before_external_sort": 0,
            "max_temporary_data_on_disk_size_for_query": bounds.disk_bytes,
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
