"""Which lanes are told to be late with their exports: the rule at its limits, with a clock that the test moves."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from handbill.events.edge import EXPORT_AGE_S, STALLED_S, Edge
from handbill.events.shipping_store import Unshipped
from handbill.infra.journal.lanes import Lanes
from handbill.kit.errors import Busy
from handbill.kit.telemetry.metrics import REGISTRY
from tests.kit.clocks import FakeClock

MADE = datetime(2026, 6, 1, tzinfo=UTC)


class Lag:
    events = 0
    seconds = 0.0


class Journal:
    """Nothing waits to be counted."""

    async def lag(self, lane: str, cursor: str) -> Lag:
        return Lag()


class Tables:
    """What PostgreSQL says about exports; `is_away` makes it silent."""

    def __init__(self) -> None:
        self.waiting: dict[str, Unshipped] = {}
        self.is_away = False

    @asynccontextmanager
    async def worker(self) -> Any:
        if self.is_away:
            raise Busy("away")
        yield None

    async def cursors(self, tx: Any) -> dict[str, str]:
        return {}

    async def unshipped(self, tx: Any) -> dict[str, Unshipped]:
        return self.waiting


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tables = Tables()
        journal: Any = Journal()
        tables: Any = self.tables
        self.edge = Edge(journal, Lanes(main=2, overflow=1), tables, self.clock)
        self.edge._store = tables
        self.edge._shipping = tables

    async def look(self, seconds: float = 0.0) -> tuple[str, ...]:
        """Time passes, the waiting batches grow older, and the lanes are looked at."""
        self.clock.advance(seconds=seconds)
        self.tables.waiting = {
            lane: each._replace(seconds=each.seconds + seconds) for lane, each in self.tables.waiting.items()
        }
        await self.edge.look()
        return self.edge.stalled.exports


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_late_batch_that_does_not_move_is_told_by_its_lane(scene: Scene) -> None:
    scene.tables.waiting = {"1": Unshipped(7, EXPORT_AGE_S + 1, MADE), "o0": Unshipped(1, 0.0, MADE)}
    assert await scene.look() == (), "since when it has not moved is not known yet"
    assert await scene.look(STALLED_S - 1) == ()
    assert await scene.look(1) == ("1",), "the other one has not waited for long"
    assert REGISTRY.get_sample_value("handbill_events_unshipped", {"lane": "1"}) == 7
    scene.tables.waiting["1"] = Unshipped(7, EXPORT_AGE_S + 40, MADE + timedelta(seconds=1))
    assert await scene.look() == (), "another batch is the oldest: exporting goes on"
    assert await scene.look(STALLED_S + 1) == ("1", "o0"), "both have stood still since, and the other is late now"
    scene.tables.waiting = {}
    assert await scene.look() == ()
    assert REGISTRY.get_sample_value("handbill_events_unshipped", {"lane": "1"}) == 0


async def test_a_batch_that_waits_for_others_is_not_late(scene: Scene) -> None:
    scene.tables.waiting = {"0": Unshipped(1, 0.0, MADE)}
    for _ in range(int(EXPORT_AGE_S)):
        assert await scene.look(1) == ()
    assert await scene.look(1) == ("0",), "older than a minute"


async def test_while_postgresql_is_away_no_lane_is_called_stalled(scene: Scene) -> None:
    scene.tables.waiting = {"0": Unshipped(1, EXPORT_AGE_S + 1, MADE)}
    await scene.look()
    scene.tables.is_away = True
    assert await scene.look(STALLED_S * 3) == ()
    scene.tables.is_away = False
    assert await scene.look() == ("0",), "it did not move meanwhile"
