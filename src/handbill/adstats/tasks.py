"""Jobs of the queue `stats-sync`, and the tick that fills it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from handbill.adstats.model import JOB, QUEUE, SyncJob, Written
from handbill.adstats.service import AdstatsService
from handbill.adstats.syncing import Ended, retry_after
from handbill.jobs.model import Job, RetryLater, Unrecoverable
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

__all__ = ["CRON", "JOBS", "QUEUE", "AdstatsTasks"]

JOBS = {JOB: "Read one level of one seller's ad accounts for some days, and write what changed."}
CRON = {
    "cron.adstats": "Put what is due into the queue stats-sync: today every time, yesterday hourly, older days daily.",
    "cron.adstats_retention": "Drop months of raw ad figures that can no longer be restated.",
}
_log = logs.get("adstats")
MOST_DAYS = 94
"""The longest look-back, and what lies between two zones' todays."""
Handler = Callable[[Job, Any], Awaitable[Any]]


class AdstatsTasks:
    def __init__(self, adstats: AdstatsService, clock: Clock) -> None:
        self._adstats = adstats
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        return {JOB: self.sync}

    def cron_handlers(self) -> Mapping[str, Handler]:
        return {"cron.adstats": self.tick, "cron.adstats_retention": self.retention}

    async def tick(self, job: Job, ctx: Any) -> int:
        return (await self._adstats.dispatch.tick()).enqueued

    async def retention(self, job: Job, ctx: Any) -> int:
        return len(await self._adstats.retention())

    async def sync(self, job: Job, ctx: Any) -> dict[str, int]:
        began = self._clock.monotonic()
        sent = self._payload(job)
        tenant = await self._tenant(job, sent)
        try:
            ended = await self._adstats.syncing.run(tenant, sent, self._added(job))
            await self._adstats.meet(tenant, ended.strangers)
            self._judge(ended)
        except (RetryLater, Busy) as later:  # no attempt is used up
            self._failed(job, sent, _words(later), "throttled" if isinstance(later, RetryLater) else "busy")
            raise
        except Exception as error:
            why = _words(error)
            self._failed(job, sent, why, "failed")
            if job.attempts_made + 1 >= job.attempts or isinstance(error, Unrecoverable):
                await self._adstats.syncing.give_up(tenant, sent, why)
            raise
        written = ended.written
        if ended.dead and len(ended.dead) == ended.accounts:  # one line a job: nothing could be read
            self._failed(job, sent, ended.dead[0], "token_dead")
        else:
            self._complete(job, sent, written, began)
        if ended.parts:
            await self._adstats.dispatch.parts(tenant)
        return {"rawInserted": written.raw, "dailyUpserted": written.daily, "sellpageUpserted": written.sellpage}

    def _complete(self, job: Job, sent: SyncJob, written: Written, began: float) -> None:
        metrics.ADSTATS_SYNCS.labels(sent.level, "done").inc()
        _log.info(
            "stats-sync-complete",
            jobId=job.id,
            sellerId=str(sent.sellerId),
            statLevel=sent.level,
            date=sent.dateTo.isoformat(),
            dateFrom=sent.dateFrom.isoformat(),
            rawInserted=written.raw,
            dailyUpserted=written.daily,
            sellpageUpserted=written.sellpage,
            durationMs=round((self._clock.monotonic() - began) * 1000),
        )

    async def _tenant(self, job: Job, sent: SyncJob) -> int:
        """The seller must be who the job belongs to; a job of another program belongs to the seller it names."""
        tenant = await self._adstats.tenant_of(sent.sellerId)
        if tenant is None or (job.tenant_id is not None and job.tenant_id != tenant):
            self._failed(job, sent, "there is no such seller", "failed")
            raise Unrecoverable("there is no such seller")
        return tenant

    def _payload(self, job: Job) -> SyncJob:
        """Other programs write payloads too: one that no sync of ours would have is refused before it takes memory."""
        try:
            sent = msgspec.convert(job.data or {}, SyncJob, strict=False)
        except msgspec.ValidationError as error:
            raise Unrecoverable(f"the payload of {job.name} is not valid: {error}") from None
        if not 0 <= (sent.dateTo - sent.dateFrom).days <= MOST_DAYS:
            why = f"a job is for 1 to {MOST_DAYS + 1} days"
            self._failed(job, sent, why, "failed")
            raise Unrecoverable(why)
        return sent

    def _added(self, job: Job) -> datetime | None:
        """Other programs write this too: a moment that is still to come says nothing."""
        return from_ms(job.timestamp) if 0 < job.timestamp <= self._clock.now_ms() else None

    def _judge(self, ended: Ended) -> None:
        if not ended.trouble:
            return
        later = retry_after(ended.trouble)
        if later is not None:
            raise RetryLater(int(later * 1000), str(ended.trouble[0]))
        raise ended.trouble[0]

    def _failed(self, job: Job, sent: SyncJob, why: str, outcome: str) -> None:
        metrics.ADSTATS_SYNCS.labels(sent.level, outcome).inc()
        _log.error(
            "stats-sync-failed", jobId=job.id, sellerId=str(sent.sellerId), attempt=job.attempts_made + 1, error=why
        )


def _words(error: Exception) -> str:
    """What may be logged and stored: our own errors' words, and of any other error its name."""
    own = type(error).__module__.startswith("handbill.")
    return str(error)[:300] if own else type(error).__name__
