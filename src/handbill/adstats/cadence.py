"""Which days of an ad account are due: today every time, yesterday hourly, the rest of the look-back once a day.

Days are the account's own. Due spans nest, so that one range from the oldest due day to today says it all.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from uuid import UUID

from handbill.adstats.model import Due, Level, SyncJob, SyncState
from handbill.kit.errors import Fault, Invalid

TICK = timedelta(minutes=5)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SLACK = timedelta(seconds=30)
"""A tick comes a little early or late; half a minute must not cost a whole turn."""


@cache
def _zones() -> frozenset[str]:
    """Those that mean the same everywhere: not the machine's own."""
    return frozenset(zoneinfo.available_timezones()) - {"localtime", "posixrules", "Factory"}


def is_zone(name: str) -> bool:
    return name in _zones()


def check_zone(name: str, field: str) -> None:
    if not is_zone(name):
        raise Invalid(f"{name!r} is no time zone we know.", faults=[Fault(field, "an IANA name, like Europe/Paris")])


def today(now: datetime, zone: str) -> date:
    return now.astimezone(zoneinfo.ZoneInfo(zone)).date()


def ends_late(day: date, zone: str) -> bool:
    """Whether a day of this zone ends on the next UTC date, as it does west of Greenwich."""
    end = datetime.combine(day + DAY, time(), zoneinfo.ZoneInfo(zone)).astimezone(UTC)
    return (end - timedelta(microseconds=1)).date() > day


def late_spans(start: date, end: date, zone: str) -> list[tuple[date, date]]:
    """The spans of days from `start` to before `end` that end late; both days of a span belong to it.

    A zone whose offset changes its sign, as that of the Azores, has several in a year.
    """
    spans: list[tuple[date, date]] = []
    for day in days(start, end - DAY):
        if not ends_late(day, zone):
            continue
        if spans and spans[-1][1] == day - DAY:
            spans[-1] = spans[-1][0], day
        else:
            spans.append((day, day))
    return spans


def span(due: Due, now: datetime) -> tuple[date, date] | None:
    """The first and last day to read now; None while even today is fresh, or when the last spend is out of sight."""
    last = today(now, due.time_zone)
    if due.spent_on is not None and due.spent_on < last - due.look_back_days * DAY:
        return None
    if _stale(due.daily_at, now, DAY):
        return last - due.look_back_days * DAY, last
    if _stale(due.hourly_at, now, HOUR):
        return last - DAY, last
    return (last, last) if _stale(due.synced_at, now, TICK) else None


def _stale(at: datetime | None, now: datetime, pace: timedelta) -> bool:
    return at is None or now - at >= pace - SLACK


def depth(first: date, last: date, now: datetime, zone: str, look_back: int) -> tuple[bool, bool, bool]:
    """Whether a span that was read covers today, yesterday too, and the whole look-back."""
    present = today(now, zone)
    if not first <= present <= last:
        return False, False, False
    return True, first <= present - DAY, first <= present - look_back * DAY


def unread(
    span: tuple[date, date], read: SyncState, zone: str, now: datetime, added: datetime
) -> tuple[date, date] | None:
    """What a retried job still has to read of an account: days that were read since it was added wait for their pace.

    A span that does not reach the account's today is not the scheduler's, and stays whole.
    """
    first, last = span
    present = today(now, zone)
    if last < present:
        return span

    def waits(at: datetime | None, pace: timedelta) -> bool:
        return at is not None and at >= added and not _stale(at, now, pace)

    if not waits(read.daily_at, DAY) and first < present - DAY:
        return span
    if not waits(read.hourly_at, HOUR) and first < present:
        return max(first, present - DAY), last
    return None if waits(read.synced_at, TICK) else (max(first, present), last)


def jobs_for(dues: Iterable[Due], now: datetime) -> list[tuple[int, SyncJob]]:
    """One job per seller and level, wide enough for all of the seller's connections."""
    wide: dict[tuple[int, UUID, Level], tuple[date, date]] = {}
    for due in dues:
        found = span(due, now)
        if found is not None:
            key = (due.tenant_id, due.seller, due.level)
            known = wide.get(key, found)
            wide[key] = min(known[0], found[0]), max(known[1], found[1])
    return [(tenant, SyncJob(seller, first, last, level)) for (tenant, seller, level), (first, last) in wide.items()]


def days(first: date, last: date) -> list[date]:
    return [first + number * DAY for number in range((last - first).days + 1)]


def pieces(first: date, last: date, size: int) -> list[tuple[date, date]]:
    """A long range in parts of at most `size` days, newest first: what is asked for most is there soonest."""
    found = []
    while last >= first:
        begin = max(first, last - (size - 1) * DAY)
        found.append((begin, last))
        last = begin - DAY
    return found
