"""The throttle: exact for one process, bounded for several, and open while Redis is away."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.infra.redis import Keys, Redis
from handbill.kit.errors import Throttled
from tests.kit.clocks import FakeClock


@pytest.fixture
def keys() -> Keys:
    return Keys(f"t{uuid.uuid4().hex[:8]}")


async def sent(throttle: Throttle, address: str, cost: int = 1) -> int:
    """The cost if it passed, else nothing."""
    try:
        await throttle.take(address, cost)
    except Throttled:
        return 0
    return cost


async def test_one_process_lets_exactly_the_limit_through(redis: Redis, keys: Keys) -> None:
    clock = FakeClock()
    throttle = Throttle(redis, keys, clock)
    passed = sum([await sent(throttle, "1.2.3.4") for _ in range(700)])
    assert passed == 600
    with pytest.raises(Throttled, match="Too many events") as refused:
        await throttle.take("1.2.3.4", 1)
    assert (refused.value.code, refused.value.retry_after) == ("IP_THROTTLED", pytest.approx(0.1))
    assert await sent(throttle, "1.2.3.5") == 1  # a neighbour has a bucket of its own
    clock.advance(seconds=1)
    assert sum([await sent(throttle, "1.2.3.4") for _ in range(30)]) == 10


async def test_parallel_requests_meet_the_limit_exactly(redis: Redis, keys: Keys) -> None:
    throttle = Throttle(redis, keys, FakeClock())
    assert sum(await asyncio.gather(*(sent(throttle, "1.2.3.4") for _ in range(700)))) == 600


async def test_a_batch_costs_its_size(redis: Redis, keys: Keys) -> None:
    clock = FakeClock()
    throttle = Throttle(redis, keys, clock)
    assert await sent(throttle, "a", 3) == 3  # on credit
    assert await sent(throttle, "a", 500) == 500  # and this pays for it
    assert await sent(throttle, "a", 98) == 0
    assert sum([await sent(throttle, "a") for _ in range(200)]) == 97


@pytest.mark.parametrize("seed", range(4))
async def test_nobody_is_over_the_limit_nor_refused_far_below_it(redis: Redis, keys: Keys, seed: int) -> None:
    """Any pattern of sending: what passed never exceeds a full bucket, what it refilled, and one lease."""
    dice = random.Random(seed)
    clock = FakeClock()
    policy = ThrottlePolicy(limit=60, window_s=60.0)
    throttle = Throttle(redis, keys, clock, policy)
    passed: list[tuple[float, int]] = []
    refused_quiet = 0
    for _ in range(600):
        clock.advance(ms=dice.choice((1, 50, 400, 3_000, 9_000)))
        now = clock.monotonic()
        cost = dice.choice((1, 1, 1, 7))
        recent = sum(each for at, each in passed if at > now - 60)
        if await sent(throttle, "x", cost):
            passed.append((now, cost))
        elif recent + cost <= 60 - 2 * policy.lease:
            refused_quiet += 1
    level, last = 0.0, passed[0][0]
    for at, cost in passed:  # the bucket, worked out by hand
        level = max(0.0, level - (at - last)) + cost
        last = at
        assert level <= 60 + policy.lease  # a lease may be spent a little later than it was taken
    assert refused_quiet == 0


async def test_several_processes_share_the_bucket(redis: Redis, keys: Keys) -> None:
    clock = FakeClock()
    processes = [Throttle(redis, keys, clock) for _ in range(3)]
    passed = sum([await sent(processes[n % 3], "1.2.3.4") for n in range(900)])
    assert 600 - 3 * 20 <= passed <= 600 + 2 * 10  # a lease unspent here, a credit on top there


async def test_no_limit_and_no_redis_let_everybody_pass(redis: Redis, keys: Keys) -> None:
    free = Throttle(redis, keys, FakeClock(), ThrottlePolicy(limit=0))
    assert sum([await sent(free, "a") for _ in range(50)]) == 50
    away = Redis("redis://127.0.0.1:9/0", timeout=0.05)
    await away.start()
    try:
        alone = Throttle(away, keys, FakeClock())
        assert sum([await sent(alone, "a") for _ in range(12)]) == 12
    finally:
        await away.stop()
