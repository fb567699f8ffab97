"""Nightly retention: a step that fails skips no other, and the job fails at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from handbill.kit.telemetry import metrics
from handbill.wiring.queues import SystemTasks
from tests.kit.clocks import FakeClock


class Steps:
    """Stands for the parts; records who ran, and raises for those in `failing`."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.ran: list[str] = []
        tasks = object.__new__(SystemTasks)
        tasks._dropped = 0
        parts: dict[str, Any] = {
            "_clock": FakeClock(),
            "_events": SimpleNamespace(
                forget_keys=self.step("event_keys"),
                forget_sequence_corrections=self.step("sequence_corrections"),
                forget_replayed=self.step("replayed_events"),
                parked_requests=SimpleNamespace(prune=self.step("parked_requests")),
            ),
            "_history": SimpleNamespace(run=self.step("history")),
            "_banners": SimpleNamespace(retention=SimpleNamespace(run=self.step("banners"))),
        }
        for name, part in parts.items():
            setattr(tasks, name, part)
        self.tasks = tasks

    def step(self, name: str) -> Any:
        async def run(*_: Any) -> Any:
            self.ran.append(name)
            if name in self.failing:
                raise RuntimeError(name)
            return SimpleNamespace(dropped=["a", "b"])

        return run

    async def run(self) -> int:
        return await self.tasks.retention(None, None)  # type: ignore[arg-type]


ALL = ["event_keys", "sequence_corrections", "replayed_events", "parked_requests", "history", "banners"]


@pytest.mark.parametrize("failing", [["event_keys"], ["history"], ["banners"], ALL])
async def test_step_that_fails_skips_no_other(failing: list[str]) -> None:
    counted = {step: metrics.RETENTION_STEPS_FAILED.labels(step)._value.get() for step in ALL}
    steps = Steps(*failing)
    with pytest.raises(ExceptionGroup) as raised:
        await steps.run()
    assert steps.ran == ALL
    assert [str(error) for error in raised.value.exceptions] == failing
    now = {step: metrics.RETENTION_STEPS_FAILED.labels(step)._value.get() for step in ALL}
    assert {step for step in ALL if now[step] == counted[step] + 1} == set(failing)


async def test_all_steps_run_and_the_dropped_months_are_counted() -> None:
    steps = Steps()
    assert await steps.run() == 2
    assert steps.ran == ALL
