"""People who each do two things in a row through somebody's unmodified client, and what is stored of the order.

Every person has `plan` set to `a` and then to `b`, and looks and then buys. Where the client can, `first` is set once
to `a` and once to `b`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import asyncpg
from posthog import Posthog
from rudderstack.analytics.client import Client as Rudder
from segment.analytics.client import Client as Segment

from handbill.infra.journal.lanes import Lanes
from tests.kit.waiting import eventually

COUNTED = "select count(*) from events.event_keys where tenant_id = $1"
COPIES = "select coalesce(sum(events), 0)::int from events.drops where tenant_id = $1 and reason = 'DUPLICATE'"
WAITING = "select exists (select from people.unfolded where tenant_id = $1)"
EXPORTING = """
select exists (select from people.distinct_ids where shipped < version and tenant_id = any ($1::int[]))
or exists (select from people.unfolded where tenant_id = any ($1::int[]))
or exists (select from events.ch_batches where done_at is null and lane = any ($2::text[]))
"""
PERSONS = """
select d.distinct_id, p.properties::text from people.distinct_ids d
join people.persons p on p.tenant_id = d.tenant_id and p.person_id = d.person_id where d.tenant_id = $1
"""


@dataclass(frozen=True)
class PythonClient:
    """An unmodified client: how it sends what `people` do, and whether it can set a property once."""

    name: str
    send: Callable[[str, str, list[str]], None]
    sets_once: bool = False

    def people(self, number: int) -> list[str]:
        return [f"{self.name}-{n}" for n in range(number)]


def _posthog(**options: Any) -> Callable[[str, str, list[str]], None]:
    def send(url: str, key: str, people: list[str]) -> None:
        client = Posthog(key, host=url, **options)
        client.capture("arrive", distinct_id=people[0])  # one event more: batches are even, so they split pairs
        for person in people:
            client.set_once(distinct_id=person, properties={"first": "a"})
            client.set_once(distinct_id=person, properties={"first": "b"})
            client.set(distinct_id=person, properties={"plan": "a"})
            client.set(distinct_id=person, properties={"plan": "b"})
            client.capture("look", distinct_id=person)
            client.capture("buy", distinct_id=person)
        client.flush()
        client.shutdown()

    return send


def _segment(client_class: Any, **options: Any) -> Callable[[str, str, list[str]], None]:
    def send(url: str, key: str, people: list[str]) -> None:
        client = client_class(key, host=url, **options)
        client.track(people[0], "arrive")
        for person in people:
            client.identify(person, {"plan": "a"})
            client.identify(person, {"plan": "b"})
            client.track(person, "look")
            client.track(person, "buy")
        client.flush()
        client.join()

    return send


PYTHON_CLIENTS = (
    PythonClient("posthog-v0", _posthog(), sets_once=True),
    PythonClient("posthog-v0-gzip", _posthog(gzip=True), sets_once=True),
    PythonClient("posthog-v1", _posthog(capture_mode="v1"), sets_once=True),
    PythonClient("posthog-v1-zstd", _posthog(capture_mode="v1", capture_compression="zstd"), sets_once=True),
    PythonClient("segment", _segment(Segment)),
    PythonClient("segment-gzip", _segment(Segment, gzip=True)),
    PythonClient("rudder", _segment(Rudder)),
)


async def folded(connection: asyncpg.Connection, tenant: int, events: int, copies: int) -> None:
    """Until so many events of the tenant are counted, so many copies refused, and nobody waits to be worked out."""

    async def done() -> bool:
        found = await connection.fetchval(COUNTED, tenant), await connection.fetchval(COPIES, tenant)
        assert found == (events, copies), found
        return not await connection.fetchval(WAITING, tenant)

    await eventually(done, what=f"{events} events and {copies} copies are counted and their people worked out")


async def exported(connection: asyncpg.Connection, tenants: Sequence[int]) -> None:
    """Until ClickHouse has everything that is counted in a worker's lanes, and knows whose these tenants' events are.

    Other tests may have left batches in lanes of their own.
    """
    lanes = [name for name, _ in Lanes().all()]

    async def done() -> bool:
        return not await connection.fetchval(EXPORTING, list(tenants), lanes)

    await eventually(done, what="ClickHouse has all events and people")


async def properties(connection: asyncpg.Connection, tenant: int) -> dict[str, dict[str, Any]]:
    """By distinct id."""
    rows = await connection.fetch(PERSONS, tenant)
    return {row["distinct_id"]: json.loads(row["properties"]) for row in rows}


def right(found: dict[str, dict[str, Any]], people: list[str], *, sets_once: bool) -> dict[str, int]:
    """How many of these people have the later `plan`, and the first `first`."""
    persons = [found.get(person, {}) for person in people]
    counts = {"plan": sum(person.get("plan") == "b" for person in persons)}
    if sets_once:
        counts["first"] = sum(person.get("first") == "a" for person in persons)
    return counts


async def funnel(base: str, secret_key: str) -> list[int]:
    """How many people of a tenant looked, and how many of them bought after it."""
    today = datetime.now(UTC).date()
    days = {"from": str(today - timedelta(days=1)), "to": str(today + timedelta(days=1))}
    headers = {"Authorization": f"Bearer {secret_key}"}
    asked = {**days, "steps": [{"event": "look"}, {"event": "buy"}]}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{base}/v1/insights/funnels", json=asked) as reply,
    ):
        assert reply.status == 200, await reply.text()
        (line,) = (await reply.json())["lines"]
    return [step["people"] for step in line["steps"]]
