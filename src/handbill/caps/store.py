"""Packed values in Redis: changed by one script, read for many subjects in one coalesced command.

The generation mark says that the store is whole: while it stands, an absent value means "no views". A wiped Redis has
lost the mark with everything else, and until the values are rebuilt from PostgreSQL no answer from here is sure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.caps import script
from handbill.caps.model import Change, Subject, Window, digest
from handbill.caps.packed import EMPTY, Malformed, Shelf
from handbill.infra.redis import Keys, Redis, RedisError
from handbill.kit.errors import Broken
from handbill.kit.telemetry import logs, metrics

_log = logs.get("caps")

_CHUNK = 500
"""Subjects per round trip: a few milliseconds of script time, so that nobody behind us waits long."""

_STAND = """
-- Sets the mark only if the store has not been wiped since the rebuild began.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
"""

_FORGET = """
-- Deletes a value only if nobody changed it since it was read.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class Reading(msgspec.Struct, frozen=True):
    """What the store says about one subject. Not `sure`: the value may lack views that PostgreSQL has."""

    shelf: Shelf
    sure: bool


class CapsStore:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._apply = redis.script(script.APPLY)
        self._lease = redis.script(script.LEASE)
        self._stand = redis.script(_STAND)
        self._forget = redis.script(_FORGET)
        # Short on purpose: with sixteen bytes of digest a key fits the smallest memory block that can hold one.
        self._prefix = keys.plain("c").encode() + b":"
        self._mark = keys.tagged("caps", "caps", "mark")
        self._building = keys.tagged("caps", "caps", "building")
        self._together = True
        self._asked: list[tuple[list[bytes], asyncio.Future[tuple[bool, list[bytes | None]]]]] = []
        self._asking: asyncio.Task[None] | None = None

    def key(self, subject: Subject) -> bytes:
        return self._prefix + digest(subject)

    # --- changing
    def command(self, subject: Subject, changes: Sequence[Change], now_ms: int, sweep_ms: int) -> list[Any]:
        """The change as one Redis command, to travel in the same round trip as the journal's append."""
        return self._apply.command([self.key(subject)], [script.argument(changes, now_ms, sweep_ms)])

    async def run(self, commands: Sequence[Sequence[Any]]) -> None:
        """Many subjects' commands, order kept. A value that cannot be changed is named once the others are done."""
        trouble: Exception | None = None
        for start in range(0, len(commands), _CHUNK):
            for reply in await self._redis.many(commands[start : start + _CHUNK], errors=True):
                trouble = self.trouble(reply) or trouble
        if trouble is not None:
            raise trouble

    def trouble(self, reply: Any) -> Exception | None:
        """Read a change's reply: count what was malformed, and say what failed."""
        if isinstance(reply, Exception):
            return reply
        _, malformed, failed, why = reply
        if malformed:
            metrics.CAPS_MALFORMED.inc(malformed)
            _log.error("caps-malformed", values=malformed, detail="replaced by what is known since")
        if failed:
            return Broken(f"A cap value could not be changed: {why.decode('utf-8', 'replace')}", code="CAPS_REFUSED")
        return None

    # --- leasing
    def lease_command(
        self, subject: Subject, asked: Sequence[tuple[int, Sequence[Window]]], now_ms: int, until_ms: int, number: int
    ) -> list[Any]:
        """Hold one slot in each of these scopes, or none. The reply is the number; below 1, nothing is held."""
        return self._lease.command([self.key(subject)], [script.lease_argument(asked, now_ms, until_ms, number)])

    async def lease(self, commands: Sequence[Sequence[Any]]) -> list[int]:
        return [int(reply) for reply in await self._redis.many(commands)]

    # --- reading
    async def read(
        self, subjects: Sequence[Subject], beside: Sequence[bytes] = ()
    ) -> tuple[list[Reading], tuple[bytes | None, ...]]:
        """Everybody who asks while a read is under way shares the next one. `beside` are keys that come along, raw."""
        keys = [*map(self.key, subjects), *beside]
        future: asyncio.Future[tuple[bool, list[bytes | None]]] = asyncio.get_running_loop().create_future()
        self._asked.append((keys, future))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="caps-read")
            self._asking.add_done_callback(self._on_asked)
        whole, values = await future
        if not beside:
            return [_opened(value, whole) for value in values], ()
        own = len(subjects)
        return [_opened(value, whole) for value in values[:own]], tuple(values[own:])

    async def _ask(self) -> None:
        try:
            await asyncio.sleep(0)  # let the requests of this turn of the loop join
            while self._asked:
                asked, self._asked = self._asked, []
                await self._answer(asked)
        finally:
            self._end_asking()

    def _on_asked(self, task: asyncio.Task[None]) -> None:
        if self._asking is task:  # it was cancelled before it began
            self._end_asking()

    def _end_asking(self) -> None:
        """A read that was cancelled leaves nobody waiting."""
        self._asking = None
        left, self._asked = self._asked, []
        for _, future in left:
            future.cancel()

    async def _answer(self, asked: list[tuple[list[bytes], asyncio.Future[tuple[bool, list[bytes | None]]]]]) -> None:
        try:
            mark, *values = await self._fetch([key for keys, _ in asked for key in keys])
        except BaseException as error:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        at = 0
        for keys, future in asked:
            if not future.done():
                future.set_result((mark is not None, values[at : at + len(keys)]))
            at += len(keys)

    async def _fetch(self, keys: list[bytes]) -> list[bytes | None]:
        if self._together:
            try:
                found: list[bytes | None] = await self._redis.call("MGET", self._mark, *keys)
            except RedisError as error:
                if error.code != "CROSSSLOT":
                    raise
                self._together = False  # a cluster: one GET per key, still one round trip
            else:
                return found
        return await self._redis.many([("GET", self._mark), *(("GET", key) for key in keys)])

    # --- the generation mark
    async def whole(self) -> bool:
        return await self._redis.call("GET", self._mark) is not None

    async def begin_rebuild(self, token: str) -> None:
        await self._redis.call("SET", self._building, token)

    async def end_rebuild(self, token: str) -> bool:
        """Set the mark. False: the store was wiped meanwhile, or another rebuild took over; begin again."""
        return bool(await self._stand([self._mark, self._building], [token]))

    # --- writing anew
    async def raw(self, subject: Subject) -> bytes:
        return await self._redis.call("GET", self.key(subject)) or b""

    async def drop(self, subjects: Sequence[Subject]) -> None:
        await self._redis.many([("DEL", self.key(subject)) for subject in subjects])

    async def replace(
        self, subject: Subject, was: bytes, changes: Sequence[Change], now_ms: int, sweep_ms: int
    ) -> bool:
        """The value that these changes make, instead of what it was. False: it was another by then; begin again.

        Nobody sees a moment in between; and if it was another, the changes only add what is committed.
        """
        applied = [self.command(subject, changes, now_ms, sweep_ms)] if changes else []
        if not was and not applied:
            return True
        forget = self._forget.command([self.key(subject)], [was])
        forgotten, *replies = await self._redis.many([forget, *applied], atomic=True)
        for reply in replies:
            trouble = self.trouble(reply)
            if trouble is not None:
                raise trouble
        return bool(forgotten) or not was


def _opened(value: bytes | None, whole: bool) -> Reading:
    if value is None:
        return Reading(EMPTY, whole)
    try:
        return Reading(Shelf(value), whole)
    except Malformed:
        metrics.CAPS_MALFORMED.inc()
        return Reading(EMPTY, sure=False)
