"""One step for each tenant: a tenant that fails, hangs or is stopped takes no turn from the others."""

from __future__ import annotations

import asyncio

import pytest

from handbill.infra.postgres import PostgresStopped
from handbill.kit import task_health
from handbill.kit.errors import Broken, Busy, EngineRefused
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry.metrics import REGISTRY
from handbill.kit.tenant_rounds import TenantRounds
from tests.kit.clocks import FakeClock


class Steps:
    """Remembers whose turn it was; raises what was prepared for a tenant."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        self.errors = errors
        self.seen: list[int] = []

    async def step(self, tenant_id: int) -> int:
        self.seen.append(tenant_id)
        if tenant_id in self.errors:
            raise self.errors[tenant_id]
        return tenant_id * 10

    def take(self) -> list[int]:
        seen, self.seen = self.seen, []
        return seen


def sample(name: str, task: str) -> float:
    return REGISTRY.get_sample_value(name, {"task": task}) or 0.0


STOPPED = PostgresStopped("the statement took longer than its time limit", sqlstate="57014")


@pytest.mark.parametrize("error", [EngineRefused("refused"), Broken("wrong"), KeyError("x"), TimeoutError(), STOPPED])
async def test_an_error_of_one_tenant_leaves_the_others_their_turn(error: Exception) -> None:
    task = f"rounds-{type(error).__name__}"
    health, steps = TaskHealth(task), Steps({1: error})
    task_health.enter(health)
    rounds: TenantRounds[int] = TenantRounds(task, clock=FakeClock())
    assert await rounds.for_each_tenant([1, 2, 3], steps.step) == {2: 20, 3: 30}
    assert steps.seen == [1, 2, 3]
    assert sample("handbill_tenant_steps_failed_total", task) == 1
    assert sample("handbill_tenants_failing", task) == 1
    assert sample("handbill_task_errors_total", task) == 1
    assert type(error).__name__ in health.last_error
    assert health.errors == 0, "one tenant must not make the worker exit"


async def test_a_failing_tenant_pauses_comes_last_and_is_forgotten_once_it_succeeds() -> None:
    clock, steps = FakeClock(), Steps({1: ValueError("bad")})
    rounds: TenantRounds[int] = TenantRounds("rounds-order", clock=clock)
    for pause, seen in ((0.5, [1, 2]), (0.6, [2]), (1.9, [2, 1]), (0.2, [2]), (60, [2, 1])):
        await rounds.for_each_tenant([1, 2], steps.step)
        assert steps.take() == seen
        clock.advance(seconds=pause)
    steps.errors.clear()
    await rounds.for_each_tenant([1, 2], steps.step)
    assert steps.take() == [2, 1]
    await rounds.for_each_tenant([1, 2], steps.step)
    assert steps.take() == [1, 2]
    assert sample("handbill_tenants_failing", "rounds-order") == 0


async def test_an_engine_that_is_away_ends_the_round_and_its_tenant_is_last_in_the_next() -> None:
    clock, steps = FakeClock(), Steps({1: Busy("away")})
    rounds: TenantRounds[int] = TenantRounds("rounds-busy", clock=clock)
    with pytest.raises(Busy):
        await rounds.for_each_tenant([1, 2], steps.step)
    assert steps.take() == [1]
    clock.advance(seconds=2)
    with pytest.raises(Busy):
        await rounds.for_each_tenant([1, 2], steps.step)
    assert steps.take() == [2, 1]


async def test_a_step_that_hangs_ends_at_its_limit() -> None:
    done: list[int] = []

    async def step(tenant_id: int) -> None:
        if tenant_id == 1:
            await asyncio.Event().wait()
        done.append(tenant_id)

    rounds: TenantRounds[int] = TenantRounds("rounds-hang", timeout_s=0.01)
    await rounds.for_each_tenant([1, 2], step)
    assert done == [2]


async def test_a_cancelled_round_ends() -> None:
    rounds: TenantRounds[int] = TenantRounds("rounds-cancel")
    entered = asyncio.Event()

    async def step(tenant_id: int) -> None:
        entered.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(rounds.for_each_tenant([1, 2], step))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_tenants_that_nobody_asks_for_are_forgotten() -> None:
    clock, steps = FakeClock(), Steps({1: ValueError("bad")})
    rounds: TenantRounds[int] = TenantRounds("rounds-gone", clock=clock)
    await rounds.for_each_tenant([1], steps.step)
    clock.advance(minutes=11)
    await rounds.for_each_tenant([], steps.step)
    assert sample("handbill_tenants_failing", "rounds-gone") == 0
