"""People in PostgreSQL: whatever the order, split and repetition, the same rows; and what was undone never was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest

from handbill.events.model import CapturedEvent
from handbill.events.model import Edge as SaidEdge
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import NotFound
from handbill.people.folding import Folder
from handbill.people.gather import Gathered, edge_key
from handbill.people.identity import fold
from handbill.people.model import EdgeKind, EdgeName
from tests.conftest import MakeTenant
from tests.kit.people import commit, everybody, history, said, state


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
    assert expected["named"] == sorted(repr((each, pure.name_of(each))) for each in everybody(events))


@pytest.mark.parametrize("seed", range(3))
async def test_an_undone_edge_never_was(database: Database, make_tenant: MakeTenant, seed: int) -> None:
    events = history(seed + 50)
    names = sorted({edge.name for edge in Gathered(events).edges.values()})
    taken_back = random.Random(seed).choice(names)
    undone, never = await make_tenant(), await make_tenant()
    folder = Folder(database)
    before = await live(database, undone, events, seed)
    await folder.void(undone, edge_key(taken_back), "an operator")
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
    await folder.restore(undone, edge_key(taken_back))
    assert await state(database, undone) == before
    with pytest.raises(NotFound):
        await folder.restore(undone, edge_key(taken_back))


def _name(event: CapturedEvent) -> EdgeName | None:
    edges = list(Gathered([event]).edges.values())
    return edges[0].name if edges else None


def _plus_ids(expected: list[str], found: list[str]) -> list[str]:
    """An id that was named by the undone edge alone is still known as an id; everybody else must be the same."""
    extra = [row for row in found if row not in expected]
    assert all(", 1, None, 0, None, None, 0, None, '{}'," in row for row in extra), extra
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
    assert await folder.fold(tenant) == 0, "new and linked to nobody: the batch itself wrote the person"
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
    await folder.void(tenant, edge_key(EdgeName(EdgeKind.IDENTIFY, "phone", "zoe")), "an operator")
    async with database.worker() as tx:
        rows = await tx.fetch(
            Sql("select distinct_id, version from people.distinct_ids where tenant_id = $1 order by 1"), tenant
        )
    assert [tuple(row) for row in rows] == [("phone", 2), ("zoe", 0)]


async def test_a_newer_edge_is_appended_and_only_a_late_one_folds_anew(database: Database, tenant: int) -> None:
    """A shared device: every user logs in on it. Each login looks at two people, however many came before."""
    folder = Folder(database)
    for number in range(30):
        login = said(tenant, f"e{number:02}", 10 + number, "$identify", f"user{number}",
                     edge=SaidEdge(EdgeKind.IDENTIFY, "kiosk"))  # fmt: skip
        await commit(database, tenant, [login])
        await folder.fold(tenant)
    assert folder.refolds == 0
    before = await state(database, tenant)
    assert len(before["warnings"]) == 29
    late = said(tenant, "late", 1, "$identify", "owner", edge=SaidEdge(EdgeKind.IDENTIFY, "kiosk"))
    await commit(database, tenant, [late])
    await folder.fold(tenant)
    assert folder.refolds == 1
    assert len((await state(database, tenant))["warnings"]) == 30
