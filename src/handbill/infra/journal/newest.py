"""The newest events of some tenants in a lane, for a reader without a cursor in PostgreSQL.

Redis leaves out the entries in which none of these tenants has events, so that a process that listens to one tenant
does not receive what all the others send.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

import msgspec

from handbill.infra.redis import Keys, Redis

_LUA = files("handbill.infra.journal").joinpath("lua", "newest.lua")


class Newest(msgspec.Struct, frozen=True):
    """`end` is the cursor behind the newest entry and `total` the lane's events up to it; `packed` are entries that may
    have events of the tenants, oldest first. `first` is the number of events before the oldest entry looked at."""

    end: str
    total: int
    first: int
    packed: list[bytes]


class NewestEntries:
    """Reads the newest entries of a lane: a bounded number of them, and of bytes."""

    def __init__(self, redis: Redis, keys: Keys, *, max_entries: int, max_bytes: int) -> None:
        self._redis = redis
        self._keys = keys
        self._limits = (max_entries, max_bytes)
        self._script = redis.script(_LUA.read_text("utf-8"))

    async def position(self, lane: str) -> tuple[str, int]:
        """The cursor behind all that was ever appended to the lane, and how many events that is."""
        last, count = await self._redis.call("HMGET", self._keys.tagged("journal", lane, "meta"), "last", "events")
        return (last.decode() if last else "0-0"), int(count or 0)

    async def read(self, lane: str, after: str, tenant_ids: Iterable[int]) -> Newest | None:
        """None when nothing is behind the cursor."""
        reply = await self._script([self._keys.tagged("journal", lane)], [after, *self._limits, *tenant_ids])
        if not reply:
            return None
        return Newest(reply[0].decode(), int(reply[1]), int(reply[2]), reply[3])
