"""At most so many tracked events a minute from one client address, over all processes, and seldom a question to Redis.

Each address has one bucket in Redis that holds `limit` tokens and refills evenly over the window. A process takes
tokens out of it a handful at a time, in one script, and spends them from memory. When Redis is away everybody passes
(failing open, metered): this guards against floods, not against fraud, and the journal behind it has its own guard.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from handbill.infra.redis import Keys, Redis
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled
from handbill.kit.telemetry import metrics

_ADDRESSES = 50_000

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
    """`limit` events in `window_s`; `lease` tokens are taken at a time and kept at most `lease_s`. 0: no limit."""

    limit: int = 600
    window_s: float = 60.0
    lease: int = 20
    lease_s: float = 5.0


@dataclass
class _Purse:
    tokens: int = 0
    until: float = 0.0
    blocked_until: float = 0.0


class Throttle:
    def __init__(self, redis: Redis, keys: Keys, clock: Clock, policy: ThrottlePolicy | None = None) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._policy = policy or ThrottlePolicy()
        self._script = redis.script(_TAKE)
        self._purses: OrderedDict[str, _Purse] = OrderedDict()

    async def take(self, address: str, cost: int) -> None:
        """Returns when the address may send `cost` events; raises Throttled when it may not."""
        if self._policy.limit == 0:
            return
        purse = self._purse(address)
        now = self._clock.monotonic()
        if purse.tokens >= cost and now < purse.until:
            purse.tokens -= cost
            return
        if now < purse.blocked_until:
            raise _refused(purse.blocked_until - now)
        await self._ask(address, purse, cost)

    async def _ask(self, address: str, purse: _Purse, cost: int) -> None:
        now = self._clock.monotonic()
        policy = self._policy
        if now >= purse.until:
            purse.tokens = 0  # an old lease is forgotten: the bucket has refilled meanwhile
        held, purse.tokens = purse.tokens, 0  # whoever asks beside us must not count on the same tokens
        need = cost - held
        each = policy.window_s * 1000 / policy.limit
        arguments = [self._clock.now_ms(), need, need + policy.lease, policy.window_s * 1000, each]
        try:
            grant, wait_ms = await self._script([self._keys.tagged("throttle", address)], arguments)
        except Busy:
            metrics.THROTTLE_OPEN.inc()
            return
        if not grant:
            purse.tokens += held
            wait = max(int(wait_ms) / 1000, 0.001)
            purse.blocked_until = self._clock.monotonic() + wait
            raise _refused(wait)
        purse.tokens += held + int(grant) - cost
        purse.until = self._clock.monotonic() + policy.lease_s

    def _purse(self, address: str) -> _Purse:
        purse = self._purses.get(address)
        if purse is None:
            purse = self._purses[address] = _Purse()
            if len(self._purses) > _ADDRESSES:
                self._purses.popitem(last=False)
        else:
            self._purses.move_to_end(address)
        return purse


def _refused(wait: float) -> Throttled:
    metrics.THROTTLE_REFUSED.inc()
    return Throttled(
        "Too many events from this address in a minute; nothing of this request was kept.",
        code="IP_THROTTLED",
        retry_after=wait,
    )
