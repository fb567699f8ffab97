"""A client of product events that repeats until it is answered, its ledger, and the same as both stores have it.

What was answered is noted: events, edges and whose they are. At the end PostgreSQL and ClickHouse must say the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import aiohttp

from handbill.events.model import key
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.people.identity import History
from handbill.people.model import Edge, EdgeKind, Order, person_id
from tests.kit.shipping import BY_PERSON, PERSON

AGAIN = (429, 500, 502, 503)
DAY_MS = 86_400_000
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0"
IDS = Sql("select distinct_id, person_id from people.distinct_ids where tenant_id = $1", "knower_ids")
KEYS = Sql("select count(*)::int from events.event_keys where tenant_id = $1", "knower_keys")
UNSAID = Sql(
    "select (select count(*) from people.distinct_ids where shipped < version)"
    " + (select count(*) from people.unfolded) + (select count(*) from events.ch_batches where done_at is null)",
    "knower_unsaid",
)


@dataclass
class Knower:
    """`people` per tenant have a browser's id and a user's; some identify themselves, now and then the wrong way."""

    url: str
    keys: dict[int, str]
    dice: random.Random
    people: int = 300
    size: int = 100
    pace: float = 0.0
    events: dict[int, dict[str, str]] = field(default_factory=dict)
    """By tenant: whose each answered event is."""
    edges: dict[int, list[Edge]] = field(default_factory=dict)
    answered: int = 0
    requests: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    _made: int = 0

    def part(self, now_ms: int) -> tuple[int, list[dict[str, Any]]]:
        self._made += 1
        tenant = self.dice.choice(sorted(self.keys))
        told = [self._event(f"k{self._made}-{n}", now_ms) for n in range(self.size)]
        return tenant, told

    def _event(self, name: str, now_ms: int) -> dict[str, Any]:
        dice, who = self.dice, self.dice.randrange(self.people)
        made: dict[str, Any] = {
            "event": dice.choice(("$pageview", "paid")), "distinct_id": f"anon-{who}", "event_id": name,
            "timestamp": now_ms - dice.randrange(DAY_MS), "properties": {"n": dice.randrange(100)},
        }  # fmt: skip
        if (kind := dice.random()) < 0.05:
            other = dice.randrange(self.people) if kind < 0.005 else who
            made |= {"event": "$identify", "distinct_id": f"user-{who}", "anonymous_id": f"anon-{other}"}
        elif kind < 0.15:
            made |= {"event": "$set", "user_properties": {"$set": {"plan": dice.randrange(5)}}}
        elif kind < 0.3:
            made["distinct_id"] = f"user-{who}"
        return made

    def note(self, tenant: int, told: Sequence[dict[str, Any]]) -> None:
        mine = self.events.setdefault(tenant, {})
        edges = self.edges.setdefault(tenant, [])
        for position, each in enumerate(told):
            mine[each["event_id"]] = each["distinct_id"]
            if each["event"] == "$identify":
                order = Order(each["timestamp"] * 1000, position, each["event_id"])
                edges.append(Edge(EdgeKind.IDENTIFY, each["anonymous_id"], each["distinct_id"], *order))

    async def deliver(self, client: aiohttp.ClientSession, tenant: int, told: Sequence[dict[str, Any]]) -> None:
        headers = {"X-Write-Key": self.keys[tenant], "User-Agent": AGENT}
        while True:
            self.requests += 1
            try:
                async with client.post(f"{self.url}/v1/events", json={"events": told}, headers=headers) as reply:
                    said = await reply.text()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.repeated[type(error).__name__] += 1
                await asyncio.sleep(0.05)  # sleeps: a client's patience before it asks again
                continue
            if reply.status == 202:
                assert '"dropped":[]' in said, said[:500]
                self.note(tenant, told)
                self.answered += len(told)
                return
            assert reply.status in AGAIN, f"{reply.status}: {said[:500]}"
            self.repeated[str(reply.status)] += 1
            await asyncio.sleep(0.05)  # sleeps: a client's patience before it asks again

    async def run(self, now_ms: int, stop: asyncio.Event, senders: int = 6) -> None:
        """Until told to stop; every request under way is answered before this returns. One in ten is sent twice."""
        began, taken = asyncio.get_running_loop().time(), 0

        async def one(client: aiohttp.ClientSession) -> None:
            nonlocal taken
            while not stop.is_set():
                tenant, told = self.part(now_ms)
                taken += len(told)
                if self.pace and (ahead := taken / self.pace - (asyncio.get_running_loop().time() - began)) > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), ahead)
                for _ in range(1 + (self.dice.random() < 0.1)):
                    await self.deliver(client, tenant, told)

        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(senders):
                group.create_task(one(client))

    def persons(self, tenant: int) -> dict[str, UUID]:
        """Who everybody is, by the fold over what was answered, in the order of the events' own times."""
        history = History(self.edges.get(tenant, ()))
        ids = set(self.events[tenant].values()) | {edge.source for edge in self.edges.get(tenant, ())}
        return {each: person_id(tenant, history.group(each).name) for each in ids}


async def settled(database: Database) -> bool:
    """Nothing is left to fold, to tell or to ship."""
    async with database.worker() as tx:
        return not await tx.fetchval(UNSAID)


async def check(database: Database, clickhouse: ClickHouse, knower: Knower) -> dict[str, int]:
    """Every answered event once in each store, and each of its right person."""
    people = 0
    for tenant, events in sorted(knower.events.items()):
        wanted = knower.persons(tenant)
        async with database.worker() as tx:
            known = {row["distinct_id"]: row["person_id"] for row in await tx.fetch(IDS, tenant)}
            keys = await tx.fetchval(KEYS, tenant)
        assert keys == len(events), f"tenant {tenant}: PostgreSQL has {keys} keys of {len(events)} answered events"
        assert known == wanted, f"tenant {tenant}: {len(set(known.items()) ^ set(wanted.items()))} ids differ"
        rows = await clickhouse.query(
            f"select hex(e.event_key), e.distinct_id, {PERSON} {BY_PERSON}", {"tenant": tenant}
        )
        assert len(rows) == len(events), f"tenant {tenant}: ClickHouse has {len(rows)} rows of {len(events)}"
        found = {bytes.fromhex(name): (who, person) for name, who, person in rows}
        right = {key("capture", name): (who, wanted[who]) for name, who in events.items()}
        assert found == right, f"tenant {tenant}: {len(set(found.items()) ^ set(right.items()))} rows differ"
        people += len(set(wanted.values()))
    return {"events": sum(map(len, knower.events.values())), "people": people, "tenants": len(knower.events)}
