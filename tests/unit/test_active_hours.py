"""From counts to active hours: thresholds, zones, and that no banner is closed for more than 24 hours."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handbill.active_hours.gather import gather, is_own_doing
from handbill.active_hours.model import (
    AVERAGE,
    COUNT_MAX,
    HOUR_MS,
    LEVEL_MAX,
    LEVEL_MIN,
    NOT_LEARNT,
    QUARTERS,
    WEEK_MS,
    WEEKS,
    Activity,
    Profile,
    hour_at,
    is_peak,
    level_at,
    levels_of,
    next_open,
    open_hours,
    profile_of,
    quarter_of,
    week_of,
)
from handbill.banners.targeting.nodes import Leaf
from handbill.banners.targeting.reader import faults_of, read
from handbill.events.model import CapturedEvent, Row, key
from handbill.kit.clock import to_ms
from handbill.kit.errors import Fault

MONDAY = to_ms(datetime(2026, 3, 2, tzinfo=UTC))
ZONES = sorted(available_timezones() - {"Factory", "localtime"})
DAY_MS = 24 * HOUR_MS
MS = timedelta(milliseconds=1)


def event(at: int, who: str = "ann", number: int = 0, **fields: object) -> Row:
    name = f"{who}-{at}-{number}"
    made = CapturedEvent(1, name, at, at, "seen", who, "own", **fields)  # type: ignore[arg-type]
    return Row(number, key("capture", name), made, b"")


def learnt(times: list[int], zone: str | None = None, tenant_zone: str = "UTC") -> Profile | None:
    rows = [event(at, number=number, timezone=zone) for number, at in enumerate(times)]
    return profile_of(gather(rows, lambda tenant: True).values(), tenant_zone)


# --- what is learnt


@pytest.mark.parametrize(
    ("events", "span", "is_learnt"),
    [
        (19, timedelta(days=10), False),
        (20, timedelta(days=6, hours=23), False),
        (20, timedelta(days=7) - timedelta(milliseconds=1), False),
        (20, timedelta(days=7), True),
        (500, timedelta(days=6), False),
    ],
)
def test_it_needs_20_events_over_7_days(events: int, span: timedelta, is_learnt: bool) -> None:
    last = MONDAY + span // timedelta(milliseconds=1)
    profile = learnt([MONDAY] * (events - 1) + [last])
    assert profile is not None
    assert bool(profile.levels) is is_learnt
    assert (profile.events, profile.days) == (events, span.days)
    assert (level_at(profile, MONDAY) == NOT_LEARNT) is not is_learnt


def test_nothing_is_a_profile_of_nobody() -> None:
    assert learnt([]) is None
    assert level_at(None, MONDAY) == NOT_LEARNT
    assert not is_peak(NOT_LEARNT)


@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        ("UTC", 14), ("Asia/Kathmandu", 20), ("Asia/Kolkata", 19), ("America/St_Johns", 11), ("Pacific/Chatham", 3),
        ("Pacific/Kiritimati", 4), ("Europe/Amsterdam", 16),
    ],
)  # fmt: skip
def test_hours_are_those_of_the_persons_zone(zone: str, hour: int) -> None:
    """14:20 in UTC is 20:05 in Kathmandu, 19:50 in Kolkata: another hour than whole hours of UTC would give."""
    june = to_ms(datetime(2026, 6, 1, tzinfo=UTC))
    times = [june + day * DAY_MS + 14 * HOUR_MS + 20 * 60_000 for day in range(25)]
    profile = learnt(times, zone)
    assert profile is not None
    assert profile.zone == zone
    assert max(range(24), key=lambda each: profile.levels[each]) in ((hour - 1) % 24, hour)
    assert {profile.levels[(hour + step) % 24] for step in (-1, 0, 1)} == {max(profile.levels)}
    assert is_peak(level_at(profile, times[-1]))


def test_the_newest_zone_counts_and_a_name_that_is_none_does_not() -> None:
    rows = [event(MONDAY + number * DAY_MS, number=number) for number in range(25)]
    zones = {3: "Asia/Tokyo", 9: "Europe/Paris", 12: "Mars/Olympus", 4: "../../etc/passwd"}
    rows = [event(row.event.at, number=row.place, timezone=zones.get(row.place)) for row in rows]
    for order in (rows, rows[::-1]):
        profile = profile_of(gather(order, lambda tenant: True).values(), "America/Lima")
        assert profile is not None
        assert profile.zone == "Europe/Paris"
    nowhere = learnt([MONDAY + number * DAY_MS for number in range(25)], None, "America/Lima")
    assert nowhere is not None
    assert nowhere.zone == "America/Lima"


def test_the_clock_goes_forward_and_the_hours_stay() -> None:
    """20:10 in Amsterdam each day, over the night to 29 March: the counts before and after are the same hour."""
    zone = ZoneInfo("Europe/Amsterdam")
    times = [to_ms(datetime(2026, 3, 9, 20, 10, tzinfo=zone) + timedelta(days=day)) for day in range(40)]
    profile = learnt(times, "Europe/Amsterdam")
    assert profile is not None
    assert sorted(range(24), key=lambda hour: -profile.levels[hour])[:3] == [19, 20, 21]
    assert profile.levels[22] == AVERAGE, "two hours beside the best are open by rule, not by counts"


@pytest.mark.parametrize(
    "fields",
    [
        {"marks": ("imported",)}, {"marks": ("historical",)}, {"lib": "posthog-python"}, {"lib": "analytics-node"},
        {"user_agent": "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"},
    ],
)  # fmt: skip
def test_history_servers_and_crawlers_do_not_count(fields: dict[str, Any]) -> None:
    row = event(MONDAY, **fields)
    assert type(row.event) is CapturedEvent
    assert not is_own_doing(row.event)
    assert gather([row], lambda tenant: True) == {}
    assert gather([event(MONDAY, lib="posthog-js")], lambda tenant: False) == {}
    assert len(gather([event(MONDAY, lib="posthog-js")], lambda tenant: True)) == 1


def test_old_weeks_do_not_count_and_newer_ones_count_more() -> None:
    old = [MONDAY + day * DAY_MS + 8 * HOUR_MS for day in range(28)]
    new = [at + 28 * DAY_MS + 12 * HOUR_MS for at in old]
    profile = learnt(old + new)
    assert profile is not None
    assert profile.levels[20] > 1.5 * profile.levels[8] > AVERAGE
    late = learnt(old + [at + (WEEKS + 1) * WEEK_MS for at in new])
    alone = learnt([at + (WEEKS + 1) * WEEK_MS for at in new])
    assert late == alone


times = st.lists(st.integers(MONDAY - 8 * WEEK_MS, MONDAY + 4 * WEEK_MS), min_size=1, max_size=60)


@given(times, st.randoms(use_true_random=False), st.sampled_from([None, "Asia/Kathmandu", "Europe/Lisbon"]))
def test_no_order_and_no_split_changes_a_profile(some: list[int], chance: random.Random, zone: str | None) -> None:
    rows = [event(at, number=number, timezone=zone) for number, at in enumerate(some)]
    whole = gather(rows, lambda tenant: True)
    shuffled = rows[:]
    chance.shuffle(shuffled)
    cut = chance.randint(0, len(rows))
    parts = [gather(part, lambda tenant: True) for part in (shuffled[:cut], shuffled[cut:])]
    assert gather(shuffled, lambda tenant: True) == whole
    apart = [activity for part in parts for activity in part.values()]
    assert profile_of(apart, "UTC") == profile_of(whole.values(), "UTC")


def test_a_count_has_a_limit() -> None:
    counts = [COUNT_MAX] * QUARTERS
    profile = profile_of([Activity(week_of(MONDAY), counts, MONDAY, MONDAY + WEEK_MS)] * 3, "UTC")
    assert profile is not None
    assert profile.events == COUNT_MAX
    assert set(profile.levels) == {AVERAGE}, "every hour alike"


# --- never closed for more than 24 hours

counters = st.lists(st.one_of(st.just(0), st.integers(0, 200), st.integers(0, 10**9)), min_size=24, max_size=24)
moments = st.integers(to_ms(datetime(2000, 1, 1, tzinfo=UTC)), to_ms(datetime(2037, 1, 1, tzinfo=UTC)))
CASEY = to_ms(datetime(2009, 10, 17, 18, tzinfo=UTC))  # the clock was put forward by three hours
AUTUMN = to_ms(datetime(2026, 10, 25, 2, tzinfo=UTC))


@given(counters, st.sampled_from(ZONES), moments, st.integers(LEVEL_MIN, LEVEL_MAX))
@example([0, 9, 0] + [0] * 21, "Antarctica/Casey", CASEY - 12 * HOUR_MS, 100)
@example([0, 0, 9] + [0] * 21, "Europe/Amsterdam", AUTUMN, 100)
@example([0, 0, 9] + [0] * 21, "Antarctica/Troll", to_ms(datetime(2026, 3, 28, 6, tzinfo=UTC)), 100)
def test_some_hour_is_open_within_24_hours_of_any_moment(hours: list[int], zone: str, now: int, at_least: int) -> None:
    profile = Profile(levels_of([each * 1_024 for each in hours]), zone)
    later = next_open(profile, at_least, now)
    assert 0 <= later - now <= DAY_MS
    assert level_at(profile, later) >= at_least


def test_the_largest_changes_of_a_clock_since_2000_leave_some_hour_open() -> None:
    """Every zone that moved its clock by more than an hour at once, with every best hour."""
    jumps = {}
    for zone in ZONES:
        here, start = ZoneInfo(zone), datetime(2000, 1, 1, tzinfo=UTC)
        offsets = [(start + timedelta(days=30 * step)).astimezone(here).utcoffset() for step in range(450)]
        for step, (before, after) in enumerate(pairwise(offsets)):
            if before is not None and after is not None and HOUR_MS < abs((after - before) / MS) < 20 * HOUR_MS:
                at = start + timedelta(days=30 * step)
                while at.astimezone(here).utcoffset() == before:
                    at += timedelta(hours=1)
                jumps[at, after - before] = zone
    assert len(jumps) > 5
    for (at, by), zone in jumps.items():
        quarters = range(to_ms(at) - 2 * DAY_MS, to_ms(at) + 2 * DAY_MS, HOUR_MS // 4)
        seen = [hour_at(zone, moment) for moment in quarters]
        for best in range(24):
            levels = levels_of([9_999 * 1_024 if hour == best else 0 for hour in range(24)])
            closed = longest = 0
            for hour in seen:
                closed = 0 if levels[hour] >= LEVEL_MAX else closed + 1
                longest = max(longest, closed)
            assert longest <= 96, (zone, at, by, best)


@given(counters)
def test_at_least_five_hours_in_a_row_are_open_at_every_level(hours: list[int]) -> None:
    levels = levels_of([each * 1_024 for each in hours])
    runs = [all(levels[(start + step) % 24] >= LEVEL_MAX for step in range(5)) for start in range(24)]
    assert any(runs)


def test_hours_in_words() -> None:
    levels = bytes([100] * 1 + [0] * 6 + [60] * 2 + [0] * 9 + [200] * 6)
    assert open_hours(levels, 50) == "07:00-09:00 and 18:00-01:00"
    assert open_hours(levels, 100) == "18:00-01:00"
    assert open_hours(bytes([100] * 24), 50) == "00:00-24:00"
    assert hour_at("Asia/Kathmandu", MONDAY) == 5
    assert quarter_of(MONDAY + 3 * HOUR_MS) == 12


# --- the rule


def test_the_rule_reads_levels_and_passes_who_is_not_known() -> None:
    rule = read({"active_hours": True}, "x")
    assert type(rule) is Leaf
    assert [rule.holds({"active_hours": level}) for level in (0, 49, 50, 255, NOT_LEARNT)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    strict = read({"active_hours": {"at_least": 100}}, "x")
    assert [strict.holds({"active_hours": level}) for level in (99, 100, NOT_LEARNT)] == [False, True, True]


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ({"active_hours": False}, "active_hours"),
        ({"active_hours": 1}, "active_hours"),
        ({"active_hours": {"at_least": 101}}, "active_hours.at_least"),
        ({"active_hours": {"at_least": 9}}, "active_hours.at_least"),
        ({"active_hours": {"at_least": True}}, "active_hours.at_least"),
        ({"active_hours": {"share": 50}}, "active_hours"),
        ({"not": {"active_hours": True}}, "not.active_hours"),
        ({"not": {"any": [{"active_hours": True}, {"not": {"active_hours": True}}]}}, "not.any[0].active_hours"),
    ],
)
def test_a_faulty_rule_is_refused_by_its_place(rule: dict[str, object], place: str) -> None:
    faults: list[Fault] = faults_of(rule, "")
    assert faults[0].field == place
