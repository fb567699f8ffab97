"""Bringing a person's profile back in the background: what fails is counted and logged, and tried again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handbill.infra.redis import Keys
from handbill.kit.errors import Busy
from handbill.kit.telemetry.metrics import REGISTRY
from handbill.segments.known import Known
from handbill.segments.projection import ProjectionKeys
from tests.kit.waiting import soon


class Database:
    """Raises what it is told, or waits for ever."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    @asynccontextmanager
    async def tenant(self, tenant_id: int) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        yield None


def count(outcome: str) -> float:
    return REGISTRY.get_sample_value("handbill_projection_fills_total", {"outcome": outcome}) or 0.0


def profiles(database: Database, **limits: int) -> Known:
    stub: Any = database
    projector: Any = None
    return Known(stub, projector, ProjectionKeys(Keys()), **limits)


@pytest.mark.parametrize("error", [Busy("away"), RuntimeError("nobody thought of this"), KeyError("x")])
async def test_a_fill_that_fails_is_counted_and_may_be_asked_for_again(error: Exception) -> None:
    database = Database()
    database.error = error
    fills = profiles(database)
    before = count("failed")
    for number in range(1, 4):
        fills.ask(1, "ann")
        [filling] = fills._filling.values()
        await soon(filling)
        await asyncio.sleep(0)
        assert not fills._filling
        assert database.asked == number
        assert count("failed") == before + number


async def test_fills_are_bounded_shared_and_end_with_the_process() -> None:
    fills = profiles(Database(), at_once=1, waiting=2)
    before = count("left")
    for user in ("ann", "ann", "bob", "eve"):
        fills.ask(1, user)
    assert len(fills._filling) == 2
    assert count("left") == before + 1
    await soon(fills.stop())
    await asyncio.sleep(0)
    assert not fills._filling
