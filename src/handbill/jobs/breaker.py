"""A circuit breaker that all processes share: after a few failures in a row nobody calls for a while, then one tries.

It fails open: while Redis is away, calls go through, and that is metered. A breaker protects somebody else's service;
it must never be the reason that ours stands still.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from handbill.infra.redis import Keys, Redis
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

_log = logs.get("breaker")

# KEYS[1] = hash (failures, open_until, probe_until). All times by Redis' clock.
_ENTER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local open = tonumber(redis.call('HGET', KEYS[1], 'open_until') or '0')
if open == 0 then return {'closed', 0} end
if now < open then return {'open', open - now} end
local probe = tonumber(redis.call('HGET', KEYS[1], 'probe_until') or '0')
if now < probe then return {'open', probe - now} end
redis.call('HSET', KEYS[1], 'probe_until', string.format('%d', now + ARGV[1]))
return {'probe', 0}
"""
_FAIL = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local failures = redis.call('HINCRBY', KEYS[1], 'failures', 1)
local opened = 0
if failures >= tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'open_until', string.format('%d', now + ARGV[2]))
  redis.call('HDEL', KEYS[1], 'probe_until')
  opened = 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {failures, opened}
"""


class BreakerPolicy(msgspec.Struct, frozen=True):
    """After `failures` in a row the circuit stays open for `open_s`; then one caller may try for `probe_s`."""

    failures: int = 5
    open_s: float = 300.0
    probe_s: float = 30.0


class CircuitOpen(Busy):
    """The other side failed too often; nothing was sent."""

    code = "CIRCUIT_OPEN"


class Breaker:
    def __init__(self, redis: Redis, policy: BreakerPolicy | None = None, keys: Keys | None = None) -> None:
        self._redis = redis
        self._keys = keys or Keys()
        self.policy = policy or BreakerPolicy()
        self._enter = redis.script(_ENTER)
        self._fail = redis.script(_FAIL)

    @asynccontextmanager
    async def guard(self, name: str, counts: Callable[[Exception], bool] = lambda _error: True) -> AsyncIterator[None]:
        """Run a call behind the breaker. An error for which `counts` is false says nothing about the other side."""
        await self.enter(name)
        try:
            yield
        except Exception as error:
            await (self.failed(name) if counts(error) else self.succeeded(name))
            raise
        await self.succeeded(name)

    async def enter(self, name: str) -> str:
        """'closed' or 'probe'; raises CircuitOpen with the time until the next try."""
        try:
            state, wait_ms = await self._enter(keys=[self._key(name)], args=[_ms(self.policy.probe_s)])
        except Busy:
            metrics.BREAKER_FAILED_OPEN.inc()
            return "closed"
        word = state.decode()
        if word == "open":
            raise CircuitOpen(
                f"{name} failed too often; nothing was sent, try again later.", retry_after=wait_ms / 1000
            )
        return str(word)

    async def failed(self, name: str) -> bool:
        """Count a failure; True when it opened the circuit."""
        policy = self.policy
        memory = _ms(policy.open_s * 2 + policy.probe_s)
        try:
            failures, opened = await self._fail(
                keys=[self._key(name)], args=[policy.failures, _ms(policy.open_s), memory]
            )
        except Busy:
            metrics.BREAKER_FAILED_OPEN.inc()
            return False
        if opened:
            metrics.BREAKER_OPENED.inc()
            _log.warning("circuit-opened", circuit=name, failures=failures, seconds=policy.open_s)
        return bool(opened)

    async def succeeded(self, name: str) -> None:
        """Forget the failures."""
        try:
            await self._redis.call("DEL", self._key(name))
        except Busy:
            metrics.BREAKER_FAILED_OPEN.inc()

    def _key(self, name: str) -> str:
        return self._keys.tagged("breaker", name)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
