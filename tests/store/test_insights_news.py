"""What a live tail tells of the pipeline: rows it parked, and how its drop counts grew; a tenant's own only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from handbill.events.batch import DropKey, Parked
from handbill.events.reasons import Reason
from handbill.events.service import EventsService
from handbill.events.store import EventStore
from handbill.infra.postgres import Database
from handbill.insights.watching import Pipeline
from handbill.kit.ids import Ids
from tests.kit.clocks import FakeClock


async def test_news_are_what_came_since_the_last_look(
    database: Database, tenant: int, make_tenant: Callable[..., Awaitable[int]]
) -> None:
    nobody: Any = None  # reading needs no edge, and nothing to write with
    clock, other = FakeClock(), await make_tenant()
    events = EventsService(database, nobody, audit=nobody, outbox=nobody, stored=nobody, history=nobody)
    store = EventStore()
    today = clock.now().date()

    async def dropped(whose: int, count: int) -> None:
        drops: Counter[DropKey] = Counter({(whose, today, "capture", Reason.DUPLICATE): count})
        async with database.worker() as tx:
            await store.add_drops(tx, drops, 1)

    async def parked(whose: int, event_id: str) -> None:
        row = Parked(whose, "capture", event_id, Reason.REJECTED, "sqlstate 22021", b"bytes")
        async with database.worker() as tx:
            await store.park(tx, [row], "1", Ids(clock))

    await dropped(tenant, 5)
    pipeline = Pipeline(events, clock, tenant)
    assert await pipeline.look() == []  # the first look only learns
    await dropped(tenant, 2)
    await dropped(other, 9)
    await parked(tenant, "e-1")
    await parked(other, "e-2")
    told = await pipeline.look()
    assert [(one.kind, getattr(one.value, "event_id", None)) for one in told] == [("parked", "e-1"), ("dropped", None)]
    assert (told[1].value.events, told[1].value.reason) == (2, "DUPLICATE")
    assert await pipeline.look() == []
