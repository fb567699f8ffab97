"""How often one user may ask for a decision: a brake for broken clients, not a fence against attackers.

The same buckets as for client addresses, by user: the first few pass from memory, so that the many who ask once cost no
question to Redis. When Redis is away everybody passes.
"""

from __future__ import annotations

from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.kit.bounds import RATE_LIMITED_USERS
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Throttled

LEASE = 10


def decision_policy(per_minute: int) -> ThrottlePolicy:
    """So many at once, and as many a minute from then on."""
    return ThrottlePolicy(limit=2 * per_minute, burst=per_minute, lease=LEASE)


class Pace:
    def __init__(self, throttle: Throttle, clock: Clock) -> None:
        self._throttle = throttle
        self._clock = clock
        self._over: LruCache[str, float] = LruCache(RATE_LIMITED_USERS)

    def passes(self, tenant_id: int, user: str) -> bool:
        """True when one more question passes from memory; if not, `take` asks."""
        return self._throttle.passes(f"user:{tenant_id}:{user}", 1)

    async def take(self, tenant_id: int, user: str) -> None:
        """Raises Throttled when the user is over the limit."""
        name = f"user:{tenant_id}:{user}"
        try:
            await self._throttle.take(name, 1)
        except Throttled as error:
            self._over[name] = self._clock.monotonic() + (error.retry_after or 0.0)
            raise Throttled(
                "This user asks for decisions too often; nothing was decided.",
                code="USER_THROTTLED",
                retry_after=error.retry_after,
            ) from None

    def over(self, tenant_id: int, user: str) -> bool:
        """Whether this process has told the user to wait and the time is not over; asking changes nothing."""
        until: float = self._over.get(f"user:{tenant_id}:{user}", 0.0)
        return self._clock.monotonic() < until
