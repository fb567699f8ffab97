"""From events to counts, purely: the same sum whatever order, split or repetition the rows come in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from handbill.events.model import BannerEvent, Click, Impression, View

BUCKET_MS = 15 * 60 * 1000
APART = frozenset({"bot"})
"""Marks whose events are kept but counted apart. Other marks are only told."""

StatKey = tuple[int, int, int, int | None, int | None]
"""(tenant, bucket in ms, banner, placement, campaign)"""

FIGURES = (
    "impressions", "clicks", "views", "dismissals", "marked_impressions", "marked_clicks", "marked_views",
)  # fmt: skip
_AT = {name: place for place, name in enumerate(FIGURES)}


def bucket_of(at_ms: int) -> int:
    return at_ms - at_ms % BUCKET_MS


def bucket_time(bucket: int) -> datetime:
    return datetime.fromtimestamp(bucket // 1000, UTC)


def tally(events: Iterable[BannerEvent]) -> dict[StatKey, list[int]]:
    """Counts per key, in the order of FIGURES. A view that does not count is stored and adds nothing here."""
    counts: dict[StatKey, list[int]] = {}
    for event in events:
        figures = figures_of(event)
        if not figures:
            continue
        key = (event.tenant, bucket_of(event.at), event.banner, event.placement, event.campaign)
        row = counts.get(key)
        if row is None:
            row = counts[key] = [0] * len(FIGURES)
        for name in figures:
            row[_AT[name]] += 1
    return counts


def figures_of(event: BannerEvent) -> tuple[str, ...]:
    """The figures one event adds to."""
    apart = not APART.isdisjoint(event.marks)
    if type(event) is Impression:
        return ("marked_impressions",) if apart else ("impressions",)
    if type(event) is Click:
        return ("marked_clicks",) if apart else ("clicks",)
    assert isinstance(event, View)
    if not event.counted:
        return ()
    if apart:
        return ("marked_views",)
    return ("views", "dismissals") if event.dismissed else ("views",)
