"""Events with `$process_person_profile: false`: who is a person depends on the set of events, not on their order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from handbill.events.model import PERSONLESS, CapturedEvent, Edge, EdgeKind
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.people.folding import Folder
from handbill.people.model import person_id
from tests.conftest import MakeTenant
from tests.kit.people import commit, history, said, state

IDS = Sql("select distinct_id from people.distinct_ids where tenant_id = $1 order by distinct_id", "test_ids")
MOVED = Sql(
    "select person_id, version > 0 as moved from people.distinct_ids where tenant_id = $1 and distinct_id = $2",
    "test_moved",
)


def nobodys(event: CapturedEvent) -> CapturedEvent:
    """As the intake makes it: it changes nobody."""
    return msgspec.structs.replace(event, set=None, set_once=None, unset=None, edge=None, marks=(PERSONLESS,))


async def live(database: Database, tenant: int, events: Sequence[CapturedEvent], chance: random.Random) -> None:
    folder, rest = Folder(database), list(events)
    while rest:
        batch, rest = rest[: (size := chance.randint(1, 12))], rest[size:]
        await commit(database, tenant, batch)
        if chance.random() < 0.5:
            await folder.fold(tenant)
    await folder.fold(tenant)


@pytest.mark.parametrize("seed", range(3))
async def test_any_order_split_and_repetition_gives_the_same_people(
    database: Database, make_tenant: MakeTenant, seed: int
) -> None:
    chance = random.Random(seed)
    events = [nobodys(each) if chance.random() < 0.7 else each for each in history(seed, size=40, people=30)]
    whole, other = await make_tenant(), await make_tenant()
    await live(database, whole, events, chance)
    expected = await state(database, whole)
    shuffled = [*events, *chance.sample(events, 10)]
    chance.shuffle(shuffled)
    await live(database, other, shuffled, chance)
    assert await state(database, other) == expected
    about = [each for each in events if PERSONLESS not in each.marks]
    ids = {each.distinct_id for each in about} | {each.edge.other for each in about if each.edge}
    async with database.worker() as tx:
        stored = {row["distinct_id"] for row in await tx.fetch(IDS, whole)}
    assert stored == ids != {each.distinct_id for each in events}, "an id with none but such events is no person"
    assert expected["event_definitions"], "names of such events are listed all the same"


async def test_who_is_identified_later_takes_the_earlier_events_along(database: Database, tenant: int) -> None:
    """Their rows carry the person that the id would be alone, so the link has to move that id."""
    look = nobodys(said(tenant, "e1", 1_000, "look", "anon"))
    login = said(tenant, "e2", 2_000, "$identify", "ada", edge=Edge(EdgeKind.IDENTIFY, "anon"))
    await live(database, tenant, [look], random.Random(0))
    async with database.worker() as tx:
        assert await tx.fetch(MOVED, tenant, "anon") == []
    await live(database, tenant, [login], random.Random(0))
    async with database.worker() as tx:
        (row,) = await tx.fetch(MOVED, tenant, "anon")
    assert (row["person_id"], row["moved"]) == (person_id(tenant, "ada"), True)
