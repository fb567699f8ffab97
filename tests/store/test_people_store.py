"""People in PostgreSQL: whatever the order, split and repetition, the same rows; and what was undone never was."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from handbill.events.model import CapturedEvent
from handbill.events.model import Edge as SaidEdge
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import NotFound
from handbill.people import store
from handbill.people.folding import Folder
from handbill.people.gather import Gathered
from handbill.people.identity import fold
from handbill.people.model import Edge, EdgeKind, EdgeName
from tests.conftest import MakeTenant


def said(tenant: int, name: str, at: int, event: str, who: str, **more: Any) -> CapturedEvent:
    return CapturedEvent(tenant, name, at, at, event, who, "own", **more)


HOUR = 3_600_000
STATE = {
    "persons": "named_by, ids, identified_at, identified_event, last_edge_at, last_edge_event, properties, created_at",
    "distinct_ids": "distinct_id, first_seen_at",
    "properties": "distinct_id, words, moments",
    "person_edges": "kind, source_id, target_id, first_at, first_event, outcome",
    "warnings": "edge_key, code, detail, at",
    "unfolded": "distinct_id",
    "event_definitions": "event_name, first_seen_at, last_seen_at",
    "property_definitions": "property_type, property_name, value_type, first_seen_at, last_seen_at",
    "event_properties": "event_name, property_name, value_type, first_seen_at, last_seen_at",
}
NAMES = Sql(
    "select d.distinct_id, p.named_by from people.distinct_ids d"
    " join people.persons p on p.tenant_id = d.tenant_id and p.person_id = d.person_id where d.tenant_id = $1"
)


def history(seed: int, size: int = 60) -> list[CapturedEvent]:
    chance = random.Random(seed)
    ids = [f"id{n}" for n in range(12)]
    events = []
    for number in range(size):
        at = chance.randrange(6 * HOUR)
        who, event = chance.choice(ids), said(0, f"e{number:03}", at, chance.choice(("see", "buy")), "")
        props = json.dumps({"price": chance.choice((1, "1", "dear", None))}).encode()
        told = json.dumps({chance.choice(("plan", "city")): chance.randrange(4)}).encode()
        more: dict[str, Any] = chance.choice(
            (
                {}, {"set": told}, {"set_once": told}, {"unset": json.dumps(list(json.loads(told))).encode()},
                {"edge": SaidEdge(chance.choice(list(EdgeKind)), chance.choice(ids))}, {"name": "$identify"},
            )
        )  # fmt: skip
        events.append(msgspec.structs.replace(event, distinct_id=who, properties=props, **more))
    return events


async def commit(database: Database, tenant: int, events: Sequence[CapturedEvent]) -> None:
    gathered = Gathered(msgspec.structs.replace(each, tenant=tenant) for each in events)
    async with database.worker() as tx:
        await store.write(tx, gathered)
        await store.write_definitions(tx, gathered.seen.seen())


async def state(database: Database, tenant: int) -> dict[str, list[str]]:
    found = {}
    async with database.worker() as tx:
        for table, columns in STATE.items():
            rows = await tx.fetch(Sql(f"select {columns} from people.{table} where tenant_id = $1"), tenant)
            found[table] = sorted(repr(tuple(row)) for row in rows)
        named = await tx.fetch(NAMES, tenant)
        found["named"] = sorted(repr(tuple(row)) for row in named)
    return found


async def live(database: Database, tenant: int, events: Sequence[CapturedEvent], seed: int) -> dict[str, list[str]]:
    """Shuffled, some of them twice, in batches of random size; folded now and then, and at the end."""
    chance = random.Random(seed)
    told = [*events, *chance.sample(list(events), len(events) // 4)]
    chance.shuffle(told)
    folder = Folder(database)
    while told:
        batch, told = told[: (size := chance.randint(1, 12))], told[size:]
        await commit(database, tenant, batch)
        if chance.random() < 0.6:
            await folder.fold(tenant)
    await folder.fold(tenant)
    return await state(database, tenant)


@pytest.mark.parametrize("seed", range(5))
async def test_any_order_split_and_repetition_gives_the_same_rows(
    database: Database, make_tenant: MakeTenant, seed: int
) -> None:
    events = history(seed)
    whole = await make_tenant()
    await commit(database, whole, events)
    await Folder(database).fold(whole)
    expected = await state(database, whole)
    assert expected["unfolded"] == []
    assert await live(database, await make_tenant(), events, seed + 100) == expected
    edges = list(Gathered(events).edges.values())
    pure = fold(edges)
    assert expected["named"] == sorted(repr((each, pure.name_of(each))) for _, each in Gathered(events).ids)


@pytest.mark.parametrize("seed", range(3))
async def test_an_undone_edge_never_was(database: Database, make_tenant: MakeTenant, seed: int) -> None:
    events = history(seed + 50)
    names = sorted({edge.name for edge in Gathered(events).edges.values()})
    taken_back = random.Random(seed).choice(names)
    undone, never = await make_tenant(), await make_tenant()
    folder = Folder(database)
    before = await live(database, undone, events, seed)
    await folder.void(undone, taken_back, "an operator")
    without = [
        msgspec.structs.replace(each, edge=None, name="see") if _name(each) == taken_back else each for each in events
    ]
    expected = await live(database, never, without, seed)
    found = await state(database, undone)
    assert found["persons"] == _plus_ids(expected["persons"], found["persons"])
    assert found["warnings"] == expected["warnings"]
    await commit(database, undone, events)
    await folder.fold(undone)
    assert await state(database, undone) == found, "said again, it stays undone"
    await folder.restore(undone, taken_back)
    assert await state(database, undone) == before
    with pytest.raises(NotFound):
        await folder.restore(undone, taken_back)


def _name(event: CapturedEvent) -> EdgeName | None:
    edges = list(Gathered([event]).edges.values())
    return edges[0].name if edges else None


def _plus_ids(expected: list[str], found: list[str]) -> list[str]:
    """An id that was named by the undone edge alone is still known as an id; everybody else must be the same."""
    extra = [row for row in found if row not in expected]
    assert all(", 1, None, None, None, None, '{}'," in row for row in extra), extra
    return sorted(expected + extra)


async def test_lanes_that_write_and_fold_at_once_end_in_the_same_rows(
    database: Database, make_tenant: MakeTenant
) -> None:
    events = history(7, size=160)
    alone, crowd = await make_tenant(), await make_tenant()
    expected = await live(database, alone, events, 1)
    folder = Folder(database)

    async def lane(number: int) -> None:
        mine = events[number::4] + events[(number + 1) % 4 :: 8]
        for start in range(0, len(mine), 7):
            await commit(database, crowd, mine[start : start + 7])
            await folder.fold(crowd)

    await asyncio.gather(*(lane(number) for number in range(4)))
    await folder.fold(crowd)
    assert await state(database, crowd) == expected


async def test_saying_the_same_again_writes_no_words_and_marks_nobody(database: Database, tenant: int) -> None:
    first = said(tenant, "e1", 1, "$set", "zoe", set=b'{"plan":"pro"}')
    await commit(database, tenant, [first])
    folder = Folder(database)
    assert await folder.fold(tenant) == 1
    await commit(database, tenant, [msgspec.structs.replace(first, id="e2", at=9)])
    assert await folder.fold(tenant) == 0
    late = msgspec.structs.replace(first, id="e3", at=5, set=b'{"plan":"free"}')
    await commit(database, tenant, [late])
    await folder.fold(tenant)
    assert '\'{"plan": "pro"}\'' in (await state(database, tenant))["persons"][0]


async def test_a_move_is_told_to_the_event_store_by_a_version(database: Database, tenant: int) -> None:
    folder = Folder(database)
    await commit(database, tenant, [said(tenant, "e1", 1, "see", "phone"), said(tenant, "e2", 2, "see", "zoe")])
    await folder.fold(tenant)
    joined = said(tenant, "e3", 3, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, "phone"))
    await commit(database, tenant, [joined])
    await folder.fold(tenant)
    await folder.void(tenant, Edge(EdgeKind.IDENTIFY, "phone", "zoe", 3, "e3").name, "an operator")
    async with database.worker() as tx:
        rows = await tx.fetch(
            Sql("select distinct_id, version from people.distinct_ids where tenant_id = $1 order by 1"), tenant
        )
    assert [tuple(row) for row in rows] == [("phone", 2), ("zoe", 0)]
