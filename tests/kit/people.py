"""Generated histories of people, and the rows they must give, whatever the tenant's number."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from handbill.events.model import CapturedEvent
from handbill.events.model import Edge as SaidEdge
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.people import store
from handbill.people.gather import Gathered
from handbill.people.model import EdgeKind


def said(tenant: int, name: str, at: int, event: str, who: str, **more: Any) -> CapturedEvent:
    return CapturedEvent(tenant, name, at, at, event, who, "own", **more)


HOUR = 3_600_000
STATE = {
    "persons": "named_by, ids, identified_at, identified_sequence, identified_event, last_edge_at, last_edge_sequence,"
    " last_edge_event, properties, created_at",
    "distinct_ids": "distinct_id, first_seen_at",
    "properties": "distinct_id, words, moments",
    "person_edges": "kind, source_id, target_id, first_at, first_sequence, first_event, outcome",
    "warnings": "edge_key, code, detail, at",
    "unfolded": "distinct_id",
    "event_definitions": "event_name, first_seen_at, last_seen_at",
    "property_definitions": "property_type, property_name, value_type, first_seen_at, last_seen_at",
    "event_properties": "event_name, property_name, value_type, first_seen_at, last_seen_at",
}
NAMES = Sql(
    "select d.distinct_id, p.named_by from people.distinct_ids d"
    " join people.persons p on p.tenant_id = d.tenant_id and p.person_id = d.person_id where d.tenant_id = $1"
)


def history(seed: int, size: int = 60, people: int = 12) -> list[CapturedEvent]:
    chance = random.Random(seed)
    ids = [f"id{n}" for n in range(people)]
    events = []
    for number in range(size):
        at = chance.randrange(6 * HOUR)
        who, event = chance.choice(ids), said(0, f"e{number:03}", at, chance.choice(("see", "buy")), "")
        props = json.dumps({"price": chance.choice((1, "1", "dear", None))}).encode()
        told = json.dumps({chance.choice(("plan", "city")): chance.randrange(4)}).encode()
        more: dict[str, Any] = chance.choice(
            (
                {}, {"set": told}, {"set_once": told}, {"unset": json.dumps(list(json.loads(told))).encode()},
                {"edge": SaidEdge(chance.choice(list(EdgeKind)), chance.choice(ids))}, {"name": "$identify"},
            )
        )  # fmt: skip
        events.append(msgspec.structs.replace(event, distinct_id=who, properties=props, **more))
    return events


def everybody(events: Iterable[CapturedEvent]) -> list[str]:
    """Every id that events carry or edges name."""
    told = Gathered(events)
    return sorted({each for _, each in told.ids} | {edge.source for edge in told.edges.values()})


async def commit(database: Database, tenant: int, events: Sequence[CapturedEvent]) -> None:
    gathered = Gathered(msgspec.structs.replace(each, tenant=tenant) for each in events)
    async with database.worker() as tx:
        await store.write(tx, gathered)
        await store.write_definitions(tx, gathered.seen.seen())


async def state(database: Database, tenant: int) -> dict[str, list[str]]:
    found = {}
    async with database.worker() as tx:
        for table, columns in STATE.items():
            rows = await tx.fetch(Sql(f"select {columns} from people.{table} where tenant_id = $1"), tenant)
            found[table] = sorted(repr(tuple(row)) for row in rows)
        named = await tx.fetch(NAMES, tenant)
        found["named"] = sorted(repr(tuple(row)) for row in named)
    return found
