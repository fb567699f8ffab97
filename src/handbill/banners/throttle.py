"""At most so many tracked events a minute from one client address, over all processes, and seldom a question to Redis.

Each address has one bucket in Redis that holds `limit` tokens and refills evenly over the window. A process takes
tokens out of it a handful at a time, in one script, and spends them from memory. Its requests share what was taken: one
asks Redis, the others of the address wait for its answer, so that none is refused while there are tokens left. An
address that the process does not know has a few on credit, and pays for them when it asks for more: most addresses
never need to ask.

What passes in a burst on one process is the limit exactly. Tokens that a process has taken stay good while the bucket
refills, so that an address that was quiet can send `lease` more; each further process adds its credit and its lease.
When Redis is away everybody passes (failing open, metered): this guards against floods, not against fraud, and the
journal behind it has its own guard.
"""

from __future__ import annotations

import asyncio
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

_BUCKET_BYTES = 270

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
class _TokenBucket:
    """What an address may still send from memory: on credit, which is owed to the bucket, then by tokens taken."""

    credit: int
    since: float  # when `owed` was right
    owed: float = 0.0
    tokens: int = 0
    blocked_until: float = 0.0
    blocked_cost: int = 0  # what costs less may still fit
    fetching: asyncio.Future[bool] | None = None  # true: Redis was away, and who waited may pass
    waiting: int = 0  # what those cost who wait for `fetching`


class Throttle:
    """Counts what each address sends; see the module."""

    def __init__(self, redis: Redis, keys: Keys, clock: Clock, policy: ThrottlePolicy | None = None) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._policy = policy or ThrottlePolicy()
        self._credit = min(self._policy.credit, self._policy.limit)
        self._rate = self._policy.limit / self._policy.window_s
        self._script = redis.script(_TAKE)
        self._buckets: LruCache[str, _TokenBucket] = LruCache(TOKEN_BUCKETS, _bucket_bytes)
        """An address that is pushed out is new again when it comes back: it has its credit, which is on its side."""

    async def take(self, address: str, cost: int) -> None:
        """Returns when the address may send `cost` events; raises Throttled when it may not."""
        while not self.passes(address, cost):
            bucket = self._bucket(address)
            now = self._clock.monotonic()
            if now < bucket.blocked_until and cost >= bucket.blocked_cost:
                raise _refused(bucket.blocked_until - now)
            if bucket.fetching is None:
                await self._fetch(bucket, address, cost)
                return
            if await self._wait(bucket, bucket.fetching, cost):
                metrics.THROTTLE_OPEN.inc()
                return

    def passes(self, address: str, cost: int) -> bool:
        """Whether `cost` events pass from memory; if not, `take` asks. Hot paths try this first."""
        if self._rate == 0:
            return True
        bucket = self._bucket(address)
        if bucket.tokens >= cost:
            bucket.tokens -= cost
            return True
        if bucket.credit < cost:
            return False
        bucket.credit -= cost
        now = self._clock.monotonic()
        bucket.owed, bucket.since = self._left(bucket, now) + cost, now
        return True

    async def _fetch(self, bucket: _TokenBucket, address: str, cost: int) -> None:
        """Takes `cost` from Redis, what is owed, and enough for those who wait. Raises Throttled if it does not fit."""
        owed, held = math.ceil(self._left(bucket, self._clock.monotonic())), bucket.tokens
        # Nothing passes from memory until the answer is here: these tokens and this debt are part of the question.
        bucket.credit = bucket.tokens = 0
        need = cost + owed - held
        want = need + bucket.waiting + self._policy.lease
        fetching = bucket.fetching = asyncio.get_running_loop().create_future()
        is_open = False
        try:
            grant, wait_ms = await self._ask(address, need, want)
            if grant:
                bucket.owed = 0.0
                spare = held + grant - cost - owed
                bucket.tokens, held = min(spare, bucket.waiting + self._policy.lease), 0
                return
            wait = max(wait_ms / 1000, 0.001)
            bucket.blocked_until, bucket.blocked_cost = self._clock.monotonic() + wait, cost
            raise _refused(wait)
        except Busy:
            metrics.THROTTLE_OPEN.inc()
            is_open = True
        finally:
            bucket.tokens += held
            bucket.fetching = None
            fetching.set_result(is_open)

    async def _ask(self, address: str, need: int, want: int) -> tuple[int, int]:
        """(tokens granted: at least `need` or none, milliseconds until `need` would be granted)."""
        window = self._policy.window_s * 1000
        arguments = [self._clock.now_ms(), need, want, window, window / self._policy.limit]
        grant, wait_ms = await self._script([self._keys.tagged("throttle", address)], arguments)
        return int(grant), int(wait_ms)

    async def _wait(self, bucket: _TokenBucket, fetching: asyncio.Future[bool], cost: int) -> bool:
        """Until somebody else's question is answered, which is bounded by the timeout of Redis. True: Redis is away."""
        bucket.waiting += cost
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            bucket.tokens = min(bucket.tokens, bucket.waiting - cost + self._policy.lease)  # ours is not needed
            raise
        finally:
            bucket.waiting -= cost

    def _left(self, bucket: _TokenBucket, now: float) -> float:
        """The part of the debt that has not been refilled since."""
        return max(0.0, bucket.owed - (now - bucket.since) * self._rate)

    def _bucket(self, address: str) -> _TokenBucket:
        bucket: _TokenBucket | None = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = _TokenBucket(self._credit, self._clock.monotonic())
        return bucket


def _bucket_bytes(address: str, _: _TokenBucket) -> int:
    return getsizeof(address) + _BUCKET_BYTES


def _refused(wait: float) -> Throttled:
    metrics.THROTTLE_REFUSED.inc()
    return Throttled(
        "Too many events from this address in a minute; nothing of this request was kept.",
        code="IP_THROTTLED",
        retry_after=wait,
    )
