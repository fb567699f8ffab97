"""What decisions know of a person: kept for every id, brought back after a loss, gone with an erasure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.people.model import person_id
from handbill.segments import keeper
from tests.kit.crowd import settle
from tests.kit.segments_room import Room, segments_room

DROP = Sql("delete from people.persons where tenant_id = $1 and person_id = $2", "crowd_drop")
DROP_IDS = Sql("delete from people.distinct_ids where tenant_id = $1 and person_id = $2", "crowd_drop_ids")


@pytest.fixture
async def room(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Room]:
    async with segments_room(database, redis, tenant) as made:
        yield made


async def test_every_id_of_a_person_has_its_value_and_no_more_than_is_needed(room: Room) -> None:
    made = await room.make("Paying", {"person.plan": "pro"})
    idle = await room.make("Idle", {})
    ann = {"plan": "pro", "secret": "x", "flag": True, "tags": ["a", 1, {"b": 2}]}
    await room.people({"ann": ann, "bob": {"other": 1}}, ids={"ann": ["phone"]})
    await room.want("plan", "flag", "tags", segments=(made.segment_id,))
    await room.kept()
    needs = ("person.plan", "person.flag", "person.tags", "person.secret")
    told = {
        "segments": frozenset({made.segment_id.bytes}), "person.plan": ("pro",), "person.flag": ((True,),),
        "person.tags": ("a", 1),
    }  # fmt: skip
    assert await room.projection("ann", *needs) == told == await room.projection("phone", *needs)
    assert idle.segment_id.bytes not in told["segments"], "nobody asks for it"
    assert await room.redis.call("EXISTS", room.keys.value(room.tenant, "bob")) == 0, "nothing to say of him"
    await settle(room.database, room.tenant, {"bob": {"plan": "free"}}, ids={"bob": ["phone"]})  # the phone is his now
    await room.kept()
    assert await room.projection("phone", *needs) == {"person.plan": ("free",)}
    assert await room.projection("ann", *needs) == told


async def test_a_wiped_redis_is_told_again_and_until_then_says_it_does_not_know(room: Room) -> None:
    await room.people({f"u{number}": {"plan": "pro"} for number in range(5)})
    await room.want("plan")
    await room.kept()
    known, needs = room.segments.known, frozenset({"person.plan"})
    mark, value = known.keys(room.tenant, "u1")

    async def asked(user: str) -> tuple[dict[str, Any], frozenset[str]]:
        return known.read(
            room.tenant, user, tuple(await room.redis.call("MGET", *known.keys(room.tenant, user))), needs
        )

    assert await asked("u1") == ({"person.plan": ("pro",)}, frozenset())
    assert await asked("stranger") == ({}, frozenset()), "while the mark stands, nothing there is nothing known"
    for number in range(5):
        await room.redis.call("DEL", mark, known.keys(room.tenant, f"u{number}")[1])
    assert await asked("u1") == ({}, needs)
    known.ask(room.tenant, "stranger")
    await asyncio.gather(*known._filling.values())
    assert await asked("u1") == ({"person.plan": ("pro",)}, frozenset()), "the question brought it back"
    assert await asked("stranger") == ({}, frozenset())
    assert known.read(room.tenant, "u1", (), needs) == ({}, needs), "Redis is away"
    await room.kept()
    assert await asked("u2") == ({"person.plan": ("pro",)}, frozenset())
    assert await room.redis.call("TTL", value) == -1, "the walk's value lasts"


async def test_a_need_is_known_when_everybody_was_told(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PAGE", 2)
    await room.people({f"u{number}": {"a": 1, "b": 2} for number in range(5)})
    await room.want("a")
    await room.kept()
    await room.want("a", "b")
    await room.segments.keeper.step(room.tenant)
    known, needs = room.segments.known, frozenset({"person.a", "person.b"})
    keys = known.keys(room.tenant, "u1")
    found, missing = known.read(room.tenant, "u1", tuple(await room.redis.call("MGET", *keys)), needs)
    assert (found, missing) == ({"person.a": (1,)}, frozenset({"person.b"}))
    await room.redis.call("DEL", room.keys.building(room.tenant))  # wiped in the middle: the walk does not count
    await room.kept()
    found, missing = known.read(room.tenant, "u1", tuple(await room.redis.call("MGET", *keys)), needs)
    assert (found, missing) == ({"person.a": (1,), "person.b": (2,)}, frozenset())


async def test_who_is_erased_leaves_no_trace(room: Room) -> None:
    made = await room.make("All", {})
    await room.people({"ann": {"plan": "pro"}, "bob": {}})
    await room.want("plan", segments=(made.segment_id,))
    await room.kept()
    told = await room.segments.erasure.export(room.tenant, "ann", 10)
    assert [row["name"] for row in told["segments.segment_members"]] == ["All"]
    assert await room.segments.erasure.erase(room.tenant, ["ann"]) == {"segments.segment_members": 1}
    await room.people({"ann": {"plan": "free"}})  # a last word before the person itself is erased
    await room.kept()
    async with room.database.worker() as tx:
        await tx.execute(DROP_IDS, room.tenant, person_id(room.tenant, "ann"))
        await tx.execute(DROP, room.tenant, person_id(room.tenant, "ann"))
    await room.kept()
    assert await room.names(made.segment_id) == ["bob"]
    assert await room.redis.call("EXISTS", room.keys.value(room.tenant, "ann")) == 0
