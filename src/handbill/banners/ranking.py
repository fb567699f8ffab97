"""Which of the banners that may be shown goes first: a list of criteria, most important first.

priority    higher first                      ctr         clicks per impression so far, higher first
weight      drawn, in proportion to weights   revenue     what a view is worth, higher first
recency     newer first                       least_seen  what this user saw least often first
active_hour in the hours in which this user is active, what a view is worth, higher first; in others nothing

Same banners, same user, same clock and same seed: same order. Banners that nothing tells apart stand in order of
their ids, newest last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from handbill.banners.model import Banner, Criterion

DEFAULT: tuple[Criterion, ...] = ("priority", "recency")
LIVELY: frozenset[str] = frozenset({"weight", "ctr", "least_seen", "active_hour"})
"""Criteria that a request or the last minutes decide; the others are settled when the catalogue is loaded."""

_PRIOR_CLICKS, _PRIOR_IMPRESSIONS = 1, 50
"""A banner without a history stands at 2 %: new ones get their chance, and one lucky click is no 100 %."""
_GOLDEN = 0x9E3779B97F4A7C15
_64 = (1 << 64) - 1

_SETTLED: dict[str, Callable[[Banner], float]] = {
    "priority": lambda banner: -banner.priority,
    "revenue": lambda banner: -banner.revenue,
    "recency": lambda banner: -banner.created_at.timestamp(),
}


def settled_order(banners: Sequence[Banner], ranking: Sequence[Criterion]) -> list[Banner]:
    """By the criteria before the first lively one, then by id."""
    return sorted(banners, key=lambda banner: (*_settled(banner, _head(ranking)), banner.id))


def ctr(impressions: int, clicks: int) -> float:
    return (clicks + _PRIOR_CLICKS) / (impressions + _PRIOR_IMPRESSIONS)


def drawn(seed: int, number: int, weight: int) -> float:
    """When this one would ring, each at a rate of its weight: the first to ring wins in proportion to the weights."""
    mixed = (seed + number * _GOLDEN) & _64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _64
    chance = ((mixed ^ (mixed >> 31)) >> 11) + 1
    return -math.log(chance / (1 << 53)) / weight


class Order:
    """One ranking over the banners of a snapshot, by their bits."""

    __slots__ = ("_banners", "_groups", "_tail", "ranking", "settled")

    def __init__(self, banners: Sequence[Banner], ranking: Sequence[Criterion]) -> None:
        self.ranking = tuple(ranking) or DEFAULT
        self._banners = banners
        head = _head(self.ranking)
        self._tail = self.ranking[len(head) :]
        keys = [_settled(banner, head) for banner in banners]
        places = {key: place for place, key in enumerate(sorted(set(keys)))}
        self._groups = [places[key] for key in keys]
        self.settled = not self._tail and self._groups == sorted(self._groups)
        """The bits already stand in this order: they need no sorting."""

    def sorted(
        self, bits: Sequence[int], seed: int, rates: Mapping[int, float], seen: Callable[[int], int], *, peak: bool
    ) -> Sequence[int]:
        """These bits, best first. `seen` says how often the user saw the banner of a bit; `peak`, whether the user is
        known to be active in this hour of the day."""
        if self.settled:
            return bits
        if not self._tail:
            return sorted(bits, key=self._groups.__getitem__)
        return sorted(bits, key=lambda bit: self._key(bit, seed, rates, seen, peak))

    def _key(
        self, bit: int, seed: int, rates: Mapping[int, float], seen: Callable[[int], int], peak: bool
    ) -> tuple[float, ...]:
        banner = self._banners[bit]
        key: list[float] = [self._groups[bit]]
        for name in self._tail:
            if name == "weight":
                key.append(drawn(seed, banner.id, banner.weight))
            elif name == "ctr":
                key.append(-rates.get(banner.id, _PRIOR_CLICKS / _PRIOR_IMPRESSIONS))
            elif name == "least_seen":
                key.append(seen(bit))
            elif name == "active_hour":
                key.append(-banner.revenue if peak else 0)
            else:
                key.append(_SETTLED[name](banner))
        key.append(banner.id)
        return tuple(key)


def _head(ranking: Sequence[Criterion]) -> tuple[Criterion, ...]:
    for place, name in enumerate(ranking):
        if name in LIVELY:
            return tuple(ranking[:place])
    return tuple(ranking)


def _settled(banner: Banner, head: Sequence[Criterion]) -> tuple[float, ...]:
    return tuple(_SETTLED[name](banner) for name in head)
