"""Banners' place in the pipeline's transaction: raw rows of impressions and clicks, live stats of everything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date

from handbill.banners.tally import bucket_time, tally
from handbill.events.model import BannerEvent, CapturedEvent, Click, Event, Impression, Row
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import from_ms

S = sqlfiles.load("handbill.banners")

_COMMON = (
    "tenant_id", "event_key", "correlation_id", "banner_id", "placement_id", "campaign_id", "session_id", "user_id",
    "device_type", "country_code", "page_url", "occurred_at", "received_at", "lane", "marks",
)  # fmt: skip
_IMPRESSIONS = (*_COMMON, "referrer_url", "variant")
_CLICKS = (*_COMMON, "destination_url", "variant")
_DAY_MS = 86_400_000
_KNOWN_S = 60.0
_FIRST_DAY = date(1970, 1, 1).toordinal()
_TABLES: dict[type[Event], str] = {Impression: "banners.banner_impressions", Click: "banners.banner_clicks"}


class BannerSink:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._months: set[tuple[str, date]] = set()
        self._known_until = 0.0

    async def prepare(self, rows: Sequence[Row]) -> None:
        """The month of every row exists before the transaction begins."""
        if time.monotonic() > self._known_until:  # retention may drop a month that an import of history wants again
            self._months.clear()
            self._known_until = time.monotonic() + _KNOWN_S
        days: set[tuple[str, int]] = set()
        for row in rows:
            table = _TABLES.get(type(row.event))
            if table is not None:
                days.add((table, row.event.at // _DAY_MS))
        wanted = {(table, _day(number).replace(day=1)) for table, number in days}
        for table, month in sorted(wanted - self._months):
            async with self._database.worker() as tx:
                await tx.execute(S.make_month, table, month)
            self._months.add((table, month))

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        impressions: list[tuple[object, ...]] = []
        clicks: list[tuple[object, ...]] = []
        events: list[BannerEvent] = []
        for row in rows:
            event = row.event
            if type(event) is Impression:
                impressions.append((*_common(row, event, lane), event.referrer, event.variant))
            elif type(event) is Click:
                clicks.append((*_common(row, event, lane), event.destination, event.variant))
            if type(event) is not CapturedEvent:
                events.append(event)
        if impressions:
            await tx.copy_records("banners.banner_impressions", _IMPRESSIONS, impressions)
        if clicks:
            await tx.copy_records("banners.banner_clicks", _CLICKS, clicks)
        await _count(tx, events, lane)

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        """Banners keeps nothing in Redis."""


def _common(row: Row, event: BannerEvent, lane: int) -> tuple[object, ...]:
    return (
        event.tenant, row.key, event.id, event.banner, event.placement, event.campaign, event.session, event.user,
        event.device, event.country, event.page, from_ms(event.at), from_ms(event.received), lane, list(event.marks),
    )  # fmt: skip


async def _count(tx: Tx, events: Sequence[BannerEvent], lane: int) -> None:
    """Stats and days, in the order of their keys, so that lanes never wait for each other in a circle."""
    if not events:
        return
    counts = sorted(tally(events).items(), key=lambda item: tuple(-1 if part is None else part for part in item[0]))
    if counts:
        columns = list(zip(*(key for key, _ in counts), strict=True))
        figures = zip(*(row for _, row in counts), strict=True)
        await tx.execute(
            S.add_stats,
            columns[0], [bucket_time(bucket) for bucket in columns[1]], *columns[2:5], lane, *figures,
        )  # fmt: skip
    days = sorted({(event.tenant, event.at // _DAY_MS) for event in events})
    await tx.execute(S.touch_days, [tenant for tenant, _ in days], [_day(number) for _, number in days])


def _day(number: int) -> date:
    """The day by its number since 1970: a batch has many events and few days."""
    return date.fromordinal(_FIRST_DAY + number)
