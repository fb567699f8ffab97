"""From counts by week and quarter of an hour to the hours in which a person is active. Pure, and in whole numbers.

Counts are kept in UTC, so that they can be added in any order; they become the person's own hours when the profile is
made, with the offset that the person's zone had in the middle of each week. So a change of the clock moves the counts
of one week by up to an hour, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, timedelta

import msgspec

from handbill.kit.clock import from_ms
from handbill.kit.zones import find_zone

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
WEEK_MS = 7 * 24 * HOUR_MS
QUARTER_MS = 15 * MINUTE_MS
HOURS = 24
QUARTERS = 96
WEEKS = 10
"""Weeks that count, from the person's newest one back: the oldest still has 4 % of the newest one's weight."""
MIN_EVENTS = 20
MIN_SPAN_MS = WEEK_MS
COUNT_MAX = 32_767
"""No quarter of an hour of a week counts more: what is beyond it is no person."""

AVERAGE = 100
"""The level of an hour as busy as the person's average hour."""
DEFAULT_LEVEL = 50
LEVEL_MIN, LEVEL_MAX = 10, AVERAGE
"""An hour is open from a level on. The best hour is at least average, so that some hour is open for every level."""
NOT_LEARNT = 256
"""The level of every hour where nothing is learnt: above all that a profile can say, so that every rule passes."""
ALWAYS_OPEN = 2
"""Hours on each side of the best hour that are open, too. Five hours in a row: a clock that is put forward or back (by
three hours at most, in Antarctica) never hides all of them, nor closes the rest for more than 24 hours."""

_HALF_LIFE_WEEKS = 2
_WEIGHTS = tuple(round(1_024 * 2 ** (-age / _HALF_LIFE_WEEKS)) for age in range(WEEKS))
_PRIOR = 512
"""Half an event in each hour before anything is known: one week's luck makes no hour a quiet one."""


class Activity(msgspec.Struct, frozen=True):
    """One week of one id: events by quarter of the day in UTC, the first and the last, and the newest zone named."""

    week: int
    counts: Sequence[int]
    first_ms: int
    last_ms: int
    zone: str | None = None
    zone_ms: int = 0
    zone_key: bytes = b""


class Profile(msgspec.Struct, frozen=True, array_like=True):
    """What decisions know of a person's hours. `levels` has a byte for each hour of the day in the zone, or nothing
    while too little is known: then `events` and `days` say how much."""

    levels: bytes
    zone: str
    events: int = 0
    days: int = 0


def week_of(at_ms: int) -> int:
    return at_ms // WEEK_MS


def quarter_of(at_ms: int) -> int:
    return at_ms // QUARTER_MS % QUARTERS


def profile_of(activities: Iterable[Activity], tenant_zone: str) -> Profile | None:
    """The profile of a person by what all their ids did, in whatever order; None where nothing was counted."""
    rows = list(activities)
    if not rows:
        return None
    newest = max(row.week for row in rows)
    rows = [row for row in rows if row.week > newest - WEEKS]
    events = sum(sum(row.counts) for row in rows)
    span_ms = max(row.last_ms for row in rows) - min(row.first_ms for row in rows)
    zone = max(((row.zone_ms, row.zone_key, row.zone) for row in rows if row.zone), default=(0, b"", tenant_zone))[2]
    learnt = events >= MIN_EVENTS and span_ms >= MIN_SPAN_MS
    levels = levels_of(_by_hour(rows, zone, newest)) if learnt else b""
    return Profile(levels, zone, min(events, COUNT_MAX), min(span_ms // (24 * HOUR_MS), WEEKS * 7))


def levels_of(weighted: Sequence[int]) -> bytes:
    """How busy each hour is with its two neighbours, in percent of an average hour; the best and those beside it are
    never below it. `weighted` are counts in 1,024ths."""
    smooth = [weighted[hour - 1] + weighted[hour] + weighted[(hour + 1) % HOURS] + 3 * _PRIOR for hour in range(HOURS)]
    total = sum(smooth)
    levels = [min(255, AVERAGE * HOURS * each // total) for each in smooth]
    best = max(range(HOURS), key=lambda hour: (smooth[hour], weighted[hour], -hour))
    for hour in range(best - ALWAYS_OPEN, best + ALWAYS_OPEN + 1):
        levels[hour % HOURS] = max(levels[hour % HOURS], AVERAGE)
    return bytes(levels)


def level_at(profile: Profile | None, now_ms: int) -> int:
    """How busy the hour of this moment is where the person is."""
    return level_of(profile, hour_at(profile.zone, now_ms)) if profile is not None else NOT_LEARNT


def level_of(profile: Profile, hour: int) -> int:
    return profile.levels[hour] if len(profile.levels) == HOURS else NOT_LEARNT


def is_peak(level: int) -> bool:
    """Whether the person is known to be at least as active as on average."""
    return AVERAGE <= level < NOT_LEARNT


def hour_at(zone: str, now_ms: int) -> int:
    return from_ms(now_ms).astimezone(find_zone(zone) or UTC).hour


def next_open(profile: Profile, at_least: int, now_ms: int) -> int:
    """When the next open hour begins, or `now_ms` in one: at most 24 hours later."""
    if level_at(profile, now_ms) >= at_least:
        return now_ms
    first = now_ms - now_ms % QUARTER_MS
    moments = range(first + QUARTER_MS, first + 25 * HOUR_MS, QUARTER_MS)
    return next(moment for moment in moments if level_at(profile, moment) >= at_least)


def open_hours(levels: bytes, at_least: int) -> str:
    """The open hours in words: `07:00-09:00 and 18:00-23:00`."""
    is_open = [level >= at_least for level in levels]
    if all(is_open):
        return "00:00-24:00"
    starts = [hour for hour in range(HOURS) if is_open[hour] and not is_open[hour - 1]]
    spans = []
    for start in starts:
        end = next(hour for hour in range(start + 1, start + HOURS + 1) if not is_open[hour % HOURS])
        spans.append(f"{start:02}:00-{end % HOURS:02}:00")
    return " and ".join(spans)


def _by_hour(rows: Iterable[Activity], zone: str, newest: int) -> list[int]:
    hours = [0] * HOURS
    here = find_zone(zone) or UTC
    for row in rows:
        offset = from_ms(row.week * WEEK_MS + WEEK_MS // 2).astimezone(here).utcoffset() or timedelta()
        shift = round(offset.total_seconds() * 1_000 / QUARTER_MS)
        weight, cut = _WEIGHTS[newest - row.week], -shift % QUARTERS
        local = [*row.counts[cut:], *row.counts[:cut]]
        for hour in range(HOURS):
            hours[hour] += sum(local[4 * hour : 4 * hour + 4]) * weight
    return hours
