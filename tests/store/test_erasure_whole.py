"""A person leaves every store at once: no table, value or key names any of their ids afterwards; counts stay."""

from __future__ import annotations

import asyncpg

from handbill.events.accepted import Accepted
from handbill.events.batch import Parked
from handbill.events.forgetting import Forgetting
from handbill.events.model import CapturedEvent, Edge, EdgeKind, Event, Impression, View, encode
from handbill.events.policy import ConsumerPolicy
from handbill.events.reasons import Reason
from handbill.events.store import EventStore
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.ids import Ids
from handbill.people.overrides import Overrides
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import shipped, shipping

LOGIN, PHONE, WEB, OTHER = "ada@zz-login", "zz-phone-1", "zz-web-2", "bob@other"
LEFT_OVER = Sql(
    "update events.ch_batches set done_at = now() where done_at is null and lane <> all ($1::text[])", "left_over"
)
TABLES = (
    "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')"
)


async def naming(engines: Engines, word: str) -> list[str]:
    """Every table of PostgreSQL with a row that has this word anywhere, its bytes included."""
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        found = []
        for (table,) in await owner.fetch(TABLES):
            there = f"select exists (select from {table} t where t::text like any ($1::text[]))"
            if await owner.fetchval(there, [f"%{word}%", f"%{word.encode().hex()}%"]):
                found.append(table)
        return sorted(found)
    finally:
        await owner.close()


async def told(house: Loop, tenant: int) -> None:
    shop, now = await house.shop(tenant), house.clock.now_ms()
    events: list[Event] = []
    for n, who in enumerate((LOGIN, PHONE, WEB, OTHER) * 3):
        more = b'{"email":"%s"}' % who.encode()
        events.append(CapturedEvent(tenant, f"e{n}", now, now, "see", who, "own", more, more, session=f"s-{who}"))
        events.append(Impression(tenant, f"i{n}", now, now, shop.banners[0], user=who))
        events.append(View(tenant, f"v{n}", now, now, shop.banners[0], user=who))
    for n, other in enumerate((PHONE, WEB)):
        edge = Edge(EdgeKind.IDENTIFY, other)
        events.append(CapturedEvent(tenant, f"l{n}", now + 1, now, "$identify", LOGIN, "own", edge=edge))
    await house.events.accept(events)
    await house.drained()
    await shipped(house)
    body = encode(CapturedEvent(tenant, "p", now, now, "see", PHONE, "own"))
    async with house.database.worker() as tx:
        await EventStore().park(tx, [Parked(tenant, "capture", "p", Reason.REJECTED, "", body)], "0", Ids())


async def test_no_store_names_an_erased_person(
    database: Database, redis: Redis, clickhouse: ClickHouse, engines: Engines, tenant: int
) -> None:
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis, main=1) as house:
        await house.consumer(ConsumerPolicy(batch_wait_ms=0), shipping=shipping(database, clickhouse, house.journal))
        await told(house, tenant)
        overrides = Overrides(database, clickhouse)
        await overrides.ship()
        async with database.worker() as tx:
            await tx.execute(LEFT_OVER, [lane for lane, _ in house.lanes.all()])
        erasures, history = house.tenants.erasures, Forgetting(database, clickhouse)
        erasures.join_whole("caps", house.caps.erase, house.caps.export)
        erasures.join_whole("banners", house.banners.erasure.erase, house.banners.erasure.export)
        erasures.join_whole("segments", house.segments.erasure.erase, house.segments.erasure.export)
        erasures.join_whole("parked", house.events.dead.erase, house.events.dead.export)
        erasures.join_whole("history", history.erase, history.export)
        erasures.join_whole("people", house.people.erase, house.people.export, last=True)
        accepted, house.people.overrides = Accepted(database, house.journal, house.lanes), overrides

        async def settled(tenant_id: int) -> None:
            await accepted.counted()
            await house.people.keeper.settle(tenant_id)

        erasures.settled, erasures.siblings = settled, house.people.siblings
        exported = await erasures.export(tenant, WEB, actor="ada")
        assert sorted(exported.ids) == sorted((LOGIN, PHONE, WEB))
        assert {room for room, tables in exported.rooms.items() if any(tables.values())} == {
            "caps", "banners", "parked", "history", "people",
        }  # fmt: skip
        done = await erasures.erase(tenant, WEB, actor="ada")
        assert done.status == "done", done.report
        await overrides.ship()
        for word in (LOGIN, PHONE, WEB):
            assert await naming(engines, word) == [], word
            for table in ("events", "person_distinct_id_overrides"):
                rows = f"select * from {table} where tenant_id = {tenant} format JSONEachRow"
                assert word not in str(await clickhouse.command(rows)), (table, word)
        assert await naming(engines, OTHER) != []
