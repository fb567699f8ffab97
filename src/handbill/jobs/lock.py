"""A lock that many processes share: SET NX with an expiry, released and renewed only by its holder.

The fencing token grows with every holder (it is never below Redis' clock, so that it grows even after a wiped Redis).
Hand it to whatever the lock protects and refuse an older one: a holder that slept through its expiry is then harmless.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from handbill.infra.redis import Keys, Redis
from handbill.kit.errors import Busy, Conflict
from handbill.kit.telemetry import logs

_log = logs.get("lock")

_TAKE = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {0, redis.call('PTTL', KEYS[1])} end
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if fence <= last then fence = last + 1 end
redis.call('SET', KEYS[2], string.format('%d', fence))
return {1, string.format('%d', fence)}
"""
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Held:
    """A lock in hand. `lost` is set as soon as we know that it is ours no longer."""

    def __init__(self, name: str, token: str, fence: int) -> None:
        self.name = name
        self.token = token
        self.fence = fence
        self.lost = asyncio.Event()

    def check(self) -> None:
        """Raise Conflict when the lock has been lost: call it before anything that must not be done by two."""
        if self.lost.is_set():
            raise Conflict(f"The lock {self.name} was lost; what it protects was not touched.", code="LOCK_LOST")


class Locks:
    def __init__(self, redis: Redis, keys: Keys | None = None) -> None:
        self._keys = keys or Keys()
        self._take = redis.script(_TAKE)
        self._renew = redis.script(_RENEW)
        self._release = redis.script(_RELEASE)

    async def take(self, name: str, ttl_ms: int) -> Held | None:
        """Take the lock if it is free. The caller renews and releases it."""
        token = secrets.token_hex(16)
        taken, fence = await self._take(keys=[self._key(name), self._key(name, "fence")], args=[token, ttl_ms])
        return Held(name, token, int(fence)) if taken else None

    async def renew(self, held: Held, ttl_ms: int) -> bool:
        renewed = bool(await self._renew(keys=[self._key(held.name)], args=[held.token, ttl_ms]))
        if not renewed:
            held.lost.set()
        return renewed

    async def release(self, held: Held) -> bool:
        """Give it back, unless it has expired and is another's by now."""
        held.lost.set()
        return bool(await self._release(keys=[self._key(held.name)], args=[held.token]))

    @asynccontextmanager
    async def hold(self, name: str, *, ttl_ms: int = 30_000, wait_s: float = 0.0) -> AsyncIterator[Held]:
        """Hold the lock for a block, renewed every third of its life. Raises Busy when it stays taken."""
        held = await self._wait(name, ttl_ms, wait_s)
        renewal = asyncio.create_task(self._keep(held, ttl_ms), name=f"lock-{name}")
        try:
            yield held
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            try:
                await self.release(held)
            except Busy:
                _log.warning("lock-release-unheard", lock=name, detail="it expires by itself")

    async def _wait(self, name: str, ttl_ms: int, wait_s: float) -> Held:
        deadline = asyncio.get_running_loop().time() + wait_s
        pause = 0.01
        while True:
            held = await self.take(name, ttl_ms)
            if held is not None:
                return held
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise Busy(f"The lock {name} is taken.", code="LOCK_TAKEN", retry_after=ttl_ms / 1000)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, 0.25)

    async def _keep(self, held: Held, ttl_ms: int) -> None:
        """Renew until cancelled. When no renewal succeeds for the lock's whole life, it is lost."""
        loop = asyncio.get_running_loop()
        good_until = loop.time() + ttl_ms / 1000
        while not held.lost.is_set():
            await asyncio.sleep(ttl_ms / 3000)
            sent = loop.time()
            try:
                if await self.renew(held, ttl_ms):
                    good_until = sent + ttl_ms / 1000
            except Exception as error:  # noqa: BLE001 - whatever it is, the holder must learn when the lock expires
                _log.warning("lock.renewal_failed", lock=held.name, error=f"{type(error).__name__}: {error}")
                if loop.time() >= good_until:
                    held.lost.set()
        _log.warning("lock-lost", lock=held.name)

    def _key(self, name: str, *rest: str) -> str:
        return self._keys.tagged("lock", name, *rest)
