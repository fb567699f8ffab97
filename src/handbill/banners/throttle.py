"""At most so many tracked events a minute from one client address, over all processes, and seldom a question to Redis.

Each address has one bucket in Redis that holds `limit` tokens and refills evenly over the window. A process takes
tokens out of it a handful at a time, in one script, and spends them from memory. An address that the process does not
know has a few on credit, and pays for them when it asks for more: most addresses never need to ask. A burst on one
process meets the limit exactly; a handful that was held for a while, and each further process, can let as many through
on top. When Redis is away everybody passes (failing open, metered): this guards against floods, not against fraud, and
the journal behind it has its own guard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from sys import getsizeof

import msgspec

from handbill.infra.redis import Keys, Redis
from handbill.kit.bounds import TOKEN_BUCKETS
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled
from handbill.kit.telemetry import metrics

_BUCKET_BYTES = 250

# GCRA: the key holds the time at which the bucket would be full again. Grants what fits, at least `need` or nothing.
_TAKE = """
local now, need, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local window, each = tonumber(ARGV[4]), tonumber(ARGV[5])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local room = math.floor((now + window - tat) / each + 0.000001)
if room < need then return {0, math.ceil(tat + need * each - now - window)} end
local grant = math.min(room, want)
tat = tat + grant * each
redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil(tat - now) + 1000)
return {grant, 0}
"""


class ThrottlePolicy(msgspec.Struct, frozen=True):
    """`limit` events in `window_s`; 0: no limit. `lease` tokens are taken at a time.

    `credit` events of an address that is new to this process pass unasked.
    """

    limit: int = 600
    window_s: float = 60.0
    lease: int = 10
    credit: int = 10


@dataclass(slots=True)
class _Purse:
    """What an address may still send from memory: on credit, which is owed to the bucket, then by tokens taken."""

    credit: int
    since: float  # when `owed` was right
    owed: float = 0.0
    tokens: int = 0
    blocked_until: float = 0.0
    blocked_cost: int = 0  # what costs less may still fit


class Throttle:
    def __init__(self, redis: Redis, keys: Keys, clock: Clock, policy: ThrottlePolicy | None = None) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._policy = policy or ThrottlePolicy()
        self._credit = min(self._policy.credit, self._policy.limit)
        self._rate = self._policy.limit / self._policy.window_s
        self._script = redis.script(_TAKE)
        self._purses: LruCache[str, _Purse] = LruCache(TOKEN_BUCKETS, _bucket_bytes)
        """An address that is pushed out is new again when it comes back: it has its credit, which is on its side."""

    async def take(self, address: str, cost: int) -> None:
        """Returns when the address may send `cost` events; raises Throttled when it may not."""
        if not self.passes(address, cost):
            await self._ask(address, cost)

    def passes(self, address: str, cost: int) -> bool:
        """Whether `cost` events pass from memory; if not, `take` asks. Hot paths try this first."""
        if self._rate == 0:
            return True
        purse = self._purse(address)
        if purse.tokens >= cost:
            purse.tokens -= cost
            return True
        if purse.credit < cost:
            return False
        purse.credit -= cost
        now = self._clock.monotonic()
        purse.owed, purse.since = self._left(purse, now) + cost, now
        return True

    async def _ask(self, address: str, cost: int) -> None:
        now = self._clock.monotonic()
        purse = self._purse(address)
        if now < purse.blocked_until and cost >= purse.blocked_cost:
            raise _refused(purse.blocked_until - now)
        owed, held = math.ceil(self._left(purse, now)), purse.tokens
        # Whoever asks beside us must not count on the same tokens, nor pay the same debt.
        purse.credit = purse.tokens = 0
        purse.owed, purse.since = 0.0, now
        need = cost + owed - held
        window = self._policy.window_s * 1000
        arguments = [self._clock.now_ms(), need, need + self._policy.lease, window, window / self._policy.limit]
        try:
            grant, wait_ms = await self._script([self._keys.tagged("throttle", address)], arguments)
        except Busy:
            metrics.THROTTLE_OPEN.inc()
            purse.tokens, purse.owed = purse.tokens + held, purse.owed + owed
            return
        if not grant:
            purse.tokens, purse.owed = purse.tokens + held, purse.owed + owed
            wait = max(int(wait_ms) / 1000, 0.001)
            purse.blocked_until, purse.blocked_cost = self._clock.monotonic() + wait, cost
            raise _refused(wait)
        purse.tokens += held + int(grant) - cost - owed

    def _left(self, purse: _Purse, now: float) -> float:
        """The part of the debt that has not been refilled since."""
        return max(0.0, purse.owed - (now - purse.since) * self._rate)

    def _purse(self, address: str) -> _Purse:
        purse: _Purse | None = self._purses.get(address)
        if purse is None:
            purse = self._purses[address] = _Purse(self._credit, self._clock.monotonic())
        return purse


def _bucket_bytes(address: str, _: _Purse) -> int:
    return getsizeof(address) + _BUCKET_BYTES


def _refused(wait: float) -> Throttled:
    metrics.THROTTLE_REFUSED.inc()
    return Throttled(
        "Too many events from this address in a minute; nothing of this request was kept.",
        code="IP_THROTTLED",
        retry_after=wait,
    )
