"""The journal on Redis Streams: one stream per lane, one entry for many events, and a small hash beside it.

    hb:journal:{3}        the stream; an entry has p (events before it), n (events in it), b (the events, packed)
                          and t (whose they are; older entries and those of unknown tenants have none)
    hb:journal:{3}:meta   events (in the lane's life), born and last (ids of the first and the last entry)

Nothing is ever removed by reading: the reader's cursor lives in PostgreSQL. With `appendfsync always`, which the
embedded Redis has and `doctor` asks of others, an answered append is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from importlib.resources import files
from typing import Any

import msgspec

from handbill.infra.journal.appender import LaneAppender
from handbill.infra.journal.lanes import later, position
from handbill.infra.journal.port import START, Entry, Lag
from handbill.infra.redis import Connection, Keys, Redis, RedisError
from handbill.kit.errors import Busy

_LUA = files("handbill.infra.journal").joinpath("lua")
_FIRST_ENTRIES = 16
_READ_BYTES = 4 << 20
_BATCH_BYTES = 64 << 20
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class StreamsJournal:
    def __init__(self, redis: Redis, keys: Keys | None = None) -> None:
        self._redis = redis
        self._keys = keys or Keys()
        self._append = redis.script(_LUA.joinpath("append.lua").read_text("utf-8"))
        self._lag = redis.script(_LUA.joinpath("lag.lua").read_text("utf-8"))
        self._anchor = redis.script(_LUA.joinpath("anchor.lua").read_text("utf-8"))
        self._trim = redis.script(_LUA.joinpath("trim.lua").read_text("utf-8"))
        self._appenders: dict[str, LaneAppender] = {}
        self._waiters: dict[str, tuple[AsyncExitStack, Connection]] = {}
        self._gaps: set[str] = set()
        self._stopped = False

    async def start(self) -> None:
        self._stopped = False

    async def stop(self) -> None:
        """Write what was handed in, then close the lines that wait."""
        self._stopped = True
        for appender in self._appenders.values():
            await appender.drain()
        for lane in list(self._waiters):
            await self._hang_up(lane)

    # --- writing
    async def append(
        self,
        lane: str,
        bodies: Sequence[bytes],
        extra: Sequence[Sequence[Any]] = (),
        *,
        tenant_ids: Collection[int] = (),
    ) -> str:
        if self._stopped:
            raise Busy("This process is stopping; nothing was kept, try again.", code="JOURNAL_AWAY", retry_after=1.0)
        appender = self._appenders.get(lane)
        if appender is None:
            appender = self._appenders[lane] = LaneAppender(lane, self._writer(lane))
        return await appender.add(bodies, extra, tenant_ids)

    def _writer(self, lane: str) -> Any:
        keys = [self._stream(lane), self._meta(lane)]

        async def write(
            bodies: list[bytes], extra: list[Sequence[Any]], tenant_ids: Collection[int]
        ) -> tuple[str, list[Any]]:
            tenants = [f",{','.join(map(str, sorted(tenant_ids)))},"] if tenant_ids else []
            command = self._append.command(keys, [len(bodies), _pack(bodies), *tenants])
            replies = await self._redis.many([command, *extra], errors=True)
            if isinstance(replies[0], Exception):
                raise replies[0]
            return replies[0].decode(), replies[1:]

        return write

    # --- reading
    async def read(self, lane: str, after: str, *, events: int) -> list[Entry]:
        found: list[Entry] = []
        size, left, take, here = 0, events, _FIRST_ENTRIES, after
        while left > 0 and size < _BATCH_BYTES:
            rows = await self._rows(lane, here, take, check=here == after)
            for row in rows:
                body = row[1][5]
                entry = Entry(row[0].decode(), _unpack(body))
                found.append(entry)
                left -= len(entry.bodies)
                size += len(body)
                here = entry.id
                if left <= 0 or size >= _BATCH_BYTES:
                    break
            if len(rows) < take:
                break
            # The next piece is as many entries as make a few megabytes, going by those seen so far.
            take = max(1, min(1_000, _READ_BYTES * len(found) // (size + 1)))
        return found

    async def _rows(self, lane: str, after: str, count: int, *, check: bool) -> list[Any]:
        command = ("XRANGE", self._stream(lane), f"({after or START}", "+", "COUNT", count)
        if not check:
            rows: list[Any] = await self._redis.call(*command)
            return rows
        rows, meta = await self._redis.many([command, ("HMGET", self._meta(lane), "born", "last")])
        born, last = _text(meta[0]), _text(meta[1])
        if _lost(after, born, last):
            self._gaps.add(lane)  # the next entry read may already hide it: remember until it is reported
            if not born or later(after, last):
                await self._anchor([self._stream(lane), self._meta(lane)], [after])
                rows = await self._redis.call(*command)
        return rows

    async def wait(self, lane: str, after: str, timeout_s: float) -> None:
        if lane not in self._waiters:
            stack = AsyncExitStack()
            self._waiters[lane] = (stack, await stack.enter_async_context(self._redis.connection()))
        _, line = self._waiters[lane]
        block = max(1, int(timeout_s * 1000))
        command = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", self._stream(lane), after or START)
        try:
            await line.call(*command, timeout=timeout_s + 5)
        except (Busy, RedisError, asyncio.CancelledError):
            await self._hang_up(lane)  # a line left in the middle of a wait is of no use
            raise

    async def _hang_up(self, lane: str) -> None:
        waiting = self._waiters.pop(lane, None)
        if waiting is not None:
            await waiting[0].aclose()

    # --- looking after it
    async def end(self, lane: str) -> str:
        return _text(await self._redis.call("HGET", self._meta(lane), "last")) or START

    async def lag(self, lane: str, after: str) -> Lag:
        reply = await self._lag([self._stream(lane), self._meta(lane)], [after or START])
        total, born, last, now = (_text(field) for field in reply[:4])
        gap = _lost(after, born, last) or lane in self._gaps
        self._gaps.discard(lane)
        if len(reply) < 6:
            return Lag(0, 0.0, gap)
        events = int(total or 0) - int(reply[5])
        age_ms = int(now) - position(_text(reply[4]))[0]
        return Lag(max(events, 0), max(age_ms, 0) / 1000, gap)

    async def trim(self, lane: str, before: str, *, older_s: float = 600.0) -> int:
        milliseconds, sequence = position(before)
        return int(await self._trim([self._stream(lane)], [milliseconds, int(older_s * 1000), sequence]))

    async def adopt(self, lane: str, cursor: str) -> None:
        """After a restore: a copy that ends before the cursor holds nothing unread, so the lane goes on behind it.

        For a store that nobody uses yet. Without this the reader would take the older copy for a loss.
        """
        last = _text(await self._redis.call("HGET", self._meta(lane), "last"))
        if position(cursor) == (0, 0) or (last and not later(cursor, last)):
            return
        stream, meta = self._stream(lane), self._meta(lane)
        # An entry that comes and goes leaves its id behind as the stream's last.
        await self._redis.many([("XADD", stream, cursor, "x", "x"), ("XDEL", stream, cursor)])
        await self._redis.many([("HSETNX", meta, "events", 0), ("HSETNX", meta, "born", cursor)])
        await self._redis.call("HSET", meta, "last", cursor)

    def _stream(self, lane: str) -> str:
        return self._keys.tagged("journal", lane)

    def _meta(self, lane: str) -> str:
        return self._keys.tagged("journal", lane, "meta")


def _lost(after: str, born: str, last: str) -> bool:
    """Was the store that this cursor comes from lost? Gone, born after the cursor, or ending before it."""
    if position(after) == (0, 0):
        return False
    return not born or later(born, after) or later(after, last)


def _text(value: bytes | None) -> str:
    return value.decode() if value else ""
