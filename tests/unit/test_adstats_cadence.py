"""When a day is due, and how a long range is cut; the ids that jobs go by; cells of a CSV."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from handbill.adstats import cadence, table
from handbill.adstats.model import Due, SyncJob
from handbill.adstats.providers.mock import visible
from handbill.jobs import wire
from handbill.jobs.backoff import delay_ms
from handbill.jobs.defaults import defaults_of
from handbill.kit.telemetry import metrics

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SELLER = UUID("a1b2c3d4-0000-4000-8000-000000000001")


def a_due(zone: str = "UTC", look_back: int = 28, **times: datetime | None) -> Due:
    known: dict[str, datetime | None] = {"synced_at": None, "hourly_at": None, "daily_at": None, **times}
    return Due(1, SELLER, UUID(int=1), "CAMPAIGN", zone, look_back, **known)


def test_today_every_tick_yesterday_hourly_older_daily() -> None:
    minute, today = timedelta(minutes=1), date(2026, 3, 1)
    fresh: dict[str, Any] = {
        "synced_at": NOW - 4 * minute,
        "hourly_at": NOW - 30 * minute,
        "daily_at": NOW - 600 * minute,
    }
    assert cadence.span(a_due(), NOW) == (date(2026, 2, 1), today)
    assert cadence.span(a_due(**fresh), NOW) is None
    assert cadence.span(a_due(**{**fresh, "synced_at": NOW - 5 * minute}), NOW) == (today, today)
    assert cadence.span(a_due(**{**fresh, "hourly_at": NOW - 60 * minute}), NOW) == (date(2026, 2, 28), today)
    assert cadence.span(a_due(**{**fresh, "daily_at": NOW - 1440 * minute}), NOW) == (date(2026, 2, 1), today)


def test_a_day_is_the_accounts_own_and_a_seller_has_one_job_per_level() -> None:
    late = NOW.replace(hour=23)
    one, other = a_due(look_back=3), a_due("Asia/Tokyo", look_back=3)
    assert cadence.span(other, late) == (date(2026, 2, 27), date(2026, 3, 2))
    jobs = cadence.jobs_for([one, other], late)
    assert jobs == [(1, SyncJob(SELLER, date(2026, 2, 26), date(2026, 3, 2), "CAMPAIGN"))]


def test_a_sync_says_how_deep_it_went() -> None:
    today = date(2026, 3, 1)
    day = timedelta(days=1)
    assert cadence.depth(today, today, NOW, "UTC", 3) == (True, False, False)
    assert cadence.depth(today - day, today, NOW, "UTC", 3) == (True, True, False)
    assert cadence.depth(today - 3 * day, today, NOW, "UTC", 3) == (True, True, True)
    assert cadence.depth(today - 9 * day, today - day, NOW, "UTC", 3) == (False, False, False)


@given(st.dates(date(2024, 1, 1), date(2026, 1, 1)), st.integers(0, 800), st.integers(1, 40))
def test_pieces_cover_every_day_once(first: date, length: int, size: int) -> None:
    last = first + timedelta(days=length)
    pieces = cadence.pieces(first, last, size)
    assert sorted(day for piece in pieces for day in cadence.days(*piece)) == cadence.days(first, last)
    assert all((piece[1] - piece[0]).days < size for piece in pieces)


def test_ids_keep_their_colons_here_and_lose_them_on_the_wire() -> None:
    job = SyncJob(SELLER, date(2026, 2, 19), date(2026, 2, 19), "CAMPAIGN")
    assert job.job_id == f"sync:{SELLER}:2026-02-19:2026-02-19:CAMPAIGN"
    assert ":" not in wire.to_wire(job.job_id)
    assert wire.from_wire(wire.to_wire(job.job_id)) == job.job_id


def test_four_attempts_after_one_five_and_fifteen_minutes() -> None:
    given_ = defaults_of("stats-sync")
    assert (given_.attempts, given_.concurrency) == (4, 5)
    assert [delay_ms(given_.backoff, attempt) for attempt in (1, 2, 3)] == [60_000, 300_000, 900_000]


def test_no_metric_tells_of_a_seller() -> None:
    own = [one for name, one in vars(metrics).items() if name.startswith("ADSTATS_")]
    assert len(own) == 5
    assert {label for one in own for label in one._labelnames} == {"level", "outcome", "stage", "provider"}


def test_no_cell_is_a_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@sum(A1)", "\t=1", "\r=1"):
        assert table.cell(text) == f"'{text}"
    assert table.cell(Decimal("-1.50")) == "-1.50"
    assert [table.cell(value) for value in ("plain", None, 3, date(2026, 3, 1))] == ["plain", "", "3", "2026-03-01"]


ZONES = ("UTC", "Atlantic/Azores", "Africa/Casablanca", "America/Los_Angeles", "Asia/Beirut", "Africa/Cairo",
         "Pacific/Kiritimati", "America/Havana", "Australia/Lord_Howe", "America/Nuuk", "Asia/Kathmandu")  # fmt: skip


def last_minute(day: date, zone: str) -> datetime:
    """The plain model: walk through UTC and see where the day of the zone ends."""
    place = zoneinfo.ZoneInfo(zone)
    begin = datetime.combine(day, time(), UTC) - timedelta(hours=16)
    minutes = [begin + timedelta(minutes=number) for number in range(0, 72 * 60, 15)]
    return max(minute for minute in minutes if minute.astimezone(place).date() == day)


@given(st.sampled_from(ZONES), st.dates(date(2020, 1, 1), date(2036, 12, 31)))
def test_a_day_ends_on_the_utc_date_of_its_last_minute(zone: str, day: date) -> None:
    assert cadence.ends_late(day, zone) == (last_minute(day, zone).date() > day)


def test_a_day_ends_where_it_should_around_every_change_of_a_zone() -> None:
    for zone in ZONES:
        place = zoneinfo.ZoneInfo(zone)
        first = datetime(2024, 1, 1, tzinfo=UTC)
        hours = [(first + timedelta(hours=number)) for number in range(3 * 366 * 24)]
        offsets = [hour.astimezone(place).utcoffset() for hour in hours]
        changes = [hour.date() for hour, one, two in zip(hours, offsets, offsets[1:], strict=False) if one != two]
        for day in {change + timedelta(days=number) for change in changes for number in (-1, 0, 1)}:
            assert cadence.ends_late(day, zone) == (last_minute(day, zone).date() > day), (zone, day)


@given(st.sampled_from(ZONES), st.dates(date(2024, 1, 1), date(2026, 12, 31)), st.integers(1, 500))
def test_spans_hold_the_days_that_end_late_and_no_others(zone: str, start: date, length: int) -> None:
    end = start + timedelta(days=length)
    spans = cadence.late_spans(start, end, zone)
    held = [day for span in spans for day in cadence.days(*span)]
    assert held == [day for day in cadence.days(start, end)[:-1] if cadence.ends_late(day, zone)]
    assert len(spans) <= 4


def test_the_azores_end_their_days_late_in_winter_only() -> None:
    spans = cadence.late_spans(date(2026, 1, 1), date(2027, 1, 1), "Atlantic/Azores")
    assert spans == [(date(2026, 1, 1), date(2026, 3, 28)), (date(2026, 10, 25), date(2026, 12, 31))]


@given(st.sampled_from(ZONES), st.dates(date(2024, 1, 1), date(2027, 12, 31)), st.integers(-3_000, 3_000))
def test_the_mock_shows_the_part_of_a_day_that_is_over_there(zone: str, day: date, minutes: int) -> None:
    """Days of 23, 24, 25 and 24.5 hours: of one unit a minute, as many are seen as minutes have passed."""
    place = zoneinfo.ZoneInfo(zone)
    first = datetime.combine(day, time(), UTC) - timedelta(hours=20)
    now = datetime.combine(day, time(12), UTC) + timedelta(minutes=minutes)
    own = [
        minute
        for minute in (first + timedelta(minutes=number) for number in range(60 * 60))
        if minute.astimezone(place).date() == day
    ]
    assert visible([len(own), *[0] * 7], day, now, zone)[0] == sum(minute < now for minute in own)
