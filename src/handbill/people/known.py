"""Ids this process knows to be stored, so that an event that says nothing new asks nothing and writes nothing.

An id is passed over only if it is stored with a first sighting at least as early; forgetting costs a question, never a
fact. Entries end after about an hour, each at its own time: an id that was erased and comes back is written again, at
once when it has something to tell (`store.write` asks about such ids whatever is known here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

HOUR_MS = 3_600_000
Owner = tuple[int, str]


class KnownIds:
    def __init__(self, jitter: Callable[[], float], *, limit: int = 100_000, keep_ms: int = HOUR_MS) -> None:
        self._jitter = jitter
        self._limit = limit
        self._keep_ms = keep_ms
        self._known: dict[Owner, tuple[int, float]] = {}

    def news(self, ids: Mapping[Owner, int], now_ms: int) -> dict[Owner, int]:
        """Those that PostgreSQL must be asked about."""
        known = self._known
        found = {}
        for owner, at in ids.items():
            entry = known.get(owner)
            if entry is None or at < entry[0] or now_ms >= entry[1]:
                found[owner] = at
        return found

    def learn(self, ids: Mapping[Owner, int], now_ms: int) -> None:
        """After the commit, never before it."""
        known = self._known
        for owner, at in ids.items():
            before = known.pop(owner, None)
            first = at if before is None else min(at, before[0])
            known[owner] = (first, now_ms + self._keep_ms * (0.5 + 0.5 * self._jitter()))
        while len(known) > self._limit:
            del known[next(iter(known))]
