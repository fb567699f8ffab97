"""The order of events through the real loop, whatever is retried, batched in another way, reordered or killed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from handbill.events.model import CapturedEvent, Event, Impression, key
from handbill.events.policy import ConsumerPolicy
from handbill.events.service import STATE as EVENTS
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.infra.state import state_hash
from handbill.people.service import STATE as PEOPLE
from tests.conftest import MakeTenant
from tests.kit import people as kit
from tests.kit import retrying_client as client
from tests.kit.clocks import FakeClock
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop, own_lanes
from tests.store.test_people_loop import a_victim, forget, taken_over

SEQUENCES = Sql("select key, sequence from events.event_keys where tenant_id = $1", "test_sequences")
CORRECTIONS = Sql(
    "select event_key, sequence, exported_at from events.sequence_corrections where tenant_id = $1", "test_corrections"
)
PEOPLE_NOW = Sql("select named_by, properties::text from people.persons where tenant_id = $1", "test_people_now")


def of_tenant(tenant: int, now: int, batches: Sequence[Sequence[CapturedEvent]]) -> list[list[Event]]:
    return [
        [msgspec.structs.replace(event, tenant=tenant, at=now - kit.HOUR + event.at, received=now) for event in batch]
        for batch in batches
    ]


async def sequences(database: Database, tenant: int) -> dict[bytes, int]:
    async with database.worker() as tx:
        return {row["key"]: row["sequence"] for row in await tx.fetch(SEQUENCES, tenant)}


async def corrections(database: Database, tenant: int) -> dict[bytes, int]:
    async with database.worker() as tx:
        return {row["event_key"]: row["sequence"] for row in await tx.fetch(CORRECTIONS, tenant)}


async def people_now(database: Database, tenant: int) -> dict[str, dict[str, Any]]:
    async with database.worker() as tx:
        return {row[0]: json.loads(row[1]) for row in await tx.fetch(PEOPLE_NOW, tenant)}


def impression(tenant: int, event_id: str, now: int, sequence: int) -> Impression:
    return Impression(tenant, event_id, now, now, 1, session="s", sequence=sequence)


async def test_of_copies_the_smallest_sequence_counts_whichever_comes_first(
    database: Database, redis: Redis, tenant: int
) -> None:
    """Batches of one event each, so that copies meet in different transactions; and all in one batch."""
    async with loop(database, redis) as app:
        await app.consumer(ConsumerPolicy(batch_events=1, batch_wait_ms=0))
        now = app.clock.now_ms()
        for sequence in (7, 3, 9, 3):
            await app.events.accept([impression(tenant, "one", now, sequence)])
        await app.events.accept([impression(tenant, "once", now, 8)])
        await app.events.accept([impression(tenant, "again", now, 2)])
        await app.events.accept([impression(tenant, "again", now, 5)])
        await app.drained()
    assert await sequences(database, tenant) == {
        key("impression", "one"): 3, key("impression", "once"): 8, key("impression", "again"): 2,
    }  # fmt: skip
    # Only where the journal's first copy, which is exported, has a larger one.
    assert await corrections(database, tenant) == {key("impression", "one"): 3}


async def test_a_copy_in_the_same_batch_lowers_the_sequence_of_the_first(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as app:
        now = app.clock.now_ms()
        await app.events.accept([impression(tenant, "one", now, sequence) for sequence in (7, 3, 5)])
        await app.consumer(ConsumerPolicy(batch_events=100, batch_wait_ms=0))
        await app.drained()
    assert await sequences(database, tenant) == {key("impression", "one"): 3}
    assert await corrections(database, tenant) == {key("impression", "one"): 3}


async def test_a_correction_that_was_exported_is_open_again_when_a_smaller_one_comes(
    database: Database, redis: Redis, tenant: int
) -> None:
    exported = Sql("update events.sequence_corrections set exported_at = now() where tenant_id = $1", "test_exported")
    async with loop(database, redis) as app:
        await app.consumer(ConsumerPolicy(batch_events=1, batch_wait_ms=0))
        now = app.clock.now_ms()
        for sequence in (9, 7):
            await app.events.accept([impression(tenant, "one", now, sequence)])
        await app.drained()
        async with database.worker() as tx:
            await tx.execute(exported, tenant)
        for sequence in (8, 7):
            await app.events.accept([impression(tenant, "one", now, sequence)])
        await app.drained()
        async with database.worker() as tx:
            assert [row["exported_at"] is None for row in await tx.fetch(CORRECTIONS, tenant)] == [False]
        await app.events.accept([impression(tenant, "one", now, 4)])
        await app.drained()
    async with database.worker() as tx:
        rows = await tx.fetch(CORRECTIONS, tenant)
    assert [(row["sequence"], row["exported_at"]) for row in rows] == [(4, None)]


@pytest.mark.parametrize("seed", [3, 4, 5])
async def test_every_arrangement_of_retried_and_rebatched_requests_gives_the_state_of_the_order(
    engines: Engines, database: Database, redis: Redis, tenant: int, seed: int
) -> None:
    clock = FakeClock(datetime.now(UTC))
    made = client.calls(seed)
    delivered = client.requests(seed, made)
    expected = client.counted(delivered)
    assert len(expected) == len(made)
    chance = random.Random(seed)
    states = []
    for consumers, main, size in ((1, 1, 5_000), (1, 2, 1), (4, 4, 7), (2, 3, 40)):
        await forget(engines, tenant)
        async with loop(database, redis, clock=clock, lanes=own_lanes(main)) as app:
            for _ in range(consumers):
                await app.consumer(ConsumerPolicy(batch_events=size, batch_wait_ms=1, lease_s=4))
            batches = of_tenant(tenant, clock.now_ms(), [*delivered, *chance.choices(delivered, k=5)])
            chance.shuffle(batches)
            await asyncio.gather(*(app.events.accept(batch) for batch in batches))
            await app.drained()
            async with database.worker() as tx:
                states.append(await state_hash(tx, (*PEOPLE, EVENTS[0])))
        assert await people_now(database, tenant) == client.properties(expected), f"{consumers}, {main}, {size}"
        assert await sequences(database, tenant) == {key("capture", event.id): event.sequence for event in expected}
    for state in states[1:]:
        assert state == states[0]


async def test_death_at_every_point_keeps_the_order(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    """Each death in the middle of a retry that arrives after, or before, what it repeats."""
    tenant, control = await make_tenant(), await make_tenant()
    batches = client.requests(8, client.calls(8, number=1_500))
    random.Random(8).shuffle(batches)
    sent: list[list[CapturedEvent]] = []
    async with loop(database, redis, lanes=own_lanes(1)) as app, a_victim(engines, app) as victim:
        now, end = app.clock.now_ms(), ""

        async def prepared() -> None:
            nonlocal end
            fresh = batches[len(sent) : len(sent) + 4]
            assert len(fresh) == 4, "too few requests for so many deaths"
            sent.extend(fresh)
            for batch in of_tenant(tenant, now, fresh):
                await app.events.accept(batch)
            end = await last_entry(app, tenant)

        async def attempt() -> None:
            await victim.consume(end)

        async def check(at: int, name: str) -> None:
            await taken_over(app)
            expected = client.counted(sent)
            assert await people_now(database, tenant) == client.properties(expected), f"death {at} at {name}"
            stored = {key("capture", event.id): event.sequence for event in expected}
            assert await sequences(database, tenant) == stored, f"death {at} at {name}"
            await prepared()

        await prepared()
        assert await enumerate_points(attempt, check, only="after:", what="order") > 40
        await taken_over(app)
        [whole] = of_tenant(control, now, [client.counted(sent)])
        await kit.commit(database, control, [event for event in whole if isinstance(event, CapturedEvent)])
        await app.people.keeper.settle(control)
        assert await kit.state(database, tenant) == await kit.state(database, control)


async def last_entry(app: Loop, tenant: int) -> str:
    lane = app.lanes.lane_for(tenant, "anybody")
    last: bytes = await app.redis.call("HGET", app.keys.tagged("journal", lane, "meta"), "last")
    return last.decode()
