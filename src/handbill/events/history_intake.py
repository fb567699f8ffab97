"""Which events of history are not taken: those that are stored already, and those that would be deleted at once.

PostgreSQL keeps an event's key for 36 days from its arrival. Beyond that the event itself is its key: ClickHouse has
the key of every row, by month, and drops it with the row. So intake asks ClickHouse for each event of history that is
old enough for its first copy's key to be gone. All younger copies meet in PostgreSQL, as those of live events do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from handbill.events.history import is_past
from handbill.events.model import HORIZON_DAYS, Counted, Row, key
from handbill.events.reasons import Reason
from handbill.events.shipping_insert import Classes
from handbill.events.shipping_present import DAY_MS, present
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import Busy

MARGIN_MS = DAY_MS
"""An export and a client may say times of one event that differ by the correction of the client's clock."""
CHECKED_FROM_MS = (HORIZON_DAYS - 2) * DAY_MS
"""A key goes after 36 days, an event may be a day ahead of its arrival, and its copy differ from it by the margin."""
_NO_TABLE = frozenset({60, 81})
_LIMITS = {"max_execution_time": 20}
_AT_ONCE = 2
_WAITING = 16


class HistoryIntake:
    """`classes`: for how many days each tenant's events are kept; handed in by the wiring."""

    def __init__(self, clickhouse: ClickHouse, classes: Classes, clock: Clock) -> None:
        self._clickhouse = clickhouse
        self._classes = classes
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def refusals(self, tenant_id: int, events: Sequence[Counted]) -> Mapping[int, Reason]:
        """The places of those events of this tenant's history that are not taken, and why.

        Raises Busy while ClickHouse does not answer: nobody can say then whether they are there.
        """
        days = (await self._classes([tenant_id])).get(tenant_id, 0)
        now = self._clock.now()
        refused = {
            place: Reason.PAST_RETENTION for place, event in enumerate(events) if is_past(from_ms(event.at), days, now)
        }
        asked = [
            Row(place, key(event.kind, event.id), event, b"")
            for place, event in enumerate(events)
            if event.at < event.received - CHECKED_FROM_MS and place not in refused
        ]
        if asked:
            stored = await self._stored(asked)
            refused |= {row.place: Reason.DUPLICATE for row in asked if (tenant_id, row.key) in stored}
        return refused

    async def _stored(self, rows: Sequence[Row]) -> set[tuple[int, bytes]]:
        async with self._slot():
            try:
                return await present(self._clickhouse, rows, margin_ms=MARGIN_MS, settings=_LIMITS)
            except ClickHouseError as error:
                if error.code in _NO_TABLE:  # nothing was ever stored
                    return set()
                raise Busy(
                    f"ClickHouse cannot say what is stored (code {error.code}).", code="CLICKHOUSE_BUSY"
                ) from error

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._waiting >= _WAITING:
            raise Busy(
                "Too much history at once; nothing of this request was kept, send it again.",
                code="HISTORY_BUSY",
                retry_after=5.0,
            )
        self._waiting += 1
        try:
            async with self._slots:
                yield
        finally:
            self._waiting -= 1
