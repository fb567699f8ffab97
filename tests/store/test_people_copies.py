"""People when copies come later with a smaller sequence: whatever operators and erasures do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from handbill.events.batch import Batch, Owned
from handbill.events.model import CapturedEvent, encode, key
from handbill.events.model import Edge as SaidEdge
from handbill.events.pipeline.commit import Commit
from handbill.events.pipeline.steps import STEPS
from handbill.events.store import EventStore
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.kit.ids import Ids
from handbill.people import store as people_store
from handbill.people.gather import Gathered, edge_key
from handbill.people.keeper import Keeper
from handbill.people.model import EdgeKind, EdgeName
from handbill.people.sink import PeopleSink
from tests.conftest import MakeTenant
from tests.kit import people as kit
from tests.kit import retrying_client as client
from tests.kit.clocks import FakeClock
from tests.store.test_event_order import people_now, sequences

FIRST_SIGHTINGS = Sql(
    "select first_sequence, first_event from people.person_edges where tenant_id = $1", "test_first_sightings"
)
OLD_MOMENTS = Sql(
    "update people.properties set moments = $2 where tenant_id = $1 and distinct_id = 'ann'", "test_old_moments"
)
MOMENTS = Sql("select moments from people.properties where tenant_id = $1 and distinct_id = 'ann'", "test_moments")


@pytest.mark.parametrize("seed", range(4))
async def test_undone_links_and_merges_are_the_same_whenever_the_copies_come(
    database: Database, make_tenant: MakeTenant, seed: int
) -> None:
    """An operator undoes a link and restores another in the middle of copies that reorder both."""
    made = client.calls(seed + 20, number=90, people=6, moments=2)
    delivered = client.requests(seed + 20, made)
    expected = client.counted(delivered)
    names = sorted({edge.name for edge in Gathered(expected).edges.values()})
    voided, restored = random.Random(seed).sample(names, 2)
    states = []
    for arrangement in range(3):
        tenant, chance = await make_tenant(), random.Random(seed * 10 + arrangement)
        batches = [[msgspec.structs.replace(event, tenant=tenant) for event in batch] for batch in delivered]
        if arrangement:
            chance.shuffle(batches)
        keeper, store = Keeper(database), Deliveries(database, tenant)
        half = len(batches) // 2
        for batch in batches[:half]:
            await store.deliver(batch)
        await keeper.settle(tenant)
        for name in (voided, restored):
            await store.ensure(name, expected)
            await keeper.settle(tenant)
            await keeper.void(tenant, edge_key(name), "olga")
        for batch in batches[half:]:
            await store.deliver(batch)
            if chance.random() < 0.3:
                await keeper.settle(tenant)
        await keeper.restore(tenant, edge_key(restored))
        await keeper.settle(tenant)
        states.append(await kit.state(database, tenant))
        assert await people_now(database, tenant) == client.properties(expected, [voided])
        assert await sequences(database, tenant) == {key("capture", event.id): event.sequence for event in expected}
    assert states[1] == states[0]
    assert states[2] == states[0]


class Deliveries:
    """The part of the pipeline's transaction that is about copies and people, batch by batch."""

    def __init__(self, database: Database, tenant: int) -> None:
        self._database, self._tenant, self._store = database, tenant, EventStore()

    async def deliver(self, events: Sequence[CapturedEvent]) -> None:
        batch = Batch(Owned("0", 0, 1), "0-0", "1-0", [encode(event) for event in events], "0-0")
        for step in STEPS:
            batch = step(batch)
        sinks = [PeopleSink(Keeper(self._database), FakeClock())]
        commit = Commit(self._database, self._store, sinks, Ids(), timedelta(seconds=1))
        async with self._database.worker() as tx:
            await commit._count(tx, batch.rows, 0)

    async def ensure(self, name: EdgeName, expected: Sequence[CapturedEvent]) -> None:
        """The operator sees the link, whatever has arrived: its first sighting may come as it will come anyway."""
        for event in expected:
            whole = Gathered([event]).edges
            if (event.tenant, name) in whole:
                await self.deliver([msgspec.structs.replace(event, tenant=self._tenant)])


# ---------------------------------------------------------------------------------------- erasure
async def test_a_late_first_attempt_brings_nothing_of_an_erased_person_back(database: Database, tenant: int) -> None:
    events = [
        copy_of(tenant, "e1", 9, set_once=b'{"plan":"basic"}', edge=SaidEdge(EdgeKind.IDENTIFY, "anon")),
        copy_of(tenant, "e2", 8, set=b'{"city":"Rome"}'),
    ]
    deliveries, keeper = Deliveries(database, tenant), Keeper(database)
    await deliveries.deliver(events)
    await keeper.settle(tenant)
    await keeper.folder.erase(tenant, ["ann", "anon"])
    await deliveries.deliver([msgspec.structs.replace(event, sequence=1) for event in events])
    await keeper.settle(tenant)
    left = await kit.state(database, tenant)
    assert not any(left[table] for table in ("persons", "distinct_ids", "properties", "person_edges", "unfolded"))
    assert set((await sequences(database, tenant)).values()) == {1}


@pytest.mark.parametrize("said_again", [False, True])
async def test_an_erasure_in_the_middle_of_a_correction_wins(
    database: Database, tenant: int, monkeypatch: pytest.MonkeyPatch, said_again: bool
) -> None:
    """The edge is erased between reading its first sighting and writing the corrected one."""
    edge = SaidEdge(EdgeKind.IDENTIFY, "anon")
    deliveries, keeper = Deliveries(database, tenant), Keeper(database)
    await deliveries.deliver([copy_of(tenant, "e1", 9, edge=edge)])
    await keeper.settle(tenant)
    write_books = people_store._write_books

    async def erased_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(people_store, "_write_books", write_books)
        await keeper.folder.erase(tenant, ["ann", "anon"])
        return await write_books(*args)

    monkeypatch.setattr(people_store, "_write_books", erased_meanwhile)
    new = msgspec.structs.replace(copy_of(tenant, "e2", 5, edge=edge), micros=900)
    await deliveries.deliver([copy_of(tenant, "e1", 1, edge=edge), *([new] if said_again else [])])
    await keeper.settle(tenant)
    async with database.worker() as tx:
        edges = [tuple(row) for row in await tx.fetch(FIRST_SIGHTINGS, tenant)]
    assert edges == ([(5, "e2")] if said_again else [])
    assert (await kit.state(database, tenant))["unfolded"] == []
    assert len((await kit.state(database, tenant))["persons"]) == (1 if said_again else 0)


def copy_of(tenant: int, event_id: str, sequence: int, **more: Any) -> CapturedEvent:
    return CapturedEvent(tenant, event_id, 1_000, 1_000, "see", "ann", "own", micros=5, sequence=sequence, **more)


# ---------------------------------------------------------------------------------------- releases before this one
async def test_rows_of_the_release_before_go_on_as_they_are(database: Database, tenant: int) -> None:
    """0 in every sequence, milliseconds in the moments: read right, and written in the new form when they change."""
    deliveries, keeper = Deliveries(database, tenant), Keeper(database)
    edge = SaidEdge(EdgeKind.IDENTIFY, "anon")
    old = [
        CapturedEvent(tenant, "e1", 1_000, 1_000, "see", "ann", "own", set=b'{"plan":"a"}', edge=edge),
        CapturedEvent(tenant, "e2", 1_000, 1_000, "see", "ann", "own", set_once=b'{"city":"Rome"}'),
    ]
    await deliveries.deliver(old)
    await keeper.settle(tenant)
    encode_msgpack = msgspec.msgpack.Encoder().encode
    moments = encode_msgpack(([(1_000, "e1"), (1_000, "e2")], [(-1, 1), (0, -1)]))
    async with database.worker() as tx:
        await tx.execute(OLD_MOMENTS, tenant, moments)
    later = [msgspec.structs.replace(each, sequence=77, micros=3) for each in old]
    await deliveries.deliver(later)
    await keeper.settle(tenant)
    async with database.worker() as tx:
        assert await tx.fetchval(MOMENTS, tenant) == moments, "copies change nothing: 0 is the smallest sequence"
    assert set((await sequences(database, tenant)).values()) == {0}
    assert await people_now(database, tenant) == {"ann": {"city": "Rome", "plan": "a"}}
    new = CapturedEvent(
        tenant, "e3", 1_000, 1_000, "see", "anon", "own", set=b'{"plan":"b"}', micros=1, sequence=5
    )  # fmt: skip
    default = msgspec.structs.replace(new, id="e4", distinct_id="ann", set=None, set_once=b'{"city":"Oslo","zip":1}')
    await deliveries.deliver([new, default])
    await keeper.settle(tenant)
    assert await people_now(database, tenant) == {"ann": {"city": "Rome", "plan": "b", "zip": 1}}
    async with database.worker() as tx:
        found = msgspec.msgpack.decode(await tx.fetchval(MOMENTS, tenant))[0]
    assert found == [[1_000_000, 0, "e1"], [1_000_000, 0, "e2"], [1_000_001, 5, "e4"]]
