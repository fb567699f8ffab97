"""The compatibility reader: flat entries of other programs come in once each, whatever dies; bad ones are parked."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import Any

import pytest

from handbill.events.entries import Entries, NoEvent
from handbill.events.incoming import Incoming, _parked_id
from handbill.events.model import CapturedEvent, Dropped, EdgeKind, Event, decode
from handbill.events.reasons import Reason
from handbill.events.service import Chosen
from handbill.infra.journal.port import START
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.conftest import MakeTenant
from tests.kit.captured import new_sender
from tests.kit.crashes import enumerate_points
from tests.kit.loop import Loop, loop

_PARKED = Sql(
    "select tenant_id, event_id, reason, body from events.parked where lane = $1 order by event_id",
    "test_parked", "tests", "a stream is one test's own",
)  # fmt: skip
_IDS = Sql("select id, event_id from events.parked where lane = $1", "test_ids", "tests", "a stream is one test's own")
_OWNED = Sql("update events.parked set tenant_id = $2 where id = $1", "test_owned")
_DROPS = Sql(
    "select reason, sum(events)::int as events from events.drops where tenant_id = $1 group by reason",
    "test_drops", "tests", "",
)  # fmt: skip


def reader(here: Loop, stream: str, worker: str = "one") -> Incoming:
    return Incoming(
        here.database, here.redis, here.edge, here.tenants, here.clock, stream=stream, worker=worker, keys=here.keys
    )


async def add(redis: Redis, stream: str, entry: str = "*", **fields: Any) -> str:
    flat = [word for name, value in fields.items() for word in (name, value)]
    found: bytes = await redis.call("XADD", stream, entry, *flat)
    return found.decode()


async def journal(here: Loop) -> list[Event]:
    found = []
    for lane, _ in here.lanes.all():
        for entry in await here.journal.read(lane, START, events=100_000):
            found += [decode(body) for body in entry.bodies]
    return found


async def captured(here: Loop) -> list[CapturedEvent]:
    return [event for event in await journal(here) if isinstance(event, CapturedEvent)]


async def test_every_field_of_a_flat_entry_arrives(database: Database, redis: Redis, tenant: int) -> None:
    sender = await new_sender(database, redis, tenant, truncate_ip=True)
    stream = f"in-{uuid.uuid4().hex}"
    async with loop(database, redis) as here:
        entry = await add(
            redis, stream, project_id=tenant, event="$identify", distinct_id="ada", anonymous_id="a-1", event_id="e-1",
            timestamp="2026-11-16T12:00:00Z", properties='{"plan": "pro", "note": "a\\u0000b"}', lib="old-sdk",
            user_properties='{"$set": {"city": "Graz"}, "$set_once": {"first": 1}, "$unset": ["old"]}',
            session_id="s-1", ip="203.0.113.77", user_agent="Mozilla", url="https://shop.example", browser="Firefox",
            os="Linux", device_type="desktop", screen_width="1920", screen_height="-1", language="de", colour="red",
        )  # fmt: skip
        plain = await add(redis, stream, api_key=sender.write_key, event_name="seen", distinct_id="7")
        assert await reader(here, stream).drain() == 2
        assert await redis.call("XLEN", stream) == 0
        by_name = {event.name: event for event in await captured(here)}
        full, bare = by_name["$identify"], by_name["seen"]
        assert (full.tenant, full.id, full.distinct_id, full.dialect) == (tenant, "e-1", "ada", "incoming")
        assert full.received == int(entry.partition("-")[0])
        assert full.edge is not None
        assert (full.edge.kind, full.edge.other) == (EdgeKind.IDENTIFY, "a-1")
        assert json.loads(full.properties) == {"plan": "pro", "note": "a\ufffdb", "$extra": {"colour": "red"}}
        assert full.set == b'{"city": "Graz"}'
        assert full.set_once == b'{"first": 1}'
        assert json.loads(full.unset or b"") == ["old"]
        assert (full.ip, full.screen_width, full.screen_height) == ("203.0.113.0", 1920, None)
        assert (full.session, full.browser, full.os, full.lib) == ("s-1", "Firefox", "Linux", "old-sdk")
        assert (bare.tenant, bare.id, bare.distinct_id) == (tenant, f"incoming:{plain}", "7")
        assert bare.at == bare.received
        assert bare.properties == b"{}"


async def test_what_is_left_out_of_an_entry_is_counted_for_its_tenant(
    database: Database, redis: Redis, tenant: int
) -> None:
    stream = f"in-{uuid.uuid4().hex}"
    async with loop(database, redis) as here:
        await add(redis, stream, project_id=tenant, event="seen", distinct_id="ada", browser="x" * 201, os="y" * 201)
        assert await reader(here, stream).drain() == 1
        (event,) = await captured(here)
        assert event.browser == "x" * 200
        losses = [each for each in await journal(here) if isinstance(each, Dropped)]
        assert [(each.tenant, each.of, each.reason, each.n) for each in losses] == [
            (tenant, "capture", "CONTEXT_CUT", 1)
        ]


async def test_wherever_it_dies_each_entry_comes_in_once_and_each_bad_one_is_parked_once(
    database: Database, redis: Redis, tenant: int
) -> None:
    stream = f"in-{uuid.uuid4().hex}"
    async with loop(database, redis) as here:
        dead = reader(here, stream)
        rounds = 0

        async def fill() -> None:
            """Between two deaths, so that every round has all four."""
            nonlocal rounds
            rounds += 1
            mine: dict[str, Any] = {"project_id": tenant, "event": "seen"}
            await add(redis, stream, **mine, distinct_id="ada", event_id=f"good-{rounds}")
            await add(redis, stream, **mine, distinct_id="null", event_id=f"bad-{rounds}")
            await add(redis, stream, **mine, distinct_id="ada", properties="[", event_id=f"odd-{rounds}")
            await add(redis, stream, project_id="nobody-at-all", distinct_id="ada", event_id=f"lost-{rounds}")

        async def attempt() -> None:
            await dead.drain()

        async def check(_: int, name: str) -> None:
            await redis.call("DEL", dead._lease)  # its holder died
            await reader(here, stream, "next").drain()
            assert await redis.call("XLEN", stream) == 0, name
            await redis.call("DEL", dead._lease)
            await fill()

        await fill()
        assert await enumerate_points(attempt, check, what="the compatibility reader") >= 8
        await reader(here, stream).drain()
        await here.consumer()
        await here.drained()
        events = await captured(here)
        assert {event.id for event in events} == {f"good-{number}" for number in range(1, rounds + 1)}
        async with database.worker() as tx:
            parked = await tx.fetch(_PARKED, stream)
            drops = {row["reason"]: row["events"] for row in await tx.fetch(_DROPS, tenant)}
        assert Counter(row["reason"] for row in parked) == {
            "ILLEGAL_DISTINCT_ID": rounds, "MALFORMED_PROPERTIES": rounds, "UNKNOWN_OBJECT": rounds,
        }  # fmt: skip
        assert {row["tenant_id"] for row in parked if row["reason"] == "UNKNOWN_OBJECT"} == {None}
        assert json.loads(parked[0]["body"])["distinct_id"] == "null"
        again = len(events) - rounds
        assert again > 0, "no death fell between the journal and the stream"
        assert drops == {"ILLEGAL_DISTINCT_ID": rounds, "MALFORMED_PROPERTIES": rounds, "DUPLICATE": again}


def test_an_entry_of_this_very_millisecond_is_the_same_row_when_met_again() -> None:
    now = 1_800_000_000_000
    assert _parked_id("in", f"{now}-0", now) == _parked_id("in", f"{now}-0", now + 5)
    assert _parked_id("in", f"{now * 2}-0", now) < _parked_id("in", f"{now}-0", now), "no place behind all to come"


async def test_a_second_reader_waits_while_the_first_is_alive(database: Database, redis: Redis, tenant: int) -> None:
    stream = f"in-{uuid.uuid4().hex}"
    async with loop(database, redis) as here:
        first, second = reader(here, stream, "first"), reader(here, stream, "second")
        assert await first.drain() == 0
        await add(redis, stream, project_id=tenant, event="seen", distinct_id="ada")
        assert await second.drain() == 0
        assert await first.drain() == 1


async def test_a_parked_entry_comes_back_as_it_came(
    database: Database, redis: Redis, make_tenant: MakeTenant, tenant: int
) -> None:
    """Its project exists by now, and it keeps its time and its id. What is another's, or still bad, stays."""
    stream, slug = f"in-{uuid.uuid4().hex}", f"t-{uuid.uuid4().hex}"
    async with loop(database, redis) as here:
        before = here.clock.now_ms()
        first = await add(redis, stream, project_id=slug, event="seen", distinct_id="ada", plan="pro")
        second = await add(redis, stream, project_id=slug, event="seen", distinct_id="ada", uuid="u-2")
        await add(redis, stream, project_id=slug, event="seen", distinct_id="null", event_id="e-3")
        await reader(here, stream).drain()
        owner = await make_tenant(slug=slug)
        here.events.dead.reread = Entries(here.tenants, here.clock).again
        async with database.worker() as tx:
            ids = {row["event_id"]: row["id"] for row in await tx.fetch(_IDS, stream)}
            assert ids.keys() == {f"incoming:{first}", "u-2", "e-3"}
            await tx.execute(_OWNED, ids["u-2"], tenant)
        done = await here.events.dead.replay(Chosen(None, ids=tuple(ids.values())))
        assert (done.matched, done.sent, done.unreadable) == (3, 1, 2)
        async with database.worker() as tx:
            await tx.execute(_OWNED, ids["u-2"], owner)
        assert (await here.events.dead.replay(Chosen(owner))).sent == 1
        by_id = {event.id: event for event in await captured(here)}
        assert by_id.keys() == {f"incoming:{first}", "u-2"}
        for entry, event in ((first, by_id[f"incoming:{first}"]), (second, by_id["u-2"])):
            assert (event.tenant, event.distinct_id, event.dialect) == (owner, "ada", "incoming")
            assert event.received in (int(entry.partition("-")[0]), event.at)
            assert before <= event.received + 1_000
        assert json.loads(by_id[f"incoming:{first}"].properties) == {"$extra": {"plan": "pro"}}


async def test_an_entry_of_a_tenant_that_has_just_gone_is_no_event(database: Database, redis: Redis) -> None:
    async with loop(database, redis) as here:
        entries = Entries(here.tenants, here.clock)
        entries._projects["shop"] = 2**30  # as remembered from some seconds ago; there is no such tenant
        with pytest.raises(NoEvent) as refused:
            await entries.event(
                {"project_id": "shop", "event": "seen", "distinct_id": "ada"}, "1-0", here.clock.now_ms(), []
            )
        assert refused.value.reason == Reason.UNKNOWN_OBJECT
