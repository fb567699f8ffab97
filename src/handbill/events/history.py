"""How long ClickHouse keeps events: a month of a retention class goes whole, when its last day is past its time."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

Q = sqlfiles.queries("handbill.events")
_log = logs.get("history")
_PARTITION = re.compile(r"^\((\d+),(\d{4})(\d{2})\)$")


class History:
    """`squash` follows, once a night: it may say how many ids it squashed."""

    def __init__(
        self, clickhouse: ClickHouse, clock: Clock, squash: Callable[[], Awaitable[int]] | None = None
    ) -> None:
        self._clickhouse = clickhouse
        self._clock = clock
        self._squash = squash

    async def run(self) -> list[str]:
        """Drop what is past its time, then squash; the names of what was dropped. Nothing while ClickHouse is away.

        In this order: a squash that waits or fails must never keep anything beyond its time.
        """
        try:
            gone = await self.drop(self._clock.now())
        except Busy as error:
            _log.warning("history-waits", reason=error.code)
            return []
        if self._squash is not None:
            try:
                await self._squash()
            except Busy as error:
                _log.warning("squash-waits", reason=error.code)
        return gone

    async def drop(self, now: datetime) -> list[str]:
        rows = await self._clickhouse.query(Q.partitions.text)
        gone = [str(partition) for (partition,) in rows if expired(str(partition), now)]
        for partition in gone:
            await self._clickhouse.command(Q.drop_partition.text.replace("<<partition>>", partition))
        metrics.PARTITIONS_DROPPED.inc(len(gone))
        if gone:
            _log.info("history-dropped", partitions=gone)
        return gone


def expired(partition: str, now: datetime) -> bool:
    """`(days,YYYYMM)`: has the last day of the month been kept for so many days? Days 0: never."""
    found = _PARTITION.match(partition)
    return found is not None and is_past(datetime(int(found[2]), int(found[3]), 1, tzinfo=UTC), int(found[1]), now)


def is_past(at: datetime, days: int, now: datetime) -> bool:
    """Has the last day of this time's month been kept for so many days? Days 0: never."""
    if not days:
        return False
    month = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (month.replace(day=28) + timedelta(days=4)).replace(day=1)
    return end + timedelta(days=days) <= now
