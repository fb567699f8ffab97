"""A rebuild of the caps gives signs of life: however long it takes, nobody takes it for a task that hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from handbill.caps.model import Subject
from handbill.caps.service import CapsService
from handbill.kit import task_health
from handbill.kit.task_health import LIMIT_S, TaskHealth
from tests.kit.clocks import FakeClock

PAGES = 20
PAGE_S = LIMIT_S * 0.9


class SlowHistory:
    """Each page takes nearly as long as a task may be silent."""

    def __init__(self, clock: FakeClock, health: TaskHealth) -> None:
        self._clock = clock
        self._health = health
        self.was_silent = False

    async def pages(self, tenant_id: int | None) -> AsyncIterator[dict[Subject, list[Any]]]:
        for number in range(PAGES):
            self._wait()
            yield {Subject(1, f"u{number}"): []}

    async def lifetimes(self, tenant_id: int | None) -> AsyncIterator[list[Subject]]:
        for number in range(PAGES):
            self._wait()
            yield [Subject(1, f"u{number}")]

    async def of(self, subject: Subject, raw: bytes) -> list[Any]:
        return []

    def _wait(self) -> None:
        self._clock.advance(seconds=PAGE_S)
        self.was_silent = self.was_silent or self._health.is_silent()


class Redis:
    """Takes everything."""

    def script(self, source: str) -> Any:
        async def run(*given: Any, **named: Any) -> int:
            return 1

        return run

    async def call(self, *command: Any) -> None: ...

    async def many(self, commands: list[Any], **named: Any) -> list[Any]:
        return []


class Alone:
    """Nobody shares a device."""

    async def spread(self, page: Any) -> Any:
        return page

    async def siblings(self, subjects: Any) -> dict[Subject, list[Subject]]:
        return {}


async def test_a_long_rebuild_gives_signs_of_life() -> None:
    clock = FakeClock()
    health = TaskHealth("caps-keeper", clock=clock)
    health.heartbeat()
    stub: Any = None
    redis: Any = Redis()
    service = CapsService(redis, stub, stub, clock)
    history: Any = SlowHistory(clock, health)
    together: Any = Alone()
    service._history, service._together = history, together
    task_health.enter(health)
    assert await service.rebuild("token") == 0
    assert not history.was_silent
    assert clock.monotonic() > LIMIT_S * PAGES
