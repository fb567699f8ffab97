"""What one batch says about people's hours: which events are somebody's own doing, and their counts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from handbill.active_hours.model import COUNT_MAX, QUARTERS, Activity, quarter_of, week_of
from handbill.events.model import PAST, PERSONLESS, CapturedEvent, Row
from handbill.kit.agents import is_bot
from handbill.kit.zones import find_zone

Key = tuple[int, str, int]
"""Tenant, distinct id, week."""

_PLATFORMS = ("dotnet", "elixir", "go", "java", "node", "php", "python", "ruby", "rust")
_SERVER_LIBRARIES = frozenset(
    prefix + platform for prefix in ("posthog-", "analytics-", "rudder-sdk-", "handbill-") for platform in _PLATFORMS
)


def is_own_doing(event: CapturedEvent) -> bool:
    """Whether the moment of an event says when its person is active: no history, no crawler, no server's job."""
    if not PAST.isdisjoint(event.marks) or PERSONLESS in event.marks:
        return False
    if event.lib is not None and event.lib.lower() in _SERVER_LIBRARIES:
        return False
    return not (event.user_agent and is_bot(event.user_agent))


def gather(rows: Iterable[Row], learns: Callable[[int], bool]) -> dict[Key, Activity]:
    """By tenant, id and week, in the order in which every batch writes."""
    events: dict[Key, list[tuple[CapturedEvent, bytes]]] = {}
    for row in rows:
        event = row.event
        if type(event) is CapturedEvent and learns(event.tenant) and is_own_doing(event):
            events.setdefault((event.tenant, event.distinct_id, week_of(event.at)), []).append((event, row.key))
    return {key: _activity(key[2], events[key]) for key in sorted(events)}


def _activity(week: int, events: list[tuple[CapturedEvent, bytes]]) -> Activity:
    counts = [0] * QUARTERS
    for event, _ in events:
        quarter = quarter_of(event.at)
        counts[quarter] = min(counts[quarter] + 1, COUNT_MAX)
    times = [event.at for event, _ in events]
    zones = [
        (event.at, key, event.timezone)
        for event, key in events
        if event.timezone and find_zone(event.timezone) is not None
    ]
    zone_ms, zone_key, zone = max(zones) if zones else (0, b"", None)
    return Activity(week, counts, min(times), max(times), zone, zone_ms, zone_key)
