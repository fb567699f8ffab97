"""History of any age comes in once: beside the live events, and again after years, in whatever pieces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from handbill.events.dialects.canon import Dialect
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.conftest import MakeTenant
from tests.kit.clocks import START
from tests.kit.past import SMALL, past
from tests.kit.shipping import shipping
from tests.store.test_event_order import people_now, sequences

V1 = {
    "posthog_sdk_info": "test/1", "posthog_attempt": "1", "posthog_request_id": "r",
    "posthog_request_timestamp": "2026-03-01T12:00:00Z",
}  # fmt: skip


def at(days: float) -> str:
    """So many days before the test begins."""
    return (START - timedelta(days=days)).isoformat()


def seen(number: int, days: float, **more: Any) -> dict[str, Any]:
    return {"event": "seen", "distinct_id": f"u{number % 3}", "event_id": f"e{number}", "timestamp": at(days), **more}


def without_id(number: int, days: float, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in seen(number, days, **more).items() if name != "event_id"}


async def test_the_export_of_a_day_changes_nothing_beside_its_live_events(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """At once, within the horizon, when the keys are forgotten, and years later."""
    live = [seen(n, n / 10, user_properties={"$set": {"n": n}}) for n in range(6)]
    async with past(database, redis, history, tenant) as here:
        assert (await here.own(live, history=False)).status == 202
        await here.settle()
        before, facts, order = await here.rows(), await here.properties(), await sequences(database, tenant)
        assert len(before) == 6
        for pause in (0, 20, 17, 400, 4000):
            await here.pass_days(pause)
            export = [{**each, "properties": {"other": pause}} for each in reversed(live)]
            assert (await here.own(export)).status == 202
            await here.settle()
            assert await here.rows() == before
            assert await here.properties() == facts
            assert await sequences(database, tenant) in (order, {})  # of their copies the live ones order them
        assert (await here.drops())["DUPLICATE"] == 30


async def test_old_history_comes_in_once_however_often_it_is_sent(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """With ids and without, over years of months, a day and a year later, in other pieces and another order."""
    records = [seen(n, 40 + 37 * n, properties={"n": n}) for n in range(20)]
    records += [without_id(n, 50 + 37 * n, properties={"n": n, "deep": {"b": 1.5, "a": [n]}}) for n in range(20)]
    async with past(database, redis, history, tenant) as here:
        await here.own(records)
        await here.settle()
        before = await here.rows()
        assert len(before) == 40
        for pause, size in ((1, 7), (40, 40), (365, 3), (3650, 11)):
            await here.pass_days(pause)
            if pause > 36:
                assert await here.keys() == 0
            again = [dict(sorted(each.items())) for each in reversed(records)]
            for start in range(0, len(again), size):
                assert (await here.own(again[start : start + size])).status == 202
            await here.settle()
            assert await here.rows() == before
        assert (await here.drops())["DUPLICATE"] == 160


async def test_records_without_ids_that_differ_in_anything_are_two_events(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    first = without_id(1, 100, properties={"a": 1, "b": {"c": "x"}})
    others = [
        {**first, "distinct_id": "somebody"}, {**first, "event": "left"}, {**first, "timestamp": at(100.001)},
        {**first, "properties": {"a": 1, "b": {"c": "y"}}}, {**first, "properties": {"a": 1}},
        {**first, "user_properties": {"$set": {"a": 1}}}, {**first, "anonymous_id": "anon"},
    ]  # fmt: skip
    same = [
        {**first, "properties": {"b": {"c": "x"}, "a": 1.0}},
        {**first, "timestamp": (START - timedelta(days=100)).isoformat().replace("+00:00", "Z")},
    ]
    async with past(database, redis, history, tenant) as here:
        await here.own([first, *others, *same])
        await here.settle()
        assert len(await here.rows()) == 1 + len(others)
        assert all(each.startswith("record:") for each in await here.ids())


async def test_a_live_copy_that_comes_after_the_import_changes_nothing(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Also one that waited until the event was too old for anything but history."""
    async with past(database, redis, history, tenant) as here:
        events = [seen(n, days) for n, days in enumerate((1, 20, 34.9))]
        await here.own(events)
        await here.settle()
        before = await here.rows()
        assert len(before) == 3
        assert (await here.own(events, history=False)).status == 202
        await here.settle()
        await here.pass_days(10)
        assert (await here.own(events, history=False)).status == 202
        await here.settle()
        assert await here.rows() == before
        drops = await here.drops()
        assert (drops["DUPLICATE"], drops["TOO_OLD"]) == (5, 1)


async def test_copies_of_old_history_that_come_at_once_meet_in_postgresql(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """ClickHouse has none of them yet when intake asks."""
    records = [seen(n, 60 + n) for n in range(30)]
    async with past(database, redis, history, tenant) as here:
        for start in (0, 10, 5, 0):
            await here.own(records[start:])
        await here.settle()
        assert sorted(await here.ids()) == sorted(f"e{n}" for n in range(30))


async def test_a_key_stays_as_long_as_its_event_is_not_exported(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Else there would be a time in which nobody has the event's key."""
    async with past(database, redis, history, tenant, start=datetime.now(UTC)) as here:
        for consumer in list(here.app.consumers):
            await consumer.stop()
        here.app.consumers.clear()
        await here.own([seen(1, 60)])
        lacking = ClickHouse("http://127.0.0.1:1/none")
        await lacking.start()
        consumer = await here.app.consumer(SMALL, shipping=shipping(database, lacking, here.app.journal))
        await here.app.drained()
        here.clock.advance(days=400)
        await here.app.events.forget_keys(here.clock.now(), pages=61)
        assert await here.keys() == 1
        await here.own([seen(1, 60)])
        await here.app.drained()
        await consumer.stop()
        here.app.consumers.clear()
        await here.app.consumer(SMALL, shipping=shipping(database, history, here.app.journal))
        await here.settle()
        assert await here.ids() == ["e1"]
        await here.pass_days(0)
        assert await here.keys() == 0
        await lacking.stop()


async def test_another_tenant_with_the_same_ids_has_its_own_history(
    database: Database, redis: Redis, history: ClickHouse, make_tenant: MakeTenant
) -> None:
    records = [seen(1, 90), without_id(2, 90)]
    first, second = await make_tenant(), await make_tenant()
    async with past(database, redis, history, first) as here:
        await here.own(records)
        await here.pass_days(50)
    async with past(database, redis, history, second, start=START + timedelta(days=60)) as here:
        await here.own(records)
        await here.settle()
        assert len(await here.ids()) == 2


async def test_a_months_keys_go_with_its_events_and_only_then(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Until then history of that month is known; after it, it is refused, since it would be deleted at once."""
    async with past(database, redis, history, tenant) as here:
        here.days[tenant] = 365
        old, young = seen(1, 300), seen(2, 100)
        for pause in (0, 50):
            await here.pass_days(pause)
            await here.own([old, young])
            await here.settle()
            assert await here.drop_months() == []
            assert sorted(await here.ids()) == ["e1", "e2"]
        await here.pass_days(60)
        assert "(365,202505)" in await here.drop_months()
        assert await here.ids() == ["e2"]
        reply = await here.own([old, young])
        assert msgspec.json.decode(reply.body) == {
            "accepted": 1, "dropped": [{"index": 0, "reason": "PAST_RETENTION"}],
        }  # fmt: skip
        await here.settle()
        assert await here.ids() == ["e2"]
        assert (await here.drops())["PAST_RETENTION"] == 1
        here.days[tenant] = 0  # kept longer from now on: what was dropped may come again, once
        for _ in range(2):
            await here.own([old, young])
            await here.pass_days(40)
        assert sorted(await here.ids()) == ["e1", "e2"]


async def test_history_is_refused_by_name_and_its_neighbours_are_taken(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with past(database, redis, history, tenant) as here:
        whole = [seen(1, 90), {**seen(2, 90), "timestamp": None}, seen(3, -3), seen(4, 90)]
        reply = await here.own(whole)
        assert msgspec.json.decode(reply.body) == {
            "accepted": 2,
            "dropped": [{"index": 1, "reason": "INVALID_TIMESTAMP"}, {"index": 2, "reason": "INVALID_TIMESTAMP"}],
        }
        v1 = [
            {"event": "seen", "uuid": f"v{n}", "distinct_id": "ada", "timestamp": stamp}
            for n, stamp in enumerate((at(90), "2199-01-01T00:00:00Z", at(2_000)))
        ]
        body = {"created_at": at(0), "batch": v1, "historical_migration": True}
        headers = {**V1, "authorization": f"Bearer {here.sender.write_key}"}
        reply = await here.send(Dialect.POSTHOG_V1, "/i/v1/analytics/events", body, **headers)
        assert msgspec.json.decode(reply.body) == {
            "results": {"v1": {"result": "drop", "details": "invalid_event_timestamp"}}
        }
        await here.settle()
        assert sorted(await here.ids()) == ["e1", "e4", "v0", "v2"]
        assert await here.drops() == {"INVALID_TIMESTAMP": 3}


async def test_the_history_modes_of_posthogs_and_segments_clients(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Times stand as they are, whatever the sender's clock says, and the sender's address is nobody's."""
    async with past(database, redis, history, tenant) as here:
        for _ in range(2):
            posthog = {"event": "p", "distinct_id": "ada", "uuid": "p1", "timestamp": at(700)}
            body = {
                "batch": [posthog],
                "api_key": here.sender.write_key,
                "historical_migration": True,
                "sent_at": at(3),
            }
            assert (await here.send(Dialect.POSTHOG, "/batch/", body)).status == 200
            messages: list[dict[str, Any]] = [
                {"type": "track", "event": "s", "messageId": "s1", "timestamp": at(800), "sentAt": at(799)},
                {"type": "identify", "anonymousId": "a1", "traits": {"plan": "pro"}, "timestamp": at(900)},
                {"type": "track", "event": "live", "messageId": "s2"},
            ]
            assert (await here.segment([{"userId": "ada", **message} for message in messages])).status == 200
            await here.pass_days(60)
        rows = {row[1]: row for row in await here.rows()}
        assert {name: row[3] for name, row in rows.items()} == {
            name: int((START - timedelta(days=days)).timestamp() * 1000)
            for name, days in (("p", 700), ("s", 800), ("$identify", 900))
        }
        ips = await history.query("select distinct ip from events where tenant_id = {t:UInt32}", {"t": tenant})
        assert ips == [("",)]
        assert await here.drops() == {"INVALID_TIMESTAMP": 2, "DUPLICATE": 3}
        assert await people_now(database, tenant) == {"ada": {"plan": "pro"}}
