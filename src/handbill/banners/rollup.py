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
from handbill.infra.postgres import Database, PostgresStopped, Tx
from handbill.kit import bounds, task_health
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics
from handbill.kit.tenant_rounds import TenantRounds

S = sqlfiles.load("handbill.banners")
_log = logs.get("rollup")
BATCH = 100
PARTS = (timedelta(days=2), timedelta(hours=6), timedelta(hours=1), timedelta(minutes=15))
"""How much one transaction recounts: a day with the marks of the day after, or less where that takes too long. Live
stats are kept by quarters of an hour, so no part may be smaller."""
AUDIT_S = 600.0
UNFINISHED = "UNFINISHED"
RAW_GONE = "RAW_GONE"


class RecountPolicy(msgspec.Struct, frozen=True):
    """How long one statement of a recount may take, and one day's turn before other days and tenants have theirs."""

    statement_s: float = 60.0
    turn_s: float = 120.0


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


class Recount(msgspec.Struct):
    """One day's recount under way: what is done, and how long a part of it may be."""

    began: datetime
    part: timedelta
    place: datetime
    """Everything before it is recounted."""
    corrected: int = 0


class Rollup:
    """Recounts days, one part after the other where a day is too large for one statement."""

    def __init__(self, database: Database, clock: Clock, ids: Ids, policy: RecountPolicy | None = None) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._policy = policy or RecountPolicy()
        self._parts: dict[int, timedelta] = {}
        """Tenants whose whole day took too long, and the part that is tried first since."""
        self._open: LruCache[tuple[int, date], Recount] = LruCache(bounds.OPEN_RECOUNTS)
        """A day that is dropped from here begins again with its first part."""
        limit = self._policy.turn_s + 3 * self._policy.statement_s  # the part under way when the turn ends may halve
        self._nightly: TenantRounds[int] = TenantRounds("rollup", timeout_s=limit, clock=clock)
        self._audited: TenantRounds[tuple[int, date]] = TenantRounds("stats-audit", timeout_s=AUDIT_S, clock=clock)
        self._dirty: TenantRounds[tuple[int, date]] = TenantRounds("rollup-dirty", timeout_s=limit, clock=clock)

    async def day(self, day: date, correlation_id: str) -> list[Rolled]:
        """Every tenant's day. Tenants come one after the other; what does not end is left to `dirty`."""
        async with self._database.worker() as tx:
            tenants = [row["tenant_id"] for row in await tx.fetch(S.days_with_events, day)]
            began = await tx.fetchval(S.now)
        if not tenants:
            _log.info("Banner stats rollup skipped no_data", statDate=day.isoformat(), correlationId=correlation_id)
            return []
        results = await self._nightly.for_each_tenant(tenants, lambda tenant_id: self.tenant_day(tenant_id, day))
        rolled = [item for item in results.values() if item.skipped != UNFINISHED]
        for tenant_id in sorted(set(tenants) - {item.tenant_id for item in rolled}):
            async with self._database.worker() as tx:
                await tx.execute(S.leave_day_dirty, tenant_id, day, began)
        _log.info(
            "Banner stats rollup complete",
            statDate=day.isoformat(),
            combinations=sum(item.combinations for item in rolled),
            corrected=sum(item.corrected for item in rolled),
            tenants=len(rolled),
            correlationId=correlation_id,
        )
        return rolled

    async def dirty(self, *, rest: timedelta = timedelta(minutes=2), most: int = 100) -> list[Rolled]:
        """Roll up again the past days that late events touched, once they have been quiet for a moment."""
        paused = sorted(self._dirty.paused())
        async with self._database.worker() as tx:
            rows = await tx.fetch(S.dirty_days, rest, most, [each[0] for each in paused], [each[1] for each in paused])
        days: list[tuple[int, date]] = [(row["tenant_id"], row["day"]) for row in rows]
        results = await self._dirty.for_each_tenant(days, lambda each: self.tenant_day(*each))
        return [item for item in results.values() if item.skipped != UNFINISHED]

    async def tenant_day(self, tenant: int, day: date) -> Rolled:
        """Recount one day, for as long as a turn lasts; the next call goes on where this one ended (UNFINISHED).

        A part whose statement reaches its time limit is tried again in smaller parts; the smallest raises.
        """
        start, end = _bounds(day)
        until = self._clock.monotonic() + self._policy.turn_s
        recount = self._open.pop((tenant, day), None) or await self._begin(tenant, start)
        first = recount.place
        while recount.place < end + suspicion.REACH:
            if recount.place > first and self._clock.monotonic() >= until:
                self._open[(tenant, day)] = recount
                return Rolled(tenant, day, 0, recount.corrected, UNFINISHED)
            task_health.heartbeat()
            try:
                is_there = await self._recount_part(tenant, day, recount)
            except BaseException:
                self._open[(tenant, day)] = recount
                raise
            if not is_there:
                return Rolled(tenant, day, 0, 0, RAW_GONE)
        async with self._database.worker() as tx:
            combinations = int(await tx.fetchval(S.combinations, tenant, start, end))
            await tx.execute(S.day_rolled, tenant, day, combinations, recount.began)
        if recount.corrected:
            metrics.STATS_CORRECTED.inc(recount.corrected)
            _log.warning("stats-corrected", tenant=tenant, day=day.isoformat(), rows=recount.corrected)
        return Rolled(tenant, day, combinations, recount.corrected)

    async def _begin(self, tenant: int, start: datetime) -> Recount:
        async with self._database.worker() as tx:
            return Recount(await tx.fetchval(S.now), self._parts.get(tenant, PARTS[0]), start)

    async def _recount_part(self, tenant: int, day: date, recount: Recount) -> bool:
        """Recount the next part, or halve the parts if it takes too long. False when its raw rows are gone."""
        try:
            corrected = await self._recount(tenant, day, recount.place, recount.place + recount.part)
        except PostgresStopped as error:
            if not self._split(tenant, recount.part, error):
                raise
            recount.part = self._parts[tenant]
            return True
        if corrected is None:
            return False
        recount.place += recount.part
        recount.corrected += corrected
        return True

    async def _recount(self, tenant: int, day: date, since: datetime, until: datetime) -> int | None:
        """Set the stats and marks of one part right, in one transaction; None when raw rows of the day are gone.

        Marks of the day after may rest on rows of this day, so parts go on until there; stats end with the day.
        """
        _, end = _bounds(day)
        async with self._database.worker() as tx:
            await tx.patient(self._policy.statement_s)
            await tx.execute(S.lock_day, tenant, day)
            wrong = await self._differences(tx, tenant, since, min(until, end)) if since < end else []
            # Asked second: having read the partitions we hold them, and one that went before us left its mark.
            if await self._raw_gone(tx, tenant, day):
                return None
            for at in range(0, len(wrong), BATCH):
                await _correct(tx, tenant, wrong[at : at + BATCH])
            if since < end:
                await tx.execute(S.forget_empty_stats, tenant, since, min(until, end))
            await suspicion.judge(tx, tenant, since, until)
        return len(wrong)

    async def audit(self, sample: int = 5, *, days: int = 7) -> int:
        """Compare a few days with their recount and change nothing; the number of wrong rows is what it tells."""
        oldest = self._clock.now().date() - timedelta(days=days)
        async with self._database.worker() as tx:
            rows = await tx.fetch(S.sample_days, oldest, sample)
        chosen: list[tuple[int, date]] = [(row["tenant_id"], row["day"]) for row in rows]
        return sum((await self._audited.for_each_tenant(chosen, lambda each: self._audit_day(*each))).values())

    async def _audit_day(self, tenant: int, day: date) -> int:
        start, end = _bounds(day)
        part = min(self._parts.get(tenant, PARTS[0]), end - start)
        wrong: list[Difference] = []
        try:
            for number in range((end - start) // part):
                task_health.heartbeat()
                async with self._database.worker() as tx:
                    await tx.patient(self._policy.statement_s)
                    since = start + number * part
                    wrong += await self._differences(tx, tenant, since, since + part)
        except PostgresStopped as error:
            self._split(tenant, part, error)  # the next audit of this tenant takes smaller parts
            raise
        async with self._database.worker() as tx:
            detail = msgspec.json.encode(wrong[:20]).decode()
            await tx.execute(S.write_audit_result, self._ids.new(), tenant, day, len(wrong), detail)
        if wrong:
            metrics.STATS_AUDIT_WRONG.inc(len(wrong))
            _log.error("stats-audit-wrong", tenant=tenant, day=day.isoformat(), rows=len(wrong))
        return len(wrong)

    def _split(self, tenant: int, part: timedelta, error: PostgresStopped) -> bool:
        """From now on recount this tenant in smaller parts; False if that is not the trouble, or not possible."""
        smaller = next((each for each in PARTS if each < part), None)
        if smaller is None or not error.is_time_limit:
            return False
        self._parts[tenant] = smaller
        _log.warning("rollup.day_split", tenant_id=tenant, part=str(smaller))
        return True

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
