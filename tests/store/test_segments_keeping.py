"""Members follow people and rules: by marks, by walks and by the clock, whatever dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from handbill.infra.postgres import Database, PostgresError
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Busy, Conflict, Invalid, NotFound, PreconditionFailed
from handbill.people.model import person_id
from handbill.segments import editor as editing
from handbill.segments import keeper
from handbill.segments.model import NewSegment, SegmentPatch
from handbill.segments.rules import DAY_MS
from tests.conftest import MakeTenant
from tests.kit.crashes import enumerate_points
from tests.kit.crowd import settle
from tests.kit.segments_room import Room, segments_room, sound

DROP = Sql("delete from people.persons where tenant_id = $1 and person_id = $2", "crowd_drop")
COUNT = Sql("select count(*) from segments.segment_members where tenant_id = $1", "count_members")


@pytest.fixture
async def room(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Room]:
    async with segments_room(database, redis, tenant) as made:
        yield made


async def test_a_segment_takes_those_who_are_there_and_those_who_come(room: Room) -> None:
    await room.people({"ann": {"plan": "pro"}, "bob": {"plan": "free"}})
    made = await room.make("Paying", {"person.plan": "pro"})
    assert (made.size, made.state) == (0, "evaluating")
    with pytest.raises(Busy) as caught:
        await room.segments.members(room.tenant, made.segment_id)
    assert caught.value.code == "SEGMENT_EVALUATING"
    await room.kept()
    assert await room.names(made.segment_id) == ["ann"]
    await room.people({"ann": {"plan": "free"}, "bob": {"plan": "pro"}, "cas": {"plan": ["a", "pro"]}})
    await room.kept()
    assert await room.names(made.segment_id) == ["bob", "cas"]
    async with room.database.worker() as tx:
        await tx.execute(DROP, room.tenant, person_id(room.tenant, "bob"))
    await room.kept()
    assert await room.names(made.segment_id) == ["cas"]
    assert await room.segments.size(room.tenant, made.segment_id) == 1


async def test_a_changed_rule_looks_at_everybody_again_also_for_those_who_lean_on_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "PAGE", 3)
    await room.people({f"u{number}": {"n": number} for number in range(10)})
    base = await room.make("Base", {"person.n": {"op": "lt", "value": 5}})
    leans = await room.make("Leans", {"not": {"segment": str(base.segment_id)}})
    await room.kept()
    assert await room.names(leans.segment_id) == [f"u{number}" for number in range(5, 10)]
    await room.change(base.segment_id, {"person.n": {"op": "lt", "value": 2}})
    await room.segments.keeper.step(room.tenant)
    await room.segments.keeper.step(room.tenant)  # half way; the rule changes again and the walk begins anew
    await room.change(base.segment_id, {"person.n": {"op": "gte", "value": 9}})
    await room.kept()
    assert await room.names(base.segment_id) == ["u9"]
    assert await room.names(leans.segment_id) == [f"u{number}" for number in range(9)]


async def test_by_the_clock_people_come_and_go(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PAGE", 2)
    start = room.clock.now_ms()
    await room.people({"old": {}}, created=start - 3 * DAY_MS)
    await room.people({f"new{number}": {} for number in range(5)}, created=start - DAY_MS)
    fresh = await room.make("Fresh", {"created": {"within_days": 2}})
    aged = await room.make("Aged", {"created": {"older_than_days": 2}})
    await room.kept()
    assert await room.names(fresh.segment_id) == [f"new{number}" for number in range(5)]
    room.clock.advance(ms=DAY_MS - 1)
    await room.kept()
    assert await room.names(aged.segment_id) == ["old"]
    room.clock.advance(ms=20_000)
    await room.kept()
    await room.kept()
    assert await room.names(fresh.segment_id) == []
    assert len(await room.names(aged.segment_id)) == 6


async def test_a_segment_in_use_stays_and_a_free_one_is_forgotten(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PAGE", 2)
    await room.people({f"u{number}": {} for number in range(5)})
    base = await room.make("Base", {})
    leans = await room.make("Leans", {"segment": str(base.segment_id)})
    await room.kept()
    with pytest.raises(Conflict) as caught:
        await room.segments.editor.delete(room.tenant, base.segment_id, version=None, actor="test")
    assert caught.value.code == "SEGMENT_IN_USE"
    for each in (leans, base):
        await room.segments.editor.delete(room.tenant, each.segment_id, version=1, actor="test")
    await room.kept()
    async with room.database.worker() as tx:
        assert await tx.fetchval(COUNT, room.tenant) == 0
    again = await room.make("Base", {})
    await room.kept()
    assert len(await room.names(again.segment_id)) == 5


async def test_what_is_wrong_is_refused_and_nothing_is_changed(room: Room, make_tenant: MakeTenant) -> None:
    made = await room.make("One", {"person.a": 1})
    editor = room.segments.editor
    with pytest.raises(Conflict):
        await room.make("One", {})
    with pytest.raises(Invalid) as caught:
        await room.make("Two", {"segment": str(UUID(int=7))})
    assert caught.value.code == "SEGMENT_UNKNOWN"
    with pytest.raises(Invalid, match="leads back"):
        await room.change(made.segment_id, {"segment": str(made.segment_id)})
    two = await room.make("Two", {"segment": str(made.segment_id)})
    with pytest.raises(Invalid, match="leads back"):
        await room.change(made.segment_id, {"any": [{"person.a": 1}, {"segment": str(two.segment_id)}]})
    with pytest.raises(PreconditionFailed):
        await editor.change(room.tenant, made.segment_id, SegmentPatch(name="Three"), version=9, actor="test")
    stranger = await make_tenant()
    for verb in (editor.read(stranger, made.segment_id), room.segments.members(stranger, made.segment_id)):
        with pytest.raises(NotFound):
            await verb
    with pytest.raises(Invalid) as caught:
        await editor.create(stranger, NewSegment("Theirs", {"segment": str(made.segment_id)}), actor="test")
    assert caught.value.code == "SEGMENT_UNKNOWN", "another tenant's segment is none of theirs"
    assert [each.name for each in (await editor.listed(room.tenant, None, 50, None)).items] == ["One", "Two"]


async def test_a_preview_tells_size_and_some_members_and_explain_says_why(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.people({f"u{number}": {"n": number} for number in range(400)}, ids={"u1": ["phone"]})
    rule = {"person.n": {"op": "lt", "value": 100}}
    exact = await room.segments.editor.preview(room.tenant, rule)
    assert (exact.size, exact.exact, exact.looked_at, len(exact.sample)) == (100, True, 400, 10)
    assert all(member.properties["n"] < 100 for member in exact.sample)
    monkeypatch.setattr(editing, "LOOKED_AT", 200)
    rough = await room.segments.editor.preview(room.tenant, rule)
    assert (rough.exact, rough.looked_at) == (False, 200)
    assert 50 <= rough.size <= 200
    made = await room.make("Small", {**rule, "distinct_id": "phone"})
    found = await room.segments.editor.explain(room.tenant, made.segment_id, "u1")
    assert (found.belongs, found.rule) == (True, None)
    found = await room.segments.editor.explain(room.tenant, made.segment_id, "u200")
    assert (found.belongs, found.rule) == (False, "person.n lt 100")
    assert (await room.segments.editor.explain(room.tenant, made.segment_id, "nobody")).rule == "nobody has this id"


async def test_who_watches_nobody_pays_for_nothing(database: Database, tenant: int) -> None:
    await settle(database, tenant, {"ann": {"plan": "pro"}})
    async with database.worker() as tx:
        assert await tx.fetchval(Sql("select count(*) from segments.stale where tenant_id = $1"), tenant) == 0
    with pytest.raises(PostgresError):
        async with database.tenant(tenant) as tx:
            await tx.execute(Sql("delete from segments.segment_members where tenant_id = $1"), tenant)


# --- the law


def some_rule(chance: random.Random, others: list[UUID]) -> dict[str, Any]:
    named = {"segment": str(chance.choice(others))} if others and chance.random() < 0.4 else {}
    asked: dict[str, Any] = chance.choice(
        [
            {"person.plan": chance.choice(["pro", "free"])},
            {"not": {"person.plan": "pro"}},
            {"person.n": {"op": "gt", "value": chance.randrange(5)}},
            {"created": {"within_days": chance.randint(1, 3)}},
            {"distinct_id": [f"x{chance.randrange(6)}", f"u{chance.randrange(12)}"]},
        ]
    )
    return {**named, **asked}


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_members_are_those_whom_the_rule_takes(
    room: Room, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(keeper, "PAGE", 7)
    monkeypatch.setattr(keeper, "PORTION", 5)
    chance = random.Random(seed)
    made: list[UUID] = []
    for turn in range(60):
        deed = chance.random()
        if deed < 0.5:
            name, extra = f"u{chance.randrange(12)}", f"x{chance.randrange(6)}"
            properties = {"plan": chance.choice(["pro", "free", None]), "n": chance.randrange(6)}
            await room.people({name: properties}, ids={name: [extra] if chance.random() < 0.3 else []})
        elif deed < 0.6:
            made.append((await room.make(f"s{turn}", some_rule(chance, made))).segment_id)
        elif deed < 0.7 and made:
            with contextlib.suppress(Invalid):  # it may lead back to itself
                await room.change(chance.choice(made), some_rule(chance, made))
        elif deed < 0.75:
            await room.want(chance.choice(["plan", "n"]), segments=tuple(made[:2]))
        elif deed < 0.8:
            room.clock.advance(ms=DAY_MS // 2)
        else:
            await room.segments.keeper.step(room.tenant, lost=chance.random() < 0.2)
    await room.want("plan", "n", segments=tuple(made[:3]))
    room.clock.advance(ms=11_000)
    await room.kept()
    await sound(room)


async def test_side_by_side_with_changes_nothing_is_overlooked(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PAGE", 7)
    monkeypatch.setattr(keeper, "PORTION", 3)
    base = await room.make("Base", {"person.n": {"op": "gt", "value": 2}})
    await room.make("Leans", {"not": {"segment": str(base.segment_id)}})
    await room.want("n", segments=(base.segment_id,))
    going = True

    async def keep() -> None:
        while going:
            await room.segments.keeper.step(room.tenant)

    async def people() -> None:
        chance = random.Random(1)
        for _ in range(80):
            name = f"u{chance.randrange(20)}"
            await room.people({name: {"n": chance.randrange(6)}}, ids={name: [f"x{chance.randrange(5)}"]})

    async def rules() -> None:
        for value in range(6):
            await room.change(base.segment_id, {"person.n": {"op": "gt", "value": value}})

    keeping = [asyncio.create_task(keep()) for _ in range(2)]
    await asyncio.gather(people(), rules())
    going = False
    await asyncio.gather(*keeping)
    await room.kept()
    await sound(room)


async def test_a_death_at_any_point_is_mended_by_whoever_comes_next(room: Room) -> None:
    base = await room.make("Base", {"person.n": {"op": "gt", "value": 2}})
    await room.want("n", segments=(base.segment_id,))
    chance = random.Random(5)

    async def attempt() -> None:
        await room.people({f"u{number}": {"n": chance.randrange(6)} for number in range(4)})
        await room.change(base.segment_id, {"person.n": {"op": "gt", "value": chance.randrange(6)}})
        await room.segments.keeper.step(room.tenant, lost=True)

    async def check(number: int, name: str) -> None:
        await room.kept()
        await sound(room)

    assert await enumerate_points(attempt, check, only="after:", what="keeping segments") > 30


async def test_an_error_of_one_tenant_leaves_the_segments_of_the_others_their_turn(
    room: Room, make_tenant: MakeTenant, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with segments_room(room.database, redis, await make_tenant()) as other:
        for each in (room, other):
            await each.make("All", {})
        stepped: list[int] = []

        async def step(tenant_id: int, *, lost: bool = False) -> int:
            stepped.append(tenant_id)
            if tenant_id == room.tenant:
                raise PostgresError("no", sqlstate="22012", constraint=None, statement="matching")
            return 0

        assert room.tenant < other.tenant, "the tenant that fails comes first"
        monkeypatch.setattr(room.segments.keeper, "step", step)
        await room.segments.keeper.turn()
        assert {room.tenant, other.tenant} <= set(stepped)
