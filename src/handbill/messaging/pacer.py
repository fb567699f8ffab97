"""Where the limits live: tokens of number, tenant and pair in Redis, and a gate before the wire in this process.

The token says that a message may go; between it and the wire lies the commit of the attempt, which may take its time.
So that messages which waited for one commit do not leave in one bunch, each passes the number's gate last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from importlib.resources import files

import msgspec

from handbill.infra.redis import Keys, Redis
from handbill.kit.bounds import SENDER_STATES
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.messaging.limits import PAIR_KEPT, SECOND_US, Pace, number_pace, take

SOURCE = files("handbill.messaging").joinpath("lua/pace.lua").read_text("utf-8")
FREE = Pace(interval_us=0, burst=1)
"""No limit."""


class Tokens(msgspec.Struct, frozen=True):
    """`wait_us`: until number and tenant have the next token; `each`: 0 taken, > 0 the pair's wait, -1 not reached."""

    wait_us: int
    each: tuple[int, ...]


class Gate:
    """Spaces what leaves this process for one number. Only a queue: it never refuses."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._tat_us = 0

    def wait_us(self, now_us: int) -> int:
        turn = take(self._tat_us, now_us, self.pace)
        if turn.admitted:
            self._tat_us = turn.tat_us
            return 0
        self._tat_us += self.pace.interval_us
        return turn.wait_us


class Slots:
    """Places for requests under way. Whoever wants several gets at least one, and as many as are free."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, most: int) -> int:
        while self._free == 0:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except BaseException:
                self._wake()
                raise
        taken = min(most, self._free, max(1, self._free // (len(self._waiting) + 1)))
        self._free -= taken
        self._wake()
        return taken

    def give(self, count: int) -> None:
        self._free += count
        self._wake()

    def _wake(self) -> None:
        free = self._free
        while free > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1


class Pacer:
    def __init__(self, redis: Redis, keys: Keys, clock: Clock, *, pair: Pace = PAIR_KEPT) -> None:
        self._script = redis.script(SOURCE)
        self._keys = keys
        self._clock = clock
        self._pair = pair
        self._gates: LruCache[tuple[int, str], Gate] = LruCache(SENDER_STATES)

    async def take(
        self, tenant_id: int, number_id: str, addresses: Sequence[str], *, per_second: int, tenant_per_second: int,
        reserve_us: int = 0,
    ) -> Tokens:  # fmt: skip
        """`reserve_us`: tokens of number and tenant that come within it are taken at once, ahead of whoever waits for a
        free one. The caller sends `wait_us` later."""
        number = number_pace(per_second, burst=max(4, burst_of(per_second)))
        tenant = tenant_pace(tenant_per_second)
        key = self._keys.tagged
        keys = [key("msg", tenant_id, "n", number_id), key("msg", tenant_id, "t")]
        keys += [key("msg", tenant_id, "p", number_id, address) for address in addresses]
        paces = (number, tenant, self._pair)
        args = [part for pace in paces for part in (pace.interval_us, pace.burst)] + [reserve_us]
        wait_us, *each = await self._script(keys=keys, args=args)
        return Tokens(int(wait_us), tuple(int(one) for one in each))

    async def gate(self, tenant_id: int, number_id: str, per_second: int) -> None:
        """Pass, a moment later if others of the same number passed just now."""
        key = (tenant_id, number_id)
        gate: Gate | None = self._gates.get(key)
        pace = gate_pace(per_second)
        if gate is None or gate.pace != pace:
            gate = self._gates[key] = Gate(pace)
        wait_us = gate.wait_us(int(self._clock.monotonic() * SECOND_US))
        if wait_us > 0:
            await asyncio.sleep(wait_us / SECOND_US)


def gate_pace(per_second: int) -> Pace:
    """A little faster than tokens come, so that what a slow commit has dammed up flows off; one at a time up to 99 a
    second. What may leave at once is taken off the top, so that no second holds more than `per_second`."""
    burst = burst_of(per_second)
    return Pace(interval_us=SECOND_US // max(per_second - burst - 1, 1) + 1, burst=burst)


def burst_of(per_second: int) -> int:
    """What a fast number may send at once: a fiftieth of a second. Asking for each message alone would cost more."""
    return max(1, per_second // 50)


def tenant_pace(per_second: int) -> Pace:
    """Even, with a tenth of a second at once; 0 means no limit."""
    if per_second <= 0:
        return FREE
    return Pace(interval_us=SECOND_US // per_second + 1, burst=max(1, per_second // 10))
