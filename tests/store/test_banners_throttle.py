"""The throttle: exact for any number of processes, and open while Redis is away."""

from __future__ import annotations

import asyncio
import math
import random
import uuid

import pytest

from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.infra.redis import Keys, Redis
from handbill.kit.errors import Invalid, Throttled
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
    assert sum([await sent(throttle, "1.2.3.4") for _ in range(200)]) == 120
    with pytest.raises(Throttled, match="Too many events") as refused:
        await throttle.take("1.2.3.4", 1)
    assert refused.value.code == "IP_THROTTLED"
    assert refused.value.retry_after == pytest.approx(0.125)
    assert await sent(throttle, "1.2.3.5") == 1  # a neighbour has a bucket of its own
    passed = 120
    for _ in range(60):
        clock.advance(seconds=1)
        passed += sum([await sent(throttle, "1.2.3.4") for _ in range(30)])
    assert passed == 600


async def test_parallel_requests_meet_the_burst_exactly(redis: Redis, keys: Keys) -> None:
    throttle = Throttle(redis, keys, FakeClock())
    assert sum(await asyncio.gather(*(sent(throttle, "1.2.3.4") for _ in range(700)))) == 120


@pytest.mark.parametrize("cost", [1, 7, 110, 300, 590])
async def test_after_the_time_that_a_refusal_names_one_passes(redis: Redis, keys: Keys, cost: int) -> None:
    clock = FakeClock()
    policy = ThrottlePolicy(credit=0)
    throttle = Throttle(redis, keys, clock, policy)
    while await sent(throttle, "a"):
        pass
    for _ in range(2):  # asked of Redis, then answered from memory
        with pytest.raises(Throttled) as refused:
            await throttle.take("a", cost)
    wait_ms = math.ceil((refused.value.retry_after or 0) * 1000)
    clock.advance(ms=wait_ms - 200)
    assert await sent(Throttle(redis, keys, clock, policy), "a", cost) == 0
    clock.advance(ms=200)
    assert await sent(throttle, "a", cost) == cost


async def test_a_batch_costs_its_size_and_may_be_larger_than_the_burst(redis: Redis, keys: Keys) -> None:
    clock = FakeClock()
    throttle = Throttle(redis, keys, clock, ThrottlePolicy(credit=0))
    assert await sent(throttle, "a", 500) == 500  # nothing came before it
    assert await sent(throttle, "a") == 0
    clock.advance(seconds=47)
    assert await sent(throttle, "a") == 0
    clock.advance(seconds=1)
    assert await sent(throttle, "a") == 1
    with pytest.raises(Invalid) as refused:
        await throttle.take("a", 601)
    assert (refused.value.code, refused.value.faults[0].field) == ("BATCH_SIZE", "events")


@pytest.mark.parametrize(("limit", "seed"), [(60, 0), (60, 1), (600, 2), (600, 3), (2_000, 4), (7, 5), (1, 6)])
async def test_never_more_than_the_limit_in_any_window(redis: Redis, keys: Keys, limit: int, seed: int) -> None:
    """Any pattern of sending, through any of several processes."""
    random_ = random.Random(seed)
    clock = FakeClock()
    processes = [Throttle(redis, keys, clock, ThrottlePolicy(limit=limit, processes=3)) for _ in range(3)]
    passed: list[tuple[float, int]] = []
    refused_quiet = 0
    for _ in range(40):
        pace = random_.choice(((0, 0, 1), (1, 20, 90), (100, 130, 500), (3_000, 9_000, 47_000)))
        costs = random_.choice(((1,), (1, 1, 7), (1, limit // 2, limit - limit // 5)))
        for _ in range(random_.choice((3, 40))):
            clock.advance(ms=random_.choice(pace))
            now, cost = clock.monotonic(), min(max(1, random_.choice(costs)), max(1, limit - limit // 5))
            recent = sum(each for at, each in passed if at > now - 60)
            if await sent(random_.choice(processes), "x", cost):
                passed.append((now, cost))
            elif recent == 0 and cost == 1 and limit > 1:
                refused_quiet += 1
    for at, _ in passed:
        assert sum(cost for then, cost in passed if at <= then <= at + 60) <= limit
    assert refused_quiet == 0
    assert sum(cost for _, cost in passed) > 2 * limit


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
