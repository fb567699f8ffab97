"""What was accepted against what PostgreSQL and ClickHouse have, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from handbill.events.model import key
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.settings import Settings
from tests.kit import knower, tracker
from tests.kit.mixed_load import MixedLoad
from tests.kit.waiting import eventually
from tests.soak.count_under_fire import drained

EventKey = tuple[int, bytes]
KEYS = Sql("select key from events.event_keys where tenant_id = $1", "fault_keys")
PARKED = Sql("select count(*)::int from events.parked", "fault_parked")
LOST = Sql("select count(*)::int from events.ch_batches where lost_at is not null", "fault_lost")
DROPS = Sql("select reason, sum(events)::int as n from events.drops group by 1", "fault_drops")


def accepted(load: MixedLoad) -> set[EventKey]:
    """Every event that was answered with 202, by tenant and key."""
    tracked = {(tenant_id, key(kind, name)) for tenant_id, kind, name in load.tracker.ledger._known}
    captured = {(tenant_id, key("capture", name)) for tenant_id, names in load.knower.events.items() for name in names}
    return tracked | captured


def differences(wanted: set[EventKey], found: Iterable[EventKey]) -> dict[str, int]:
    """`missing` were accepted and are not there, `doubled` are there more than once, `unknown` nobody accepted."""
    counts = Counter(found)
    return {
        "missing": len(wanted - counts.keys()),
        "doubled": sum(number - 1 for number in counts.values()),
        "unknown": len(counts.keys() - wanted),
    }


async def compare(settings: Settings, load: MixedLoad) -> dict[str, Any]:
    """Wait until everything is counted and exported, then compare; AssertionError for any difference."""
    assert settings.postgres.url is not None
    assert settings.redis.url is not None
    assert settings.clickhouse.url is not None
    database, redis = Database(derive(settings.postgres.url)), Redis(settings.redis.url, timeout=30)
    clickhouse = ClickHouse(settings.clickhouse.url)
    parts = (database, redis, clickhouse)
    for part in parts:
        await part.start()
    try:
        await drained(database, redis)
        await eventually(lambda: knower.settled(database), timeout=300, what="everything is exported")
        return await _compare(database, clickhouse, load)
    finally:
        for part in reversed(parts):
            await part.stop()


async def _compare(database: Database, clickhouse: ClickHouse, load: MixedLoad) -> dict[str, Any]:
    wanted = accepted(load)
    counted: list[EventKey] = []
    exported: list[EventKey] = []
    for tenant_id in sorted({tenant_id for tenant_id, _ in wanted}):
        async with database.worker() as tx:
            counted += [(tenant_id, bytes(row["key"])) for row in await tx.fetch(KEYS, tenant_id)]
        rows = await clickhouse.query(
            "select hex(event_key) from events where tenant_id = {tenant:UInt32}", {"tenant": tenant_id}
        )
        exported += [(tenant_id, bytes.fromhex(row[0])) for row in rows]
    async with database.worker() as tx:
        parked, lost = await tx.fetchval(PARKED), await tx.fetchval(LOST)
        drops = {row["reason"]: row["n"] for row in await tx.fetch(DROPS)}
    found = {
        "events_accepted": len(wanted), "in_postgres": differences(wanted, counted),
        "in_clickhouse": differences(wanted, exported), "parked": parked, "export_batches_lost": lost, "drops": drops,
    }  # fmt: skip
    none = {"missing": 0, "doubled": 0, "unknown": 0}
    assert (found["in_postgres"], found["in_clickhouse"], parked, lost) == (none, none, 0, 0), found
    await tracker.check(database, load.tracker.ledger)
    await knower.check(database, clickhouse, load.knower)
    return {**found, "cells_of_statistics_compared": len(load.tracker.ledger.cells)}
