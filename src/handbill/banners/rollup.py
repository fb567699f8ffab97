"""Recount a day from its raw rows, and set right what the live stats have wrong.

The recount overwrites: running it twice, or after a crash in the middle, gives the same figures. It is applied as a
difference between two sums of one snapshot, so events that arrive meanwhile are neither lost nor doubled, and nobody
has to stop for it. A day whose raw rows retention has dropped is never touched again (RAW_GONE).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from handbill.banners import suspicion
from handbill.banners.tally import APART, FIGURES
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

S = sqlfiles.load("handbill.banners")
_log = logs.get("rollup")
BATCH = 100
PATIENCE_S = 900.0
"""A day of many millions of rows may take minutes to recount; nobody waits for it."""
RAW_GONE = "RAW_GONE"


class Rolled(msgspec.Struct, frozen=True):
    """What one day's recount found. `corrected` rows differed from the recount; 0 is what the live stats promise."""

    tenant_id: int
    day: date
    combinations: int
    corrected: int
    skipped: str | None = None


class Difference(msgspec.Struct, frozen=True):
    """Recount minus live, of one stats row."""

    banner_id: int
    placement_id: int | None
    campaign_id: int | None
    bucket: datetime
    lane: int
    figures: list[int]


class Rollup:
    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

    async def day(self, day: date, correlation_id: str) -> list[Rolled]:
        """Every tenant's day. Tenants come one after the other, each in its own transaction."""
        async with self._database.worker() as tx:
            tenants = [(row["tenant_id"], row["raw_gone"]) for row in await tx.fetch(S.days_with_events, day)]
        if not tenants:
            _log.info("Banner stats rollup skipped no_data", statDate=day.isoformat(), correlationId=correlation_id)
            return []
        rolled = [await self.tenant_day(tenant, day) for tenant, _ in tenants]
        _log.info(
            "Banner stats rollup complete",
            statDate=day.isoformat(),
            combinations=sum(item.combinations for item in rolled),
            corrected=sum(item.corrected for item in rolled),
            tenants=len(rolled),
            correlationId=correlation_id,
        )
        return rolled

    async def tenant_day(self, tenant: int, day: date) -> Rolled:
        start, end = _bounds(day)
        async with self._database.worker() as tx:
            await tx.patient(PATIENCE_S)
            await tx.execute(S.lock_day, tenant, day)
            wrong = await self._differences(tx, tenant, start, end)
            # Asked second: having read the partitions we hold them, and one that went before us left its mark.
            if await self._raw_gone(tx, tenant, day):
                return Rolled(tenant, day, 0, 0, RAW_GONE)
            for at in range(0, len(wrong), BATCH):
                await _correct(tx, tenant, wrong[at : at + BATCH])
            await tx.execute(S.forget_empty_stats, tenant, start, end)
            await suspicion.judge(tx, tenant, start, end + suspicion.REACH)
            combinations = int(await tx.fetchval(S.combinations, tenant, start, end))
            await tx.execute(S.day_rolled, tenant, day, combinations)
        if wrong:
            metrics.STATS_CORRECTED.inc(len(wrong))
            _log.warning("stats-corrected", tenant=tenant, day=day.isoformat(), rows=len(wrong))
        return Rolled(tenant, day, combinations, len(wrong))

    async def dirty(self, *, rest: timedelta = timedelta(minutes=2), most: int = 100) -> list[Rolled]:
        """Roll up again the past days that late events touched, once they have been quiet for a moment."""
        async with self._database.worker() as tx:
            days = [(row["tenant_id"], row["day"]) for row in await tx.fetch(S.dirty_days, rest, most)]
        return [await self.tenant_day(tenant, day) for tenant, day in days]

    async def audit(self, sample: int = 5, *, days: int = 7) -> int:
        """Compare a few days with their recount and change nothing; the number of wrong rows is what it tells."""
        oldest = self._clock.now().date() - timedelta(days=days)
        async with self._database.worker() as tx:
            chosen = [(row["tenant_id"], row["day"]) for row in await tx.fetch(S.sample_days, oldest, sample)]
        wrong_rows = 0
        for tenant, day in chosen:
            start, end = _bounds(day)
            async with self._database.worker() as tx:
                await tx.patient(PATIENCE_S)
                wrong = await self._differences(tx, tenant, start, end)
                detail = msgspec.json.encode(wrong[:20]).decode()
                await tx.execute(S.write_audit_result, self._ids.new(), tenant, day, len(wrong), detail)
            wrong_rows += len(wrong)
            if wrong:
                metrics.STATS_AUDIT_WRONG.inc(len(wrong))
                _log.error("stats-audit-wrong", tenant=tenant, day=day.isoformat(), rows=len(wrong))
        return wrong_rows

    async def stale_days(self) -> int:
        """How many days lie between now and the oldest day that should have been rolled up and was not."""
        today = self._clock.now().date()
        async with self._database.worker() as tx:
            oldest: date | None = await tx.fetchval(S.oldest_unrolled, today - timedelta(days=1))
        days = (today - oldest).days - 1 if oldest is not None else 0
        metrics.ROLLUP_STALE_DAYS.set(days)
        return days

    async def _raw_gone(self, tx: Tx, tenant: int, day: date) -> bool:
        rows = await tx.fetch(S.days_state, tenant, day, day + timedelta(days=1))
        return bool(rows) and rows[0]["raw_gone_at"] is not None

    async def _differences(self, tx: Tx, tenant: int, start: datetime, end: datetime) -> list[Difference]:
        rows = await tx.fetch(S.differences, tenant, start, end, sorted(APART))
        return [_difference(row) for row in rows]


def _difference(row: Any) -> Difference:
    return Difference(
        row["banner_id"],
        row["placement_id"],
        row["campaign_id"],
        row["bucket"],
        row["lane"],
        [row[name] for name in FIGURES],
    )


async def _correct(tx: Tx, tenant: int, rows: Sequence[Difference]) -> None:
    await tx.execute(
        S.correct_stats,
        tenant,
        [row.bucket for row in rows],
        [row.banner_id for row in rows],
        [row.placement_id for row in rows],
        [row.campaign_id for row in rows],
        [row.lane for row in rows],
        *([row.figures[at] for row in rows] for at in range(len(FIGURES))),
    )


def _bounds(day: date) -> tuple[datetime, datetime]:
    start = datetime.combine(day, time(), UTC)
    return start, start + timedelta(days=1)
