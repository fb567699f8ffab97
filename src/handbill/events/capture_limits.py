"""How much one tenant may send: so many events a day, so many a second, over all processes.

Both are kept in Redis and taken in one script, a handful at a time, so that most requests are admitted from memory. A
request is never cut in two: while there is any room it is taken whole. So one batch may pass a limit, and no batch is
too large to be ever taken. When Redis is away everybody passes; the journal behind is the same Redis and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from handbill.infra.redis import Keys, Redis
from handbill.kit.bounds import TENANT_QUOTAS
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled
from handbill.kit.telemetry import metrics

_DAY_MS = 86_400_000
_BURST_MS = 1_000
_REFUSED_S = 1.0
"""For so long a process believes that the day's quota is used up, before it asks again."""
_LEASE = 1_000

# The rate is a GCRA: its key holds the time at which the bucket would be full again. Answers what was granted, or 0
# with the milliseconds to wait, or 0 with -1 when the day's quota is used up.
_TAKE = """
local now, need, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local quota, each, burst = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local grant, tat = want, 0
if each > 0 then
  tat = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
  if tat - now >= burst then return {0, math.floor(tat - now - burst) + 1} end
  grant = math.max(need, math.min(grant, math.floor((now + burst - tat) / each)))
end
if quota > 0 then
  local used = tonumber(redis.call('GET', KEYS[2]) or '0')
  if used >= quota then return {0, -1} end
  grant = math.max(need, math.min(grant, quota - used))
  redis.call('SET', KEYS[2], string.format('%.0f', used + grant), 'PX', 172800000)
end
if each > 0 then
  tat = tat + grant * each
  redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil(tat - now) + 1000)
end
return {grant, 0}
"""


class Limits(msgspec.Struct, frozen=True):
    """Events a day (by UTC) and a second; 0 means no limit."""

    per_day: int = 0
    per_second: float = 0.0

    def of(self, overrides: dict[str, float]) -> Limits:
        """A tenant's own figures, where the operator gave it some."""
        if not overrides:
            return self
        per_day = overrides.get("events_per_day", self.per_day)
        return Limits(int(per_day), overrides.get("events_per_second", self.per_second))

    @property
    def lease(self) -> int:
        """What to take beside the need: little of a small limit, so that processes do not starve each other."""
        day = self.per_day // 1_000 if self.per_day else _LEASE
        second = int(self.per_second / 20) if self.per_second else _LEASE
        return min(_LEASE, day, second)


_NONE = Limits()


@dataclass(slots=True)
class _Purse:
    """What a tenant may still send from memory, on which day, and under which limits it was granted.

    It is held as long as the day: what were given up sooner would be counted, and never sent.
    """

    limits: Limits
    day: int
    tokens: int = 0
    refused_until: float = 0.0


class Allowance:
    def __init__(self, redis: Redis, keys: Keys, clock: Clock) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._script = redis.script(_TAKE)
        self._purses: LruCache[int, _Purse] = LruCache(TENANT_QUOTAS)
        """What a tenant that is pushed out had left is lost to it for the day: at most what is taken at a time."""

    async def admits(self, tenant: int, count: int, limits: Limits) -> bool:
        """May these events come in? False when the day's quota is used up; Throttled when they come too fast."""
        if limits == _NONE:
            return True
        purse = self._purse(tenant, limits)
        if self._clock.monotonic() < purse.refused_until:
            return False
        if purse.tokens >= count:
            purse.tokens -= count
            return True
        # Whoever asks beside us must not count on the same tokens.
        held, purse.tokens = purse.tokens, 0
        try:
            grant, wait_ms = await self._ask(tenant, count - held, limits)
        except Busy:
            metrics.CAPTURE_LIMITS_OPEN.inc()
            return True
        if grant:
            purse.tokens += grant - (count - held)
            return True
        purse.tokens += held
        if wait_ms > 0:
            raise _too_fast(limits, wait_ms)
        purse.refused_until = self._clock.monotonic() + _REFUSED_S
        return False

    async def _ask(self, tenant: int, need: int, limits: Limits) -> tuple[int, int]:
        now = self._clock.now_ms()
        each = 1_000 / limits.per_second if limits.per_second else 0
        keys = [self._keys.tagged("rate", tenant), self._keys.tagged("quota", tenant, now // _DAY_MS)]
        arguments = [now, need, need + limits.lease, limits.per_day, each, _BURST_MS]
        grant, wait_ms = await self._script(keys, arguments)
        return int(grant), int(wait_ms)

    def _purse(self, tenant: int, limits: Limits) -> _Purse:
        """What is held for this tenant; empty when a day has ended, or its limits have changed."""
        day = self._clock.now_ms() // _DAY_MS
        purse: _Purse | None = self._purses.get(tenant)
        if purse is None or purse.limits != limits or purse.day != day:
            purse = self._purses[tenant] = _Purse(limits, day)
        return purse


def _too_fast(limits: Limits, wait_ms: int) -> Throttled:
    metrics.CAPTURE_THROTTLED.inc()
    return Throttled(
        f"More than {limits.per_second:g} events a second; nothing of this request was kept, send it again.",
        code="TENANT_THROTTLED",
        retry_after=wait_ms / 1000,
    )
