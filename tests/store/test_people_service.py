"""What an operator asks and says about people: look, search, merge, undo, erase; and the names a tenant sends."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import msgspec
import pytest

from handbill.events.model import Edge as SaidEdge
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Conflict, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.people.gather import Gathered, edge_key
from handbill.people.model import EdgeKind, EdgeName
from handbill.people.service import PeopleService
from handbill.tenants.service import Audit, TenantService
from tests.conftest import MakeTenant
from tests.kit.people import commit, history, said, state

Unique = Callable[[str], str]


@pytest.fixture
def people(database: Database, redis: Redis, unique: Unique) -> PeopleService:
    clock = SystemClock()
    return PeopleService(database, redis, Audit(clock, Ids()), clock, keys=Keys(unique("people")))


async def test_a_person_is_found_by_any_of_its_ids(people: PeopleService, database: Database, tenant: int) -> None:
    login = said(tenant, "e2", 2_000, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, "phone"),
                 set=b'{"plan":"pro"}')  # fmt: skip
    await commit(database, tenant, [said(tenant, "e1", 1_000, "see", "phone"), login])
    await people.keeper.settle(tenant)
    page = await people.find(tenant, "phone")
    assert page == await people.find(tenant, "zoe") == await people.person(tenant, page.person.person_id)
    assert (page.person.named_by, page.person.properties) == ("zoe", {"plan": "pro"})
    assert [each.distinct_id for each in page.distinct_ids] == ["phone", "zoe"]
    assert [(each.source, each.target, each.outcome) for each in page.edges] == [("phone", "zoe", "joined")]
    assert sorted(await people.siblings(tenant, "phone")) == ["phone", "zoe"]
    assert await people.siblings(tenant, "nobody") == ["nobody"]
    for nobody in ("nobody", "a\0b", "\ud800"):
        with pytest.raises(NotFound):
            await people.find(tenant, nobody)
    with pytest.raises(NotFound):
        await people.person(tenant, uuid.uuid4())


async def test_people_are_listed_newest_first_and_searched_by_a_property(
    people: PeopleService, database: Database, tenant: int
) -> None:
    plans = ("pro", "free", "pro", None, 7, True)
    for number, plan in enumerate(plans):
        told = None if plan is None else msgspec.json.encode({"plan": plan})
        await commit(database, tenant, [said(tenant, f"e{number}", 1_000 + number // 2, "see", f"u{number}", set=told)])
    found, cursor = [], None
    while True:
        page = await people.people(tenant, cursor, 2)
        found += [each.named_by for each in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert len(found) == len(set(found)) == 6
    assert {*found[:2]} == {"u4", "u5"}
    pro = await people.people(tenant, None, 10, name="plan", value="pro")
    assert {each.named_by for each in pro.items} == {"u0", "u2"}
    assert [each.named_by for each in (await people.people(tenant, None, 10, name="plan", value="7")).items] == ["u4"]
    assert [each.named_by for each in (await people.people(tenant, None, 9, name="plan", value="true")).items] == ["u5"]
    first = await people.people(tenant, None, 1, name="plan", value="pro")
    rest = await people.people(tenant, first.next, 5, name="plan", value="pro")
    assert {each.named_by for each in (*first.items, *rest.items)} == {"u0", "u2"}
    for wrong in ({"name": "plan"}, {"value": "x"}, {"name": "a\0", "value": "x"}):
        with pytest.raises(Invalid):
            await people.people(tenant, None, 10, **wrong)
    for cursor in ("", "abc", "WzEsMl0", "WyIxIl0"):
        with pytest.raises(Invalid):
            await people.people(tenant, cursor, 10)


async def test_an_operator_merges_and_takes_it_back(
    people: PeopleService, database: Database, redis: Redis, tenant: int
) -> None:
    """Two identified people: clients are refused with a warning, an operator is not; every word is in the audit log."""
    two = [said(tenant, "e1", 1_000, "$identify", "ann"), said(tenant, "e2", 2_000, "$identify", "bob")]
    refused = said(tenant, "e3", 3_000, "$identify", "ann", edge=SaidEdge(EdgeKind.IDENTIFY, "bob"))
    await commit(database, tenant, [*two, refused])
    await people.keeper.settle(tenant)
    before = await state(database, tenant)
    warned = await people.warnings(tenant, None, 10)
    assert [(each.source, each.target, each.code) for each in warned.items] == [("bob", "ann", "refused_identified")]
    page = await people.merge(tenant, "bob", "ann", actor="olga")
    assert [each.distinct_id for each in page.distinct_ids] == ["ann", "bob"]
    assert await people.merge(tenant, "bob", "ann", actor="olga") == page, "said again, nothing changes"
    merge = next(each for each in page.edges if each.kind == EdgeKind.MERGE)
    voided = await people.void(tenant, merge.edge_id, actor="olga")
    assert (voided.outcome, voided.voided_by) == ("voided", "olga")
    after = await state(database, tenant)
    assert {**after, "person_edges": []} == {**before, "person_edges": []}
    with pytest.raises(Conflict):
        await people.merge(tenant, "bob", "ann", actor="olga")
    with pytest.raises(NotFound):
        await people.void(tenant, merge.edge_id, actor="olga")
    assert (await people.restore(tenant, merge.edge_id, actor="olga")).outcome == "joined"
    assert await people.find(tenant, "bob") == await people.find(tenant, "ann")
    for source, target in (("ann", "ann"), ("null", "ann"), ("ann", "a\0b"), ("x" * 500, "ann")):
        with pytest.raises(Invalid):
            await people.merge(tenant, source, target, actor="olga")
    for edge_id in ("", "zz", "00" * 16, "\ud800"):
        with pytest.raises(NotFound):
            await people.void(tenant, edge_id, actor="olga")
    tenants = TenantService(database, redis, seal_key=b"0" * 32, clock=SystemClock())
    log = [(each.actor, each.action) for each in (await tenants.audit_page(tenant, None, 10)).items]
    await tenants.stop()
    assert log == [("olga", "edge.restore"), ("olga", "edge.void"), ("olga", "person.merge")]


@pytest.mark.parametrize("seed", range(3))
async def test_merged_and_taken_back_is_never_merged(
    people: PeopleService, database: Database, make_tenant: MakeTenant, seed: int
) -> None:
    """In the middle of any history: more events come after the merge, and after its undoing."""
    dice = random.Random(seed)
    events = history(seed + 80, size=90)
    merged, never = await make_tenant(), await make_tenant()
    await commit(database, never, events)
    await people.keeper.settle(never)
    first, middle, last = events[:50], events[50:70], events[70:]
    await commit(database, merged, first)
    await people.keeper.settle(merged)
    known = sorted({each for _, each in Gathered(first).ids})
    made = []
    for _ in range(3):
        one, other = dice.sample(known, 2)
        await people.merge(merged, one, other, actor="olga")
        made.append(edge_key(EdgeName(EdgeKind.MERGE, one, other)).hex())
    await commit(database, merged, middle)
    await people.keeper.settle(merged)
    for edge_id in set(made):
        await people.void(merged, edge_id, actor="olga")
    await commit(database, merged, last)
    await people.keeper.settle(merged)
    found, expected = await state(database, merged), await state(database, never)
    own = [row for row in found["person_edges"] if "operator:" in row and "'voided'" in row]
    assert sorted(set(found["person_edges"]) - set(own)) == expected["person_edges"]
    assert {**found, "person_edges": []} == {**expected, "person_edges": []}


async def test_an_erased_id_is_gone_and_the_others_are_as_without_it(
    people: PeopleService, database: Database, make_tenant: MakeTenant
) -> None:
    events = history(5, size=120)
    tenant, never = await make_tenant(), await make_tenant()
    await commit(database, tenant, events)
    await people.keeper.settle(tenant)
    told = await people.export(tenant, "id3", 1_000)
    assert told["people.properties"]
    assert told["people.person_edges"]
    cleared = await people.erase(tenant, ["id3"])
    assert cleared["people.distinct_ids"] == 1
    assert sum((await people.erase(tenant, ["id3"])).values()) == 0
    rest = [each for each in events if each.distinct_id != "id3" and (each.edge is None or each.edge.other != "id3")]
    await commit(database, never, rest)
    await people.keeper.settle(never)
    found, expected = await state(database, tenant), await state(database, never)
    for table in ("named", "person_edges", "properties", "warnings", "unfolded"):
        assert found[table] == expected[table], table
    assert "id3" not in repr({name: rows for name, rows in found.items() if name != "distinct_ids"})
    assert await people.export(tenant, "id3", 10) == {}


async def test_names_are_kept_in_redis_until_a_new_one_appears(
    people: PeopleService, database: Database, redis: Redis, tenant: int
) -> None:
    await commit(database, tenant, [said(tenant, "e1", 1_000, "see", "u", properties=b'{"price":1}', set=b'{"a":"x"}')])
    names = await people.names(tenant)
    assert (names.events, names.properties) == (["see"], ["price"])
    await commit(database, tenant, [said(tenant, "e2", 2_000, "buy", "u", properties=b'{"sku":"s","price":"dear"}')])
    assert await people.names(tenant) == names, "kept"
    await people.new_names(tenant)
    names = await people.names(tenant)
    assert (names.events, names.properties) == (["buy", "see"], ["price", "sku"])
    listed = await people.events(tenant, None, 1)
    assert [each.name for each in listed.items] == ["buy"]
    assert [each.name for each in (await people.events(tenant, listed.next, 1)).items] == ["see"]
    kinds = {each.name: each.value_type for each in (await people.properties(tenant, "event", None, 9)).items}
    assert kinds == {"price": "String", "sku": "String"}
    assert [each.name for each in (await people.properties(tenant, "person", None, 9)).items] == ["a"]
    assert [each.name for each in (await people.event_properties(tenant, "see", None, 9)).items] == ["price"]
    assert (await people.event_properties(tenant, "a\0b", None, 9)).items == []
