"""Insights over real HTTP: questions, search, CSV, where an event went, the live tail; and what ends with its asker."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from handbill.events.model import CapturedEvent, Dropped, encode, key
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.people.model import person_id
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.http import Api
from tests.kit.processes import handbill, process
from tests.kit.proxy import Proxy, proxy
from tests.kit.waiting import eventually, soon

V1 = "/v1/insights"
DAY = datetime(2026, 7, 1, 12, tzinfo=UTC)
RANGE = {"from": "2026-07-01", "to": "2026-07-03"}
COLUMNS = (
    "tenant_id", "at", "received", "event", "event_id", "event_key", "distinct_id", "person_id", "properties",
)  # fmt: skip


class Desk:
    """A running API between whose process and ClickHouse stands a network that can fall silent."""

    def __init__(self, api: Api, net: Proxy, tenants: TenantService) -> None:
        self.api, self.net, self._tenants = api, net, tenants

    async def key(self, tenant: int, scope: str = "insights:read") -> str:
        made = await self._tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=[scope]), actor="test")
        return made.key

    async def write_key(self, tenant: int) -> str:
        return (await self._tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")).key


@pytest.fixture
async def desk(
    handbill_env: dict[str, str], engines: Engines, clickhouse: ClickHouse, database: Database, redis: Redis
) -> AsyncIterator[Desk]:
    await migrate_clickhouse(clickhouse)
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    async with proxy(engines.clickhouse_url) as (net, url):
        env = {**handbill_env, "HANDBILL_CLICKHOUSE__URL": url, "HANDBILL_API__KILL_TIMEOUT_S": "2"}
        async with process("api", env=env) as running, aiohttp.ClientSession() as client:
            await running.log(event="api-ready")
            yield Desk(Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client), net, tenants)
    await tenants.stop()


async def store(clickhouse: ClickHouse, tenant: int, *events: tuple[str, str, int, dict[str, Any]]) -> None:
    rows = [
        (
            tenant, at := DAY + timedelta(hours=hours), at, name, f"e-{number}", key("capture", f"e-{number}"), whose,
            person_id(tenant, whose), json.dumps(properties),
        )
        for number, (name, whose, hours, properties) in enumerate(events)
    ]  # fmt: skip
    await clickhouse.insert("events", COLUMNS, rows, token=f"http-{tenant}")


async def test_questions_and_their_tables(desk: Desk, clickhouse: ClickHouse, tenant: int, make_tenant: Any) -> None:
    other, api = await make_tenant(), desk.api
    await store(
        clickhouse, tenant, ("view", "ada", 0, {"plan": "=cmd|x"}), ("buy", "ada", 2, {"amount": 5}),
        ("view", "bob", 24, {"plan": "pro"}),
    )  # fmt: skip
    await store(clickhouse, other, ("view", "eve", 1, {"plan": "secret"}))
    mine, theirs = await desk.key(tenant), await desk.key(other)

    asked: dict[str, Any] = {**RANGE, "series": [{"event": "view"}, {"measure": "sum", "of": "amount"}], "filters": []}
    trends = (await api("POST", f"{V1}/trends", key=mine, json=asked)).json()
    assert json.dumps([line["figures"] for line in trends["lines"]]) == "[[1, 1], [5.0, 0.0]]"
    asked |= {"breakdown": {"property": "plan"}, "series": [{"event": "view"}]}
    reply = await api("POST", f"{V1}/trends.csv", key=mine, json=asked)
    assert reply.headers["content-type"].startswith("text/csv")
    table = list(csv.DictReader(io.StringIO(reply.body.decode())))
    assert {row["value"] for row in table} == {"'=cmd|x", "pro"}

    steps = {**RANGE, "steps": [{"event": "view"}, {"event": "buy"}]}
    funnel = (await api("POST", f"{V1}/funnels", key=mine, json=steps)).json()
    assert [(step["people"], step["median_s"]) for step in funnel["lines"][0]["steps"]] == [(2, None), (1, 7200.0)]
    back = {**RANGE, "begins": {"event": "view"}}
    again = await api("POST", f"{V1}/retention", key=mine, json=back, headers={"Idempotency-Key": "r-1"})
    assert [(one["people"], one["returned"]) for one in again.json()["cohorts"]] == [(1, [0]), (1, [])]
    for path, body in (("funnels.csv", steps), ("retention.csv", back)):
        assert (await api("POST", f"{V1}/{path}", key=mine, json=body)).status == 200

    days = "from=2026-07-01&to=2026-07-03"
    seen, cursor = [], ""
    while True:
        found = (await api("GET", f"{V1}/events?{days}&limit=2{cursor}", key=mine)).json()
        seen += [row["event_id"] for row in found["items"]]
        if found["next"] is None:
            break
        cursor = f"&cursor={found['next']}"
    assert seen == ["e-2", "e-1", "e-0"]
    where = json.dumps([{"property": "plan", "op": "is", "values": ["pro"]}])
    reply = await api("GET", f"{V1}/events", key=mine, params={**RANGE, "where": where, "distinct_id": "bob"})
    assert [row["properties"] for row in reply.json()["items"]] == [{"plan": "pro"}]
    exported = (await api("GET", f"{V1}/events.csv?{days}", key=mine)).body.decode()
    table = list(csv.DictReader(io.StringIO(exported)))
    assert [row["distinct_id"] for row in table] == ["bob", "ada", "ada"]
    assert [row["person_id"] for row in table] == [str(person_id(tenant, row["distinct_id"])) for row in table]
    assert "secret" not in exported
    assert [row["distinct_id"] for row in (await api("GET", f"{V1}/events?{days}", key=theirs)).json()["items"]] == [
        "eve"
    ]

    calls: tuple[tuple[str, str, Any], ...] = (
        ("POST", "trends", asked), ("POST", "funnels", steps), ("POST", "retention", back),
        ("GET", f"events?{days}", None),
        ("GET", "explain?event_id=e-1", None), ("GET", f"people/{person_id(tenant, 'ada')}/events?{days}", None),
    )  # fmt: skip
    for method, path, body in calls:
        join = "&" if "?" in path else "?"
        reply = await api(method, f"{V1}/{path}{join}wait=0", key=mine, json=body)
        if path.startswith("people"):
            reply.problem(404, "PERSON_NOT_FOUND")  # PostgreSQL knows nobody here
        else:  # other tests' events may wait in the same lanes
            answer = reply.json()
            assert answer["complete"] is (answer["lag"] is None), answer
    for path, body in (("trends.csv", asked), ("funnels.csv", steps), ("retention.csv", back)):
        table_reply = await api("POST", f"{V1}/{path}?wait=0", key=mine, json=body)
        assert table_reply.headers["handbill-complete"] in ("true", "false")
    listed = await api("GET", f"{V1}/events.csv?{days}&wait=0", key=mine)
    assert listed.headers["handbill-complete"] == ("false" if "handbill-lag-entries" in listed.headers else "true")

    told = (await api("GET", f"{V1}/explain?event_id=e-1", key=mine)).json()
    assert (told["outcome"], told["stored"]["state"]) == ("counted", "shipped")
    assert told["person_id"] == str(person_id(tenant, "ada"))
    assert (await api("GET", f"{V1}/explain?event_id=e-1", key=theirs)).json()["stored"] == {
        "state": "not_yet", "row": None,
    }  # fmt: skip


async def test_what_is_refused(desk: Desk, tenant: int) -> None:
    api, mine = desk.api, await desk.key(tenant)
    narrow = await desk.key(tenant, "banners:read")
    asked = {**RANGE, "series": [{}]}
    (await api("POST", f"{V1}/trends", key=narrow, json=asked)).problem(403, "SCOPE_MISSING")
    wrongs: tuple[dict[str, Any], ...] = (
        {"zone": "Mars/Olympus"}, {"zone": "../etc/passwd"}, {"to": "2026-07-01"}, {"to": "2036-07-01"},
        {"from": "2026-01-01", "interval": "hour"}, {"series": [{"measure": "sum"}]}, {"series": []},
        {"filters": [{"op": "gt", "property": "x", "values": ["a"]}]}, {"filters": [{"op": "set"}]},
        {"filters": [{"op": "is", "property": "a\0", "values": ["x"]}]}, {"groups": 51}, {"from": "9999-12-31"},
        {"filters": [{"op": "gt", "property": "x", "values": [1e300]}]},
        {"breakdown": {"property": "x", "of": "group"}},
        {"breakdown": {"column": "os", "of": "person"}}, {"filters": [{"op": "set", "column": "os", "of": "person"}]},
    )  # fmt: skip
    for wrong in wrongs:
        (await api("POST", f"{V1}/trends", key=mine, json={**asked, **wrong})).problem(400, "INVALID")
    heavy = {**RANGE, "interval": "hour", "series": [{}] * 8, "breakdown": {"column": "os"}, "groups": 50}
    heavy |= {"from": "2026-06-10"}
    (await api("POST", f"{V1}/trends", key=mine, json=heavy)).problem(400, "TOO_MANY_ROWS")
    for query, code in (
        ("cursor=%22", "BAD_CURSOR"), ("where=%7B", "INVALID"), ("where=[{}]", "INVALID"), ("event=%00", "INVALID"),
        ("from=9999-12-31", "INVALID"), ("to=0001-01-01", "INVALID"), ("wait=6", "INVALID"), ("wait=-1", "INVALID"),
    ):  # fmt: skip
        (await api("GET", f"{V1}/events?{query}", key=mine)).problem(400, code)
    nobody = f"{V1}/people/{person_id(tenant, 'nobody')}/events"
    (await api("GET", nobody, key=mine)).problem(404, "PERSON_NOT_FOUND")


async def test_a_question_ends_with_its_asker_and_an_absent_store_is_busy(desk: Desk, tenant: int) -> None:
    api, mine = desk.api, await desk.key(tenant)
    asked = {**RANGE, "series": [{}]}
    assert (await api("POST", f"{V1}/trends", key=mine, json=asked)).status == 200  # the API has a connection now
    desk.net.watch_for = b"max_memory_usage"  # questions have it, the readiness check does not
    desk.net.freeze()
    asking = asyncio.create_task(api("POST", f"{V1}/trends", key=mine, json=asked))
    await eventually(lambda: desk.net.watched)  # the question is on its way to the store, and hangs there
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await api.process.log(event="request", route=f"{V1}/trends", status=400)  # ended; the store's timeout gives 503
    desk.net.thaw()
    desk.net.down()
    (await api("POST", f"{V1}/trends", key=mine, json=asked)).problem(503, "CLICKHOUSE_AWAY")
    told = (await api("GET", f"{V1}/explain?event_id=e-1", key=mine)).json()
    assert told["stored"]["state"] == "away"
    assert told["outcome"] in ("unknown", "waiting")  # other tests' events may wait in the same lanes


class Stream:
    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply

    async def next(self) -> tuple[str, Any]:
        """The next message and its value."""
        lines = [(await soon(self._reply.content.readline())).decode().rstrip("\n") for _ in range(3)]
        assert lines[2] == "", lines
        return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


@asynccontextmanager
async def tailing(api: Api, key: str, query: str = "") -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {key}"}
    async with api.client.get(f"{api.base}{V1}/tail{query}", headers=headers) as reply:
        assert reply.status == 200, await reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        stream = Stream(reply)
        assert await stream.next() == ("open", None)
        yield stream


async def test_the_tail_shows_a_tenants_own_and_ends_with_its_listener(
    desk: Desk, redis: Redis, tenant: int, make_tenant: Any
) -> None:
    api, mine, other = desk.api, await desk.key(tenant), await make_tenant()
    desk.net.down()  # the event store is away, and the tail does not mind
    journal = StreamsJournal(redis)
    await journal.start()
    async with tailing(api, mine) as all_of_it, tailing(api, mine, "?event=buy") as bought:
        bodies = [
            encode(CapturedEvent(whose, f"{name}-{whose}", 1_000, 2_000, name, "ada", "own", b'{"a": 1}'))
            for whose in (other, tenant)
            for name in ("view", "buy")
        ]
        await journal.append("1", [*bodies, encode(Dropped(tenant, "d", 1_000, 2_000, "view", "TOO_OLD"))])
        found = [(await all_of_it.next())[1] for _ in range(3)]
        assert [(one["status"], one["event_id"]) for one in found] == [
            ("accepted", f"view-{tenant}"), ("accepted", f"buy-{tenant}"), ("dropped", "d"),
        ]  # fmt: skip
        assert (found[0]["properties"], found[2]["reason"]) == ({"a": 1}, "TOO_OLD")
        kind, one = await bought.next()
        assert (kind, one["event_id"]) == ("seen", f"buy-{tenant}")
        async with tailing(api, mine):
            (await api("GET", f"{V1}/tail", key=mine)).problem(429, "TAILS_FULL")
    await journal.stop()

    async def reopened() -> Any:  # the places of those who left are free again
        async with tailing(api, mine), tailing(api, mine), tailing(api, mine):
            return True

    await eventually(reopened)

    async def opened() -> Any:
        reply = await api.client.get(f"{api.base}{V1}/tail", headers={"Authorization": f"Bearer {mine}"})
        if reply.status == 200:
            return reply
        reply.release()
        return None

    left = await eventually(opened)
    assert await api.process.stop() == 0  # a stream that is open keeps nobody from stopping
    assert not api.process.seen(event="requests-cut")  # it was ended, not cut
    left.close()


async def test_the_command_line_follows_and_explains(
    handbill_env: dict[str, str], engines: Engines, clickhouse: ClickHouse, redis: Redis, tenant: int
) -> None:
    await migrate_clickhouse(clickhouse)
    await store(clickhouse, tenant, ("view", "ada", 0, {}))
    env = {**handbill_env, "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url}
    code, said = await handbill("events", "explain", "e-0", "--tenant", str(tenant), "--wait", "0", env=env)
    assert code == 0, said
    assert f"event store: shipped\nperson: {person_id(tenant, 'ada')}" in said
    journal = StreamsJournal(redis)
    await journal.start()
    async with process("events", "tail", "--tenant", str(tenant), "--count", "1", env=env) as running:
        await running.says("Waiting for events")
        await journal.append("2", [encode(CapturedEvent(tenant, "e-9", 1_000, 2_000, "buy", "ada", "own"))])
        assert "accepted  00:00:01 buy ada e-9" in await running.succeeds()
    await journal.stop()


async def test_from_a_clients_call_to_a_persons_page(
    desk: Desk, handbill_env: dict[str, str], engines: Engines, tenant: int
) -> None:
    """The whole way: sent, counted, shipped, explained; then an identify makes two ids one person."""
    api, mine = desk.api, await desk.key(tenant)
    write = await desk.write_key(tenant)

    async def send(*batch: dict[str, Any]) -> None:
        reply = await api("POST", "/v1/batch", json={"writeKey": write, "batch": list(batch)})
        assert reply.status == 200, reply.body

    async def explained(event_id: str) -> Any:
        told = (await api("GET", f"{V1}/explain?event_id={event_id}", key=mine)).json()
        return told if told["stored"]["state"] == "shipped" else None

    async def page() -> list[str]:
        reply = await api("GET", f"{V1}/people/{person_id(tenant, 'ada')}/events", key=mine)
        return sorted(row["event"] for row in reply.json()["items"]) if reply.status == 200 else []

    await send({"type": "track", "event": "look", "anonymousId": "phone", "messageId": "m-1"})
    assert (await api("GET", f"{V1}/explain?event_id=m-1", key=mine)).json()["outcome"] in ("waiting", "unknown")
    env = {**handbill_env, "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url, "HANDBILL_EVENTS__SHIP_WAIT_S": "0.1"}
    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        try:
            told = await eventually(lambda: explained("m-1"), timeout=90)
        except AssertionError as error:
            raise AssertionError(worker.tail()) from error
        assert (told["outcome"], told["kind"]) == ("counted", "capture")
        assert told["person_id"] == str(person_id(tenant, "phone"))
        await send(
            {"type": "identify", "userId": "ada", "anonymousId": "phone", "messageId": "m-2"},
            {"type": "track", "event": "buy", "userId": "ada", "messageId": "m-3"},
        )
        await eventually(lambda: explained("m-3"))

        async def both() -> Any:
            return {"look", "buy"} <= set(await page())

        await eventually(both)  # the phone's event is ada's now, by the ids in PostgreSQL

        async def moved() -> Any:
            return (await explained("m-1"))["person_id"] == str(person_id(tenant, "ada"))

        await eventually(moved)  # and by the overrides in the event store

        today = datetime.now(UTC).date()
        days = {"from": str(today - timedelta(days=1)), "to": str(today + timedelta(days=2))}
        asked = {**days, "series": [{"event": "look"}], "breakdown": {"property": "plan", "of": "person"}}
        await send({"type": "identify", "userId": "ada", "traits": {"plan": "pro"}, "messageId": "m-4"})

        async def by_plan() -> Any:
            answer = (await api("POST", f"{V1}/trends?wait=5", key=mine, json=asked)).json()
            return answer if answer["complete"] else None

        answer = await eventually(by_plan, timeout=90)  # the first complete answer has it
        lines = [(line["group"]["kind"], line["group"]["value"], line["total"]) for line in answer["lines"]]
        assert lines == [("value", "pro", 1)], "what the phone did is of somebody who has a plan by now"


async def test_banner_statistics_by_what_only_events_say(desk: Desk, clickhouse: ClickHouse, tenant: int) -> None:
    columns = (*COLUMNS, "url", "country", "device_type", "source", "banner_id")
    rows = [
        (
            tenant, DAY, DAY, "$banner_impression", f"b-{n}", key("impression", f"b-{n}"), "u", person_id(tenant, "u"),
            json.dumps({"variant": "ab"[n % 2]}), "=https://shop.example/?n=1", "FR", "Mobile", "banners", 1,
        )
        for n in range(5)
    ]  # fmt: skip
    await clickhouse.insert("events", columns, rows, token=f"stats-{tenant}")
    api, mine = desk.api, await desk.key(tenant, "stats:read")
    path, days = "/admin/stats/banners", "from=2026-07-01&to=2026-07-02&zone=UTC&interval=total"
    reply = await api("GET", f"{path}?{days}&by=variant&by=page&country=fr&device=MOBILE", key=mine)
    answer = reply.json()
    assert [(row["variant"], row["page"], row["impressions"]) for row in answer["rows"]] == [
        ("a", "=https://shop.example/", 3), ("b", "=https://shop.example/", 2),
    ]  # fmt: skip
    assert (answer["source"], answer["missing"], answer["complete_from"]) == ("events", [], None)
    assert (answer["totals"]["ctr_low"], answer["totals"]["ctr_high"]) == (0.0, 0.434482)
    table = (await api("GET", f"{path}/csv?{days}&by=page&variant=a&variant=b", key=mine)).body.decode()
    assert [row["page"] for row in csv.DictReader(io.StringIO(table))] == ["'=https://shop.example/"]

    every = "&".join(f"by={name}" for name in ("banner", "placement", "campaign", "variant", "country", "device"))
    assert (await api("GET", f"{path}?{days}&{every}&by=page", key=mine)).status == 200
    for wrong, field in (
        (f"{every}&by=page&by=page", "by"), ("by=colour", "by"), ("variant=", "variant"), ("page=%23x", "page"),
        ("&".join(f"country=c{n}" for n in range(51)), "country"),
    ):  # fmt: skip
        problem = (await api("GET", f"{path}?{days}&{wrong}", key=mine)).problem(400, "INVALID")
        assert {fault["field"].partition("[")[0] for fault in problem["faults"]} == {field}, problem

    desk.net.down()
    refused = await api("GET", f"{path}?{days}&by=variant", key=mine)
    refused.problem(503, "STATS_EVENTS_AWAY")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await api("GET", f"{path}?{days}&by=banner", key=mine)).json()["source"] == "counters"
