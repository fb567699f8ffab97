"""Shipping for the loop of `tests.kit.loop`, product events to ship, and what ClickHouse then has."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from uuid import UUID

from handbill.events.model import CapturedEvent, Edge, EdgeKind, Event, key
from handbill.events.policy import ShippingPolicy
from handbill.events.shipping_insert import ErasedSince, Shipping
from handbill.events.shipping_rows import Number, RowMaker
from handbill.events.shipping_store import ShippingStore
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.journal.port import Journal
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.kit.retry import Retry
from handbill.people.model import person_id
from handbill.people.overrides import Overrides
from tests.kit.engines import Engines
from tests.kit.loop import Loop
from tests.kit.waiting import eventually

AT_ONCE = ShippingPolicy(ship_events=1, ship_wait_s=0, look_every_s=0.2)
HASTY = Retry(tries=1, delay_ms=1)

PERSON = "if(empty(o.distinct_id), e.person_id, o.person_id)"
BY_PERSON = """
from events e
left join (
    select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
    where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
) o on o.distinct_id = e.distinct_id
where e.tenant_id = {tenant:UInt32}
"""
"""The canonical way from events to people."""


async def no_public_ids(numbers: Collection[Number]) -> Mapping[Number, str]:
    return {}


async def no_classes(tenants: Iterable[int]) -> Mapping[int, int]:
    return {}


async def nobody_erased(tenants: Collection[int], since: datetime) -> Collection[int]:
    return ()


def shipping(
    database: Database, clickhouse: ClickHouse, journal: Journal, *, policy: ShippingPolicy = AT_ONCE,
    maker: RowMaker | None = None, classes: object = no_classes, erased: ErasedSince = nobody_erased,
) -> Shipping:  # fmt: skip
    return Shipping(
        database, clickhouse, journal, maker or RowMaker(person_id, lambda address: None, no_public_ids),
        squashed=Overrides(database, clickhouse).squashed, classes=classes,  # type: ignore[arg-type]
        erased=erased, migrate=lambda: migrate_clickhouse(clickhouse), policy=policy,
    )  # fmt: skip


def hasty(engines: Engines, url: str | None = None) -> ClickHouse:
    """A client that says busy at once; a test of an outage does not want to wait for repetitions."""
    return ClickHouse(url or engines.clickhouse_url, engines.worker, policy=HASTY, timeout_s=10)


def captures(
    dice: random.Random, tenant: int, number: int, now: int, *, word: str = "e", ids: int = 30
) -> list[CapturedEvent]:
    """Product events over the last two days; some identify, some set."""
    made: list[CapturedEvent] = []
    for n in range(number):
        who = f"d{dice.randrange(ids)}"
        at = now - dice.randrange(2 * 86_400_000)
        kind = dice.random()
        edge = Edge(EdgeKind.IDENTIFY, f"d{dice.randrange(ids)}") if kind < 0.05 else None
        name = "$identify" if edge else dice.choice(("$pageview", "signed up", "paid"))
        told = b'{"plan":"%d"}' % dice.randrange(3) if 0.05 <= kind < 0.15 else None
        event = CapturedEvent(
            tenant, f"{word}{n}", at, now, name, who, "own", b'{"n":%d,"where":"caf\xc3\xa9"}' % n, set=told,
            edge=edge, user_agent=dice.choice(AGENTS), url="https://shop.example/", ip="203.0.113.7",
        )  # fmt: skip
        made.append(event)
    return made


AGENTS = (
    None,
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 "
    "Mobile/15E148 Safari/604.1",
)


async def stored(clickhouse: ClickHouse, tenant: int) -> list[bytes]:
    """The keys of a tenant's rows, every row its own."""
    rows = await clickhouse.query("select hex(event_key) from events where tenant_id = {t:UInt32}", {"t": tenant})
    return sorted(bytes.fromhex(row[0]) for row in rows)


def wanted(events: Iterable[Event]) -> list[bytes]:
    """The same, as they were sent: each once."""
    return sorted({key(event.kind, event.id) for event in events})


async def people(clickhouse: ClickHouse, tenant: int) -> dict[str, UUID]:
    """Whose each id's events are. One id of two people would be wrong, and fails."""
    rows = await clickhouse.query(
        f"select e.distinct_id as who, groupUniqArray({PERSON}) as people {BY_PERSON} group by who", {"tenant": tenant}
    )
    assert all(len(found) == 1 for _, found in rows), rows
    return {str(name): found[0] for name, found in rows}


async def shipped(house: Loop) -> None:
    """Until nothing of this loop's lanes waits for ClickHouse."""
    names = {lane for lane, _ in house.lanes.all()}

    async def done() -> bool:
        async with house.database.worker() as tx:
            waiting = await ShippingStore().unshipped(tx)
        return not names & waiting.keys()

    await eventually(done, timeout=120, what="everything is shipped")
