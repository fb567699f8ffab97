"""Other people's clients, unmodified: every field they send is what arrives, and what they send twice counts once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from posthog import Posthog
from segment.analytics.client import Client as Segment

from handbill.client import Client
from handbill.events.dialects.times import read_ms
from handbill.events.model import CapturedEvent
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.captured import Sender, capturing, new_sender
from tests.kit.engines import Engines
from tests.kit.processes import process
from tests.kit.recorder import Recorder, recorder
from tests.kit.waiting import eventually

AT = datetime.now(UTC) - timedelta(hours=2)


@pytest.fixture
async def net(handbill_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Recorder]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with capturing(handbill_env) as api, recorder(api.base) as made:
        yield made


COUNTED = "select count(*) from events.event_keys where tenant_id = $1"
DROPPED = "select reason, sum(events)::int as events from events.drops where tenant_id = $1 group by reason"


async def counted(env: dict[str, str], engines: Engines, sender: Sender, sent: int) -> tuple[int, dict[str, int]]:
    """Once the worker has gone through so many events of this tenant: how many it counted, and what it dropped."""
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        async with process("worker", "--only", "consume", env=env):

            async def done() -> tuple[int, dict[str, int]] | None:
                kept = int(await connection.fetchval(COUNTED, sender.tenant))
                drops = {row["reason"]: row["events"] for row in await connection.fetch(DROPPED, sender.tenant)}
                return (kept, drops) if kept + sum(drops.values()) >= sent else None

            found = await eventually(done, what=f"the worker went through {sent} events")
            assert found is not None
            return found
    finally:
        await connection.close()


def near(found: int, sent: str) -> bool:
    """The time as sent, corrected by what the way took: a few seconds on a slow machine."""
    told = read_ms(sent)
    return told is not None and abs(found - told) < 60_000


async def run(work: Callable[[], None]) -> None:
    """These clients wait; the loop must not."""
    await asyncio.to_thread(work)


async def test_posthogs_own_package_loses_no_field_in_either_of_its_formats(
    net: Recorder, database: Database, redis: Redis, tenant: int, handbill_env: dict[str, str], engines: Engines
) -> None:
    sender = await new_sender(database, redis, tenant)

    def work(**how: Any) -> None:
        client = Posthog(sender.write_key, host=net.url, flush_interval=0.1, max_retries=3, **how)
        mode = str(how.get("capture_mode") or how.get("gzip"))
        client.capture(
            "order placed", distinct_id=f"ada-{mode}", timestamp=AT, groups={"company": "tea"},
            properties={
                "total": 59.9, "items": [1, {"sku": "ä"}], "nothing": None, "$session_id": "s-1", "$ip": "203.0.113.9",
                "$current_url": "https://shop.example/cart", "$set": {"plan": "pro"},
            },
        )  # fmt: skip
        client.set(distinct_id=f"ada-{mode}", properties={"city": "Graz"})
        client.set_once(distinct_id=f"ada-{mode}", properties={"first": 1})
        client.alias(previous_id=f"ada-{mode}", distinct_id=f"anon-{mode}")
        client.group_identify("company", "tea", {"size": 3})
        client.flush()
        client.shutdown()

    await run(lambda: work(gzip=False))
    await run(lambda: work(gzip=True))
    await run(lambda: work(capture_mode="v1", capture_compression="zstd"))
    assert {sent.status for sent in net.sent} == {200}
    assert {sent.path for sent in net.sent} == {"/batch/", "/i/v1/analytics/events"}
    messages = {message["uuid"]: message for message in net.messages()}
    events = {event.id: event for event in await sender.events()}
    assert set(events) == set(messages)
    assert len(events) == 15
    for uuid, message in messages.items():
        same_posthog(events[uuid], message)
    edges = sorted((event.distinct_id, event.edge.other) for event in events.values() if event.edge)
    assert edges == [(f"ada-{mode}", f"anon-{mode}") for mode in ("False", "True", "v1")]
    assert {event.lib for event in events.values()} == {"posthog-python"}

    before = len(net.sent)
    net.lose = 1
    await run(lambda: work(gzip=False))
    assert len(net.sent) > before + 1, "the lost answer was not asked for again"
    sent, uuids = len(net.messages()), len({message["uuid"] for message in net.messages()})
    assert await counted(handbill_env, engines, sender, sent) == (uuids, {"DUPLICATE": sent - uuids})


def same_posthog(event: CapturedEvent, message: dict[str, Any]) -> None:
    kept = json.loads(event.properties)
    assert (event.name, event.distinct_id) == (message["event"], message["distinct_id"])
    assert near(event.at, message["timestamp"])
    for name, value in message["properties"].items():
        assert kept[name] == value, name
    for name, value in message.get("options", {}).items():
        assert kept[f"${name}"] == value
    inside = message["properties"]
    sets = {**inside.get("$set", {}), **message.get("$set", {})}
    assert json.loads(event.set or b"{}") == sets
    assert json.loads(event.set_once or b"{}") == {**inside.get("$set_once", {}), **message.get("$set_once", {})}
    if event.name == "order placed":
        assert (event.session, event.ip, event.url) == ("s-1", "203.0.113.9", "https://shop.example/cart")
        assert abs(event.at - int(AT.timestamp() * 1000)) < 60_000


async def test_segments_own_package_loses_no_field_and_its_repetitions_count_once(
    net: Recorder, database: Database, redis: Redis, tenant: int, handbill_env: dict[str, str], engines: Engines
) -> None:
    sender = await new_sender(database, redis, tenant)
    failed: list[Any] = []

    def work(**how: Any) -> None:
        client = Segment(
            sender.write_key, host=net.url, upload_interval=0.1, on_error=lambda *a: failed.append(a), **how
        )
        context = {
            "ip": "203.0.113.9", "userAgent": "Mozilla/5.0", "locale": "de-AT", "timezone": "Europe/Vienna",
            "page": {"url": "https://shop.example/cart", "referrer": "https://search.example/"},
            "os": {"name": "Linux", "version": "6.1"}, "screen": {"width": 1920, "height": 1080},
        }  # fmt: skip
        client.track("ada", "Order Placed", {"total": 59.9, "items": [1, {"sku": "ä"}]}, context=context, timestamp=AT)
        client.identify("ada", {"plan": "pro"}, anonymous_id="anon-1")
        client.page("ada", "Shop", "Cart", {"path": "/cart"})
        client.screen("ada", "App", "Cart", {"items": 2})
        client.group("ada", "tea", {"size": 3})
        client.alias("anon-2", "ada")
        client.flush()
        client.join()

    await run(work)
    net.lose = 1
    await run(lambda: work(gzip=True))
    net.answer_first = [(503, {}), (429, {"Retry-After": "1"})]
    await run(work)
    assert failed == []
    assert {sent.status for sent in net.sent} == {200}
    messages = {message["messageId"]: message for message in net.messages()}
    events = {event.id: event for event in await sender.events()}
    assert set(events) == set(messages)
    assert len(events) == 18
    for identity, message in messages.items():
        same_segment(events[identity], message)
    copies = len(net.messages()) - 18
    assert copies >= 1
    assert await counted(handbill_env, engines, sender, 18 + copies) == (18, {"DUPLICATE": copies})


def same_segment(event: CapturedEvent, message: dict[str, Any]) -> None:
    kind, kept = message["type"], json.loads(event.properties)
    assert event.distinct_id == message["userId"]
    assert near(event.at, message["timestamp"])
    assert kept["$context"] == message["context"]
    assert kept["$integrations"] == message["integrations"]
    assert event.lib == "analytics-python"
    for name, value in message.get("properties", {}).items():
        assert kept[name] == value, name
    if kind == "track":
        assert event.name == message["event"]
        assert (event.ip, event.user_agent, event.language) == ("203.0.113.9", "Mozilla/5.0", "de-AT")
        assert (event.url, event.os, event.screen_width) == ("https://shop.example/cart", "Linux", 1920)
    elif kind == "identify":
        assert json.loads(event.set or b"") == message["traits"]
        assert event.edge is not None
        assert (event.edge.kind, event.edge.other) == ("identify", "anon-1")
    elif kind == "alias":
        assert event.edge is not None
        assert (event.edge.kind, event.edge.other) == ("alias", "anon-2")
    elif kind == "group":
        assert (kept["$group_key"], kept["$group_set"]) == ("tea", {"size": 3})
    else:
        assert (kept["$name"], kept["$category"]) == ("Cart", "Shop" if kind == "page" else "App")


async def test_our_own_python_client_tracks_identifies_and_aliases(
    net: Recorder, database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant)

    def work() -> None:
        with Client(net.url, write_key=sender.write_key, timeout_s=60) as client:
            assert client.track("ada", "order_placed", {"total": 59.9}, person={"$set": {"plan": "pro"}}).kept
            assert client.identify("ada", {"city": "Graz"}, anonymous_id="d-1").kept
            assert client.alias("ada", "ada@shop").kept
            refused = client.track("null", "order_placed")
            assert refused.code == "ILLEGAL_DISTINCT_ID"

    await run_recording_nothing(net, work)
    events = {event.name: event for event in await sender.events()}
    assert {name: (event.edge.kind, event.edge.other) for name, event in events.items() if event.edge} == {
        "$identify": ("identify", "d-1"), "$create_alias": ("alias", "ada@shop"),
    }  # fmt: skip
    assert (events["order_placed"].properties, events["order_placed"].set) == (b'{"total":59.9}', b'{"plan":"pro"}')
    assert await sender.drops() == {"ILLEGAL_DISTINCT_ID": 1}


async def test_a_worker_drains_the_compatibility_stream_when_it_is_told_to(
    database: Database, redis: Redis, tenant: int, handbill_env: dict[str, str], engines: Engines, unique: Any
) -> None:
    sender, stream = await new_sender(database, redis, tenant), unique("in")
    for number in range(20):
        await redis.call("XADD", stream, "*", "project_id", tenant, "event", "seen", "distinct_id", f"user-{number}")
    await redis.call("XADD", stream, "*", "project_id", tenant, "event", "seen", "distinct_id", "null")
    env = {**handbill_env, "HANDBILL_EVENTS__INCOMING_STREAM": stream}
    assert await counted(env, engines, sender, 21) == (20, {"ILLEGAL_DISTINCT_ID": 1})


async def run_recording_nothing(net: Recorder, work: Callable[[], None]) -> None:
    await run(work)
    assert {sent.path for sent in net.sent} == {"/v1/events"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_posthogs_package_gets_no_flags_and_no_error(
    net: Recorder, database: Database, redis: Redis, tenant: int, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await new_sender(database, redis, tenant)
    answers: list[Any] = []

    def work() -> None:
        client = Posthog(sender.write_key, host=net.url, secret_key="phx_any", poll_interval=3600)
        client.load_feature_flags()  # type: ignore[no-untyped-call]
        answers.append((client.feature_flags, client.group_type_mapping, client.cohorts))
        client.shutdown()
        client = Posthog(sender.write_key, host=net.url, max_retries=0, flush_interval=0.1)
        answers.append(client.get_feature_flag("new-cart", "ada", person_properties={"plan": "pro"}))
        answers.append(client.feature_enabled("new-cart", "ada"))
        answers.append(client.get_feature_flag_payload("new-cart", "ada"))
        answers.append(client.get_all_flags("ada"))
        answers.append(client.capture("order placed", distinct_id="ada", send_feature_flags=True) is not None)
        client.shutdown()

    await run(work)
    definitions, flag, enabled, payload, flags, captured = answers
    assert definitions == ([], {}, {})
    assert (flag, enabled, payload, flags, captured) == (None, None, None, {}, True)
    assert {sent.status for sent in net.sent} == {200}, [(sent.path, sent.status) for sent in net.sent]
    complaints = [record.getMessage() for record in caplog.records if record.name.startswith("posthog")]
    assert not [line for line in complaints if "deprecated" not in line], complaints
    assert "order placed" in {event.name for event in await sender.events()}
