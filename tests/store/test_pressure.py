"""Back-pressure: each tenant's pile is its own, and the door says when to come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.model import JobOptions
from handbill.jobs.pressure import Load, Pressure, PressureLimits, retry_after
from handbill.kit.errors import Throttled
from tests.store.outbox_bench import Bench, a_bench


@pytest.fixture
async def bench(database: Database, redis: Redis, unique: Callable[[str], str]) -> AsyncIterator[Bench]:
    async with a_bench(database, redis, unique("pressure")) as bench:
        yield bench


async def test_one_tenants_pile_closes_the_door_for_nobody_else(
    bench: Bench, tenant: int, make_tenant: Callable[..., object]
) -> None:
    other: int = await make_tenant()  # type: ignore[misc]
    pressure = Pressure(bench.database, PressureLimits(depth=10, fresh_s=0))
    await bench.put(tenant, 10)
    await pressure.check(bench.name, tenant)
    await bench.put(tenant, 1)
    with pytest.raises(Throttled) as refused:
        await pressure.check(bench.name, tenant)
    assert refused.value.status == 429
    assert refused.value.retry_after
    await pressure.check(bench.name, other)
    await pressure.check(bench.name, None)


async def test_work_for_later_is_no_pressure(bench: Bench, tenant: int) -> None:
    pressure = Pressure(bench.database, PressureLimits(depth=1, fresh_s=0))
    await bench.put(tenant, 5, opts=JobOptions(delay_ms=3_600_000))
    await pressure.check(bench.name, tenant)


async def test_an_answer_is_shared_for_a_second(bench: Bench, tenant: int) -> None:
    pressure = Pressure(bench.database, PressureLimits(depth=1, fresh_s=3600))
    await pressure.check(bench.name, tenant)
    await bench.put(tenant, 5)
    await pressure.check(bench.name, tenant)


@given(depth=st.integers(0, 10**7), age=st.floats(0, 10**6))
def test_the_wait_grows_with_the_pile_and_has_bounds(depth: int, age: float) -> None:
    limits = PressureLimits()
    wait = retry_after(Load(depth, age), limits)
    if depth <= limits.depth and age <= limits.age_s:
        assert wait is None
    else:
        assert wait is not None
        assert limits.retry_min_s <= wait <= limits.retry_max_s
        more = retry_after(Load(depth * 2, age * 2), limits)
        assert more is not None
        assert more >= wait
