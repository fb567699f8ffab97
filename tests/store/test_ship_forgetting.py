"""A person's events in ClickHouse: exported whole, then without a name and still counted."""

from __future__ import annotations

import random

import pytest

from handbill.events.forgetting import Forgetting
from handbill.events.policy import ConsumerPolicy
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.insights.compile import Compiled
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.errors import Busy
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import captures, shipped, shipping

LEFT_OVER = Sql(
    "update events.ch_batches set done_at = now() where done_at is null and lane <> all ($1::text[])", "left_over"
)
UNSHIPPED = Sql("update events.ch_batches set done_at = null, group_id = null where lane = any ($1::text[])", "unship")
NAMED = (
    "select countIf(distinct_id = {n:String} or session_id = {n:String} or position(properties, {n:String}) > 0),"
    " count(), uniqExact(person_id) from events where tenant_id = {t:UInt32}"
)


def lanes(house: Loop) -> list[str]:
    return [lane for lane, _ in house.lanes.all()]


async def test_the_name_goes_and_the_count_stays(
    database: Database, redis: Redis, clickhouse: ClickHouse, tenant: int
) -> None:
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis) as house:
        events = captures(random.Random(3), tenant, 120, house.clock.now_ms())
        await house.consumer(ConsumerPolicy(batch_wait_ms=0), shipping=shipping(database, clickhouse, house.journal))
        await house.events.accept(events)
        await house.drained()
        await shipped(house)
        async with database.worker() as tx:
            await tx.execute(LEFT_OVER, lanes(house))  # what earlier tests of this database never shipped
        who = events[0].distinct_id
        theirs = sorted(event.id for event in events if event.distinct_id == who)
        forgetting = Forgetting(database, clickhouse, patience_s=0.5)
        told = (await forgetting.export(tenant, who, 1_000))["clickhouse.events"]
        assert sorted(row["event_id"] for row in told) == theirs
        (_, rows, people) = (await clickhouse.query(NAMED, {"t": tenant, "n": who}))[0]
        assert await forgetting.erase(tenant, [who]) == {"clickhouse.events": len(theirs)}
        assert (await clickhouse.query(NAMED, {"t": tenant, "n": who}))[0] == (0, rows, people)
        assert await forgetting.erase(tenant, [who]) == {"clickhouse.events": 0}, "it may be asked for again"
        assert (await forgetting.export(tenant, who, 1_000))["clickhouse.events"] == []


async def test_names_of_any_letters_and_events_on_their_way(
    database: Database, redis: Redis, clickhouse: ClickHouse, tenant: int
) -> None:
    await migrate_clickhouse(clickhouse)
    odd = "o'Brien \\ {name:String} ') or 1=1 --"
    async with loop(database, redis, main=1) as house:
        events = captures(random.Random(4), tenant, 8, house.clock.now_ms())
        await house.consumer(ConsumerPolicy(batch_wait_ms=0), shipping=shipping(database, clickhouse, house.journal))
        await house.events.accept(events)
        await house.drained()
        await shipped(house)
        for consumer in house.consumers:
            await consumer.stop()
        forgetting = Forgetting(database, clickhouse, patience_s=0.2)
        async with database.worker() as tx:
            await tx.execute(UNSHIPPED, lanes(house))
        with pytest.raises(Busy, match="caught up"):
            await forgetting.erase(tenant, [odd])
        async with database.worker() as tx:
            await tx.execute(LEFT_OVER, [])
        assert await forgetting.erase(tenant, [odd]) == {"clickhouse.events": 0}
        assert (await clickhouse.query(NAMED, {"t": tenant, "n": odd}))[0][1] == 8


async def test_a_store_that_was_never_given_anything_has_nothing_to_forget(
    database: Database, engines: Engines, tenant: int
) -> None:
    async with database.worker() as tx:
        await tx.execute(LEFT_OVER, [])
    nowhere = ClickHouse(engines.clickhouse_url, "no_such_database")
    await nowhere.start()
    try:
        forgetting = Forgetting(database, nowhere, patience_s=0.2)
        assert await forgetting.erase(tenant, ["ada"]) == {"clickhouse.events": 0}
        assert await forgetting.export(tenant, "ada", 10) == {"clickhouse.events": []}
        with pytest.raises(Busy, match="no tables yet"):
            await EventStoreReader(nowhere, Bounds()).ask(Compiled("select 1 from events", {}))
    finally:
        await nowhere.stop()
