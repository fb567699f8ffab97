"""Cutting a range of days into hours, days, weeks and months of a zone: the moments at which each begins.

The cuts are made here and not by the event store: the zone's rules are then the same everywhere, a day with a change of
the clock has its 23 or 25 hours, and a period without events is known to be there.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, date, datetime, time, timedelta

from handbill.insights.model import MOST_DAYS, MOST_POINTS, Interval
from handbill.kit.errors import Fault, Invalid
from handbill.kit.zones import find_zone

EARLIEST = date(1971, 1, 1)
LATEST = date(2200, 1, 1)
_HOUR = timedelta(hours=1)


def zone_named(name: str) -> zoneinfo.ZoneInfo:
    zone = find_zone(name)
    if zone is None:
        raise Invalid("`zone` is no time zone.", faults=[Fault("zone", "must be a name such as Europe/Paris")])
    return zone


def check_range(start: date, end: date, most_days: int = MOST_DAYS) -> None:
    if not EARLIEST <= start < end <= LATEST or (end - start).days > most_days:
        raise Invalid(
            "The range is empty or too long.",
            faults=[Fault("to", f"must be 1 to {most_days} days after from, both from {EARLIEST} to {LATEST}")],
        )


def midnight(day: date, zone: zoneinfo.ZoneInfo) -> datetime:
    """The first moment of a day, also where the clock skips midnight or has it twice."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def cuts(start: date, end: date, interval: Interval, zone: zoneinfo.ZoneInfo) -> list[datetime]:
    """The beginnings of all intervals in [start, end), the first one at `start` itself."""
    if interval == "hour":
        found = _hours(midnight(start, zone), midnight(end, zone), zone)
    else:
        days = [start + timedelta(days=number) for number in range((end - start).days)]
        found = [midnight(day, zone) for day in days if day == start or _begins(day, interval)]
    found = _ascending(found)
    if len(found) > MOST_POINTS:
        raise Invalid(
            f"More than {MOST_POINTS} points; ask for a shorter range or a coarser interval.",
            faults=[Fault("interval", f"gives {len(found)} points, more than {MOST_POINTS}")],
        )
    return found


def milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _begins(day: date, interval: Interval) -> bool:
    if interval == "week":
        return day.weekday() == 0
    return interval == "day" or day.day == 1


def _hours(start: datetime, end: datetime, zone: zoneinfo.ZoneInfo) -> list[datetime]:
    """Wall-clock hours. Where a zone shifts by half an hour, the hour at the seam is longer, never misaligned."""
    found, here = [], start
    while here < end:
        found.append(here)
        here += _HOUR
        past = here.astimezone(zone).minute
        if past:
            here += timedelta(minutes=60 - past)
    return found


def _ascending(moments: list[datetime]) -> list[datetime]:
    """A zone may leave out a whole day (Samoa, 2011): its beginning is the next day's."""
    found: list[datetime] = []
    for moment in moments:
        if not found or moment > found[-1]:
            found.append(moment)
    return found
