"""Jobs of the queue `banners`: the four names that other programs already send, and the cron that starts two of them.

Recording goes through the journal like every other event, so a job and an HTTP call with one correlation id count once.
Numbers or public ids may name the banner, as the producer likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from handbill.banners import store
from handbill.banners.catalogue import Catalogue, Found, Kind
from handbill.banners.rollup import Rollup
from handbill.banners.schedule import Schedule
from handbill.banners.wire import Timing, timing
from handbill.events.model import Click, Dropped, Event, Impression, Reason
from handbill.events.service import EventsService
from handbill.infra.postgres import Database
from handbill.jobs.model import Job, Unrecoverable
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock

QUEUE = "banners"
RECORD_IMPRESSION = "banner.record_impression"
RECORD_CLICK = "banner.record_click"
SYNC = "banner.sync_schedule_status"
ROLLUP = "banner.rollup_stats"
JOBS = {
    RECORD_IMPRESSION: "Count one impression, as the HTTP route does.",
    RECORD_CLICK: "Count one click, as the HTTP route does.",
    SYNC: "Let the clock move banners and campaigns to scheduled, active, expired or ended.",
    ROLLUP: "Recount one UTC day of every tenant, and set right what differs.",
}

Handler = Callable[[Job, Any], Awaitable[Any]]
Text = Annotated[str, Meta(max_length=2000)]


class RecordPayload(msgspec.Struct, frozen=True):
    """A recorded event as its producer sends it. The correlation id may be left to the job's own id."""

    occurredAt: Annotated[datetime, Meta(tz=True)] | None = None
    correlationId: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    bannerId: int | None = None
    placementId: int | None = None
    campaignId: int | None = None
    bannerPublicId: UUID | None = None
    placementPublicId: UUID | None = None
    campaignPublicId: UUID | None = None
    sessionId: Text | None = None
    userId: Text | None = None
    deviceType: Text | None = None
    countryCode: Text | None = None
    pageUrl: Text | None = None
    referrerUrl: Text | None = None
    destinationUrl: Text | None = None


class SyncPayload(msgspec.Struct, frozen=True):
    correlationId: str = ""


class RollupPayload(msgspec.Struct, frozen=True):
    statDate: date
    correlationId: str = ""


class BannerTasks:
    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        events: EventsService,
        schedule: Schedule,
        rollup: Rollup,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self._database = database
        self._catalogue = catalogue
        self._events = events
        self._schedule = schedule
        self._rollup = rollup
        self._outbox = outbox
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        return {RECORD_IMPRESSION: self.record, RECORD_CLICK: self.record, SYNC: self.sync, ROLLUP: self.roll_up}

    # --- recording

    async def record(self, job: Job, ctx: Any) -> str:
        sent = _payload(job, RecordPayload)
        event_id = sent.correlationId or job.id
        if job.name == RECORD_CLICK and not sent.destinationUrl:
            raise Unrecoverable("a click needs destinationUrl")
        time = timing(sent.occurredAt, self._clock.now_ms(), event_id=event_id)
        banner = await self._number("banner", sent.bannerId, sent.bannerPublicId, None)
        if banner is None:
            raise Unrecoverable(f"{Reason.UNKNOWN_OBJECT}: there is no such banner")
        tenant, number = banner
        placement = await self._number("placement", sent.placementId, sent.placementPublicId, tenant)
        if placement is None:
            kind = "click" if job.name == RECORD_CLICK else "impression"
            dropped = Dropped(tenant, event_id, time.at, time.received, kind, str(Reason.UNKNOWN_OBJECT))
            await self._events.accept([dropped])
            raise Unrecoverable(f"{Reason.UNKNOWN_OBJECT}: there is no such placement")
        campaign = await self._campaign(Found(tenant, number), sent)
        await self._events.accept([_event(job.name, sent, event_id, time, tenant, number, placement, campaign)])
        return "accepted"

    async def _campaign(self, banner: Found, sent: RecordPayload) -> int | None:
        """The one that was sent, if it is the same tenant's; without any, the banner's own."""
        if sent.campaignId is None and sent.campaignPublicId is None:
            shown = await self._catalogue.banner(banner)
            return shown.campaign_id if shown is not None else None
        named = await self._number("campaign", sent.campaignId, sent.campaignPublicId, banner.tenant_id)
        return named[1] if named is not None else None

    async def _number(
        self, kind: Kind, number: int | None, public_id: UUID | None, tenant: int | None
    ) -> tuple[int, int] | None:
        """(tenant, number) of what the payload names, if it exists and is that tenant's."""
        if public_id is not None:
            found = await self._catalogue.find(kind, public_id)
            if found is None or (tenant is not None and found.tenant_id != tenant):
                return None
            return found.tenant_id, found.id
        if number is None or not 0 < number < 2**31:
            return None
        async with self._database.worker() as tx:
            return await store.by_number(tx, kind, number, tenant)

    # --- the clock's work

    async def sync(self, job: Job, ctx: Any) -> dict[str, int]:
        synced = await self._schedule.sync(self._clock.now(), _payload(job, SyncPayload).correlationId)
        return {name: getattr(synced, name) for name in synced.__struct_fields__}

    async def roll_up(self, job: Job, ctx: Any) -> dict[str, int]:
        sent = _payload(job, RollupPayload)
        rolled = await self._rollup.day(sent.statDate, sent.correlationId)
        return {"combinations": sum(item.combinations for item in rolled), "tenants": len(rolled)}

    # --- cron: one job per slot, by its id, however often a slot is announced

    async def announce_sync(self, job: Job, ctx: Any) -> str:
        minute = self._clock.now().strftime("%Y-%m-%dT%H:%M")
        return await self._announce(SYNC, {"correlationId": f"sync-{minute}"}, f"banner-sync-{minute}")

    async def announce_rollup(self, job: Job, ctx: Any) -> str:
        day = (self._clock.now().date() - timedelta(days=1)).isoformat()
        data = {"statDate": day, "correlationId": f"rollup-{day}"}
        return await self._announce(ROLLUP, data, f"banner-rollup-{day}")

    async def _announce(self, name: str, data: dict[str, str], job_id: str) -> str:
        async with self._database.worker() as tx:
            await self._outbox.put(tx, QUEUE, name, data, tenant_id=None, job_id=job_id)
        return job_id


def _payload(job: Job, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(job.data or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Unrecoverable(f"the payload of {job.name} is not valid: {error}") from None


def _event(
    name: str,
    sent: RecordPayload,
    event_id: str,
    time: Timing,
    tenant: int,
    banner: int,
    placement: tuple[int, int],
    campaign: int | None,
) -> Event:
    country = sent.countryCode.upper()[:2] if sent.countryCode else None
    common = (
        tenant, event_id, time.at, time.received, banner, placement[1], campaign, sent.userId, sent.sessionId,
        sent.deviceType, country, sent.pageUrl, (),
    )  # fmt: skip
    if name == RECORD_CLICK:
        return Click(*common, sent.destinationUrl or "", None, time.micros, time.sequence)
    return Impression(*common, sent.referrerUrl, None, time.micros, time.sequence)
