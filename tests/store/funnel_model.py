"""The rules of a funnel for one person, as plain as can be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

Moments = Sequence[tuple[datetime, set[int]]]
"""Time and steps of a person's events, in the order of events."""


def chain(moments: Moments, steps: int, window: timedelta) -> list[datetime]:
    """Try every beginning: the longest, then the first to get there, then the one that began latest."""
    best: list[int] = []
    for begin in (place for place, (_, hits) in enumerate(moments) if 0 in hits):
        tried = [begin]
        for place in range(begin + 1, len(moments)):
            at, hits = moments[place]
            if len(tried) < steps and len(tried) in hits and at - moments[begin][0] <= window:
                tried.append(place)
        as_far = len(tried) == len(best) and tried[-1] <= best[-1]
        if len(tried) > len(best) or (as_far and moments[begin][0] > moments[best[0]][0]):
            best = tried
    return [moments[place][0] for place in best]
