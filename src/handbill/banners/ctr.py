"""Clicks by impressions, and how far chance alone may have moved it."""

from __future__ import annotations

from math import sqrt

_Z = 1.959963984540054
"""Of the normal distribution: 95 % lies within so many standard deviations."""


def ctr(impressions: int, clicks: int) -> float | None:
    return round(clicks / impressions, 6) if impressions else None


def wilson(impressions: int, clicks: int) -> tuple[float | None, float | None]:
    """The 95 % Wilson score interval of clicks by impressions, within [0, 1]; none without impressions.

    More clicks than impressions (one impression, clicked twice) are no share of them: the interval is then that of as
    many clicks as impressions.
    """
    if impressions <= 0:
        return None, None
    share = min(max(clicks, 0) / impressions, 1.0)
    spread = _Z * _Z / impressions
    middle = (share + spread / 2) / (1 + spread)
    half = _Z * sqrt(share * (1 - share) / impressions + spread / (4 * impressions)) / (1 + spread)
    low = 0.0 if share == 0.0 else max(0.0, middle - half)
    high = 1.0 if share == 1.0 else min(1.0, middle + half)
    return round(low, 6), round(high, 6)
