"""Ids this process knows to be stored, so that an event that says nothing new asks nothing and writes nothing.

An id is passed over only if it is stored with a first sighting at least as early; forgetting costs a question, never a
fact. Entries end after about an hour, each at its own time: an id that was erased and comes back is written again, at
once when it has something to tell (`store.write` asks about such ids whatever is known here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import getsizeof

from handbill.kit.bounds import STORED_IDS, CacheLimit
from handbill.kit.caches import GenerationCache

HOUR_MS = 3_600_000
Owner = tuple[int, str]


class KnownIds:
    def __init__(self, jitter: Callable[[], float], *, limit: CacheLimit = STORED_IDS, keep_ms: int = HOUR_MS) -> None:
        self._jitter = jitter
        self._keep_ms = keep_ms
        self._stored: GenerationCache[Owner, tuple[int, float]] = GenerationCache(limit, _entry_bytes)

    def news(self, ids: Mapping[Owner, int], now_ms: int) -> dict[Owner, int]:
        """Those that PostgreSQL must be asked about."""
        get = self._stored.get
        found = {}
        for owner, at in ids.items():
            entry = get(owner)
            if entry is None or at < entry[0] or now_ms >= entry[1]:
                found[owner] = at
        return found

    def learn(self, ids: Mapping[Owner, int], now_ms: int) -> None:
        """After the commit, never before it."""
        stored = self._stored
        for owner, at in ids.items():
            before = stored.get(owner)
            first = at if before is None else min(at, before[0])
            stored[owner] = (first, now_ms + self._keep_ms * (0.5 + 0.5 * self._jitter()))


def _entry_bytes(owner: Owner, _: tuple[int, float]) -> int:
    return getsizeof(owner[1]) + 200
