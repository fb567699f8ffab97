"""Ranges of days across changes of a zone: drift against a plain model, in zones with every kind of day."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from handbill.adstats import pipeline, store
from handbill.adstats.model import Figures, RawStatRow
from handbill.adstats.store import Source
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.adstats import FakeClock, a_shop, service

DAY = timedelta(days=1)
RANGES = {
    "Atlantic/Azores": (date(2026, 3, 26), date(2026, 4, 1)),  # 23 hours, and the offset goes from -1 to 0
    "Africa/Casablanca": (date(2026, 2, 13), date(2026, 2, 18)),  # the offset goes from 1 to 0 and stays there
    "America/Los_Angeles": (date(2025, 10, 31), date(2025, 11, 5)),  # 25 hours
    "Australia/Lord_Howe": (date(2026, 4, 3), date(2026, 4, 8)),  # half an hour
    "Asia/Beirut": (date(2026, 3, 27), date(2026, 3, 31)),  # midnight itself is left out
}
Values = list[tuple[datetime, int]]
"""What the platform answered about one day: when, and its spend."""


def end_of(day: date, zone: str) -> datetime:
    """The first moment of the next day there, by walking through UTC a quarter of an hour at a time."""
    moment = datetime.combine(day, time(), UTC) - timedelta(hours=15)
    while moment.astimezone(ZoneInfo(zone)).date() <= day:
        moment += timedelta(minutes=15)
    return moment


def expected(answers: Values, ended: datetime) -> tuple[int, int, int, date, date]:
    """Of one day: spend when it was over, spend now, number of UTC days with a change since, the first and the last."""
    changes: Values = []
    for at, spend in answers:
        if not changes or changes[-1][1] != spend:
            changes.append((at, spend))
    by_date = {at.date(): spend for at, spend in changes}
    last_utc = (ended - timedelta(microseconds=1)).date()
    whole = max((at for at in by_date if at <= last_utc), default=min(by_date))
    later = sorted(at for at in by_date if at >= whole)
    return by_date[whole], by_date[later[-1]], len(later), later[0], later[-1]


@pytest.mark.parametrize("zone", RANGES)
async def test_drift_of_a_range_across_a_change_of_the_zone_is_that_of_a_plain_model(
    database: Database, redis: Redis, tenant: int, zone: str
) -> None:
    rng = random.Random(zone)
    first, end = RANGES[zone]
    days = [first + number * DAY for number in range((end - first).days)]
    clock = FakeClock(end_of(end, zone) + 3 * DAY)
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),), zone=zone)
    campaign = shop.entities[0].entity_id
    answers: dict[date, Values] = {day: [] for day in days}
    moments = [
        (end_of(day, zone) + hours * timedelta(hours=1), day) for day in days for hours in (-20, -3, -1, 0, 2, 30)
    ]
    moments += [(end_of(day, zone) + rng.randrange(-20, 60) * timedelta(hours=1), day) for day in days]
    async with database.worker() as tx:
        for month in {moment.date().replace(day=1) for moment, _ in moments}:
            await store.make_month(tx, month)
    for number, (moment, day) in enumerate(sorted(moments)):
        spend = rng.randrange(1, 4)
        answers[day].append((moment, spend))
        row = RawStatRow(campaign, "x", day, Figures(Decimal(spend), 1))
        source = Source(tenant, shop.accounts[0], "CAMPAIGN", "USD", UUID(int=number + 1), moment)
        async with database.worker() as tx:
            await pipeline.write(tx, source, [row], pipeline.DayRules("CUMULATIVE", "latest"))
    for start in days:
        found = await adstats.reading.drift(tenant, start, end, "CAMPAIGN")
        got = {one.day: (int(one.first_spend), int(one.spend), one.beliefs, one.first_on, one.last_on) for one in found}
        assert got == {day: expected(answers[day], end_of(day, zone)) for day in days if day >= start}
