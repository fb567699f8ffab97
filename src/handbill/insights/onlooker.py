"""Looking at the journal's lanes without a cursor of one's own: from now on, and never more than a little at a time.

Whoever only looks must not go through the reader's door: a cursor that nobody committed would be taken for a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.events.model import Event, decode
from handbill.infra.redis import Keys, Redis

ENTRIES = 50
EVENTS = 2_000
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class Glance(msgspec.Struct, frozen=True):
    """What came since the last look; `skipped` events came too fast to be looked at."""

    events: list[Event]
    skipped: int = 0


class Onlooker:
    def __init__(self, redis: Redis, lanes: Sequence[str], keys: Keys | None = None) -> None:
        self._redis = redis
        self.lanes = tuple(lanes)
        self._keys = keys or Keys()
        self._cursors: dict[str, str] = {}
        self._counted: dict[str, int] = {}

    async def begin(self) -> None:
        """From now on: what is in the lanes already is not looked at."""
        for lane in self.lanes:
            last, count = await self._redis.call("HMGET", self._keys.tagged("journal", lane, "meta"), "last", "events")
            self._cursors[lane] = last.decode() if last else "0-0"
            self._counted[lane] = int(count or 0)

    async def look(self, lane: str) -> Glance:
        """One lane at a time: entries may be large, and those of all lanes together are many."""
        stream = self._keys.tagged("journal", lane)
        rows: list[Any] = await self._redis.call("XRANGE", stream, f"({self._cursors[lane]}", "+", "COUNT", ENTRIES)
        if len(rows) == ENTRIES:  # behind: only the newest are of interest
            rows = list(reversed(await self._redis.call("XREVRANGE", stream, "+", "-", "COUNT", ENTRIES)))
        if not rows:
            return Glance([])
        known = self._counted[lane]
        end = int(rows[-1][1][1]) + int(rows[-1][1][3])
        self._cursors[lane] = rows[-1][0].decode()
        self._counted[lane] = end
        events: list[Event] = []
        for _, fields in reversed(rows):
            if len(events) >= EVENTS or int(fields[1]) < known:
                break
            events[:0] = _readable(fields[5])
        unseen = end - known - sum(int(fields[3]) for _, fields in rows if int(fields[1]) >= known)
        return Glance(events[-EVENTS:], max(unseen, 0) + max(len(events) - EVENTS, 0))


def _readable(packed: bytes) -> list[Event]:
    """Bytes that are no event are parked by the pipeline, where they are told; here they are passed over."""
    found: list[Event] = []
    for body in _unpack(packed):
        try:
            found.append(decode(body))
        except msgspec.DecodeError:
            continue
    return found
