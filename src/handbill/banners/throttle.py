"""At most so many tracked events from one address (or with one key) in any minute, over all processes.

Each has one bucket in Redis, by GCRA: `burst` events pass at once, and it refills so that no more than `limit` pass in
any `window_s`. Each process lets `credit` events of an address pass unasked, and again after a window without such
events: most addresses never need a question to Redis. The bucket is smaller by the credit of all processes, so that
the limit holds exactly. Beyond it, the requests of an address share what is taken: one asks Redis, the others wait for
its answer, so that none is refused while there are tokens left.

More than a burst at once, as a large batch is, needs a bucket that was quiet for as long as the rest takes to refill,
and is waited for as long again: then it is as if the events had come evenly.

With a `lease` a process takes a handful of tokens more and keeps them for later, so that it asks more seldom; what
passes may then be more by that handful. When Redis is away, or refuses the command, everybody passes (failing open,
metered): this guards against floods, not against fraud, and the journal behind it has its own guard.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from sys import getsizeof

import msgspec

from handbill.infra.redis import Keys, Redis, RedisError
from handbill.kit.bounds import TOKEN_BUCKETS
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, Busy, Fault, Invalid, Throttled
from handbill.kit.telemetry import metrics

_BUCKET_BYTES = 270

# GCRA: the key holds the time at which the bucket is full again, or was. Grants what fits, at least `need` or nothing.
_TAKE = """
local now, need, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local burst, each, idle = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local stored = redis.call('GET', KEYS[1])
local full = now - idle
if stored then full = math.max(full, tonumber(stored)) end
local grant = need
if need > burst then
  local wait = full + (need - burst) * each - now
  if wait > 0.000001 then return {0, math.ceil(wait)} end
  full = now + need * each
else
  full = math.max(full, now)
  local room = math.floor(burst - (full - now) / each + 0.000001)
  if room < need then return {0, math.ceil(full + (need - burst) * each - now)} end
  grant = math.min(room, want)
  full = full + grant * each
end
redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', math.ceil(full - now + idle) + 1000)
return {grant, 0}
"""


class ThrottlePolicy(msgspec.Struct, frozen=True):
    """At most `limit` events in any `window_s`, and `burst` of them at once (0: a fifth); limit 0: no limit.

    Each of `processes` lets `credit` events of an address pass unasked, or less where the burst is small.
    """

    limit: int = 600
    window_s: float = 60.0
    burst: int = 0
    credit: int = 10
    lease: int = 0
    processes: int = 1
    code: str = "IP_THROTTLED"
    who: str = "from this address"


class _Sizes(msgspec.Struct, frozen=True):
    """What follows from a policy: of the bucket in Redis, and of each process."""

    credit: int
    limit: int
    burst: int
    rate: float

    @classmethod
    def of(cls, policy: ThrottlePolicy) -> _Sizes:
        burst = policy.burst or max(1, policy.limit // 5)
        credit = min(policy.credit, burst // (2 * policy.processes))
        unasked = credit * policy.processes
        rate = (policy.limit - burst) / policy.window_s
        if policy.limit == 1:  # nothing is left to refill by: it comes back behind the window
            rate = 1 / (policy.window_s + 1)
        return cls(credit, policy.limit - unasked, burst - unasked, max(rate, 0.0))


@dataclass(slots=True)
class _TokenBucket:
    """What an address may still send from memory: unasked, or by tokens that were taken."""

    credit: int
    credit_used_at: float = 0.0
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
        self._sizes = _Sizes.of(self._policy)
        self._credit = self._sizes.credit
        self._script = redis.script(_TAKE)
        self._buckets: LruCache[str, _TokenBucket] = LruCache(TOKEN_BUCKETS, _bucket_bytes)
        """An address that is pushed out is new again when it comes back: it has its credit, which is on its side."""

    async def take(self, address: str, cost: int) -> None:
        """Returns when the address may send `cost` events. Raises Throttled, or Invalid for more than may ever pass."""
        if 0 < self._sizes.limit < cost:
            raise self._never(cost)
        while not self.passes(address, cost):
            bucket = self._bucket(address)
            now = self._clock.monotonic()
            if now < bucket.blocked_until and cost >= bucket.blocked_cost:
                raise self._refused(bucket.blocked_until - now + (cost - bucket.blocked_cost) / self._sizes.rate)
            if bucket.fetching is None:
                await self._fetch(bucket, address, cost)
                return
            if await self._wait(bucket, bucket.fetching, cost):
                metrics.THROTTLE_OPEN.inc()
                return

    def passes(self, address: str, cost: int) -> bool:
        """Whether `cost` events pass from memory; if not, `take` asks. Hot paths try this first."""
        if self._sizes.limit == 0:
            return True
        bucket = self._bucket(address)
        if bucket.tokens >= cost:
            bucket.tokens -= cost
            return True
        now = self._clock.monotonic()
        if (
            bucket.credit < cost
            and bucket.credit < self._credit
            and now > bucket.credit_used_at + self._policy.window_s
        ):
            bucket.credit = self._credit
        if bucket.credit < cost:
            return False
        bucket.credit -= cost
        bucket.credit_used_at = now
        return True

    async def _fetch(self, bucket: _TokenBucket, address: str, cost: int) -> None:
        """Takes `cost` from Redis, and enough for those who wait. Raises Throttled if it does not fit."""
        held, asked_at = bucket.tokens, self._clock.monotonic()
        # Nothing passes by tokens until the answer is here: these are part of the question.
        bucket.tokens = 0
        need = cost - held
        want = need + bucket.waiting + self._policy.lease
        fetching = bucket.fetching = asyncio.get_running_loop().create_future()
        is_open = False
        try:
            grant, wait_ms = await self._ask(address, need, want)
            if grant:
                bucket.tokens, held = min(held + grant - cost, bucket.waiting + self._policy.lease), 0
                return
            wait = max(wait_ms / 1000, 0.001)
            bucket.blocked_until, bucket.blocked_cost = asked_at + wait, cost
            raise self._refused(wait)
        except (Busy, Broken, RedisError):
            metrics.THROTTLE_OPEN.inc()
            is_open = True
        finally:
            bucket.tokens += held
            bucket.fetching = None
            fetching.set_result(is_open)

    async def _ask(self, address: str, need: int, want: int) -> tuple[int, int]:
        """(tokens granted: at least `need` or none, milliseconds until `need` would be granted)."""
        sizes = self._sizes
        each = 1000 / sizes.rate
        arguments = [self._clock.now_ms(), need, want, sizes.burst, each, (sizes.limit - sizes.burst) * each]
        # A digest: the name may hold what a key may not, such as braces, and a user's id.
        name = blake2b(address.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        grant, wait_ms = await self._script([self._keys.tagged("throttle", name)], arguments)
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

    def _refused(self, wait: float) -> Throttled:
        metrics.THROTTLE_REFUSED.inc()
        return Throttled(
            f"Too many events {self._policy.who} in a minute; nothing of this request was kept.",
            code=self._policy.code,
            retry_after=wait,
        )

    def _never(self, cost: int) -> Invalid:
        limit, window = self._sizes.limit, self._policy.window_s
        return Invalid(
            f"Only {limit} events {self._policy.who} may come in {window:g} s; nothing was kept. Send smaller batches.",
            code="BATCH_SIZE",
            faults=[Fault("events", f"holds {cost}, must hold 1 to {limit}")],
        )

    def _bucket(self, address: str) -> _TokenBucket:
        bucket: _TokenBucket | None = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = _TokenBucket(self._credit)
        return bucket


def _bucket_bytes(address: str, _: _TokenBucket) -> int:
    return getsizeof(address) + _BUCKET_BYTES
