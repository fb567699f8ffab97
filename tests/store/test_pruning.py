"""Forgetting keys and erasing a person: each statement reads a bounded number of pages, and together they read all."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import asyncpg

from handbill.banners.erasure import Erasure
from handbill.banners.erasure import S as BANNERS
from handbill.events.store import S as EVENTS
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from tests.kit.engines import Engines

ROWS = 20_000
ADD = (
    "insert into banners.banner_impressions (tenant_id, event_key, correlation_id, banner_id, user_id, occurred_at,"
    " received_at, lane) select $1, decode(md5($3::text || n), 'hex'), n::text, n % 7,"
    " case when n % 1000 = 0 then 'ann' else 'u' || n end, $2, $2, 1 from generate_series(1, $4::int) n"
)
NAMED = Sql("select count(*)::int from banners.banner_impressions where tenant_id = $1 and user_id = 'ann'", "named")


async def test_an_erasure_in_ranges_of_pages_reaches_every_row(
    engines: Engines, database: Database, tenant: int
) -> None:
    now = datetime.now(UTC)
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        await owner.execute(ADD, tenant, now, os.urandom(8).hex(), ROWS)
    finally:
        await owner.close()
    erasure = Erasure(database, pages=16, few=100)
    rows = (await erasure.export(tenant, "ann", 7))["banners.banner_impressions"]
    assert len(rows) == 7
    assert len((await erasure.export(tenant, "ann", 100))["banners.banner_impressions"]) == ROWS // 1000
    assert (await erasure.erase(tenant, ["ann"]))["banners.banner_impressions"] == ROWS // 1000
    assert (await erasure.erase(tenant, ["ann"]))["banners.banner_impressions"] == 0
    async with database.worker() as tx:
        assert await tx.fetchval(NAMED, tenant) == 0


async def test_no_statement_reads_a_whole_partition(engines: Engines, database: Database, tenant: int) -> None:
    now = datetime.now(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (month + timedelta(days=32)).replace(day=1)
    ends = ((0, 0), (4, 0))
    owner = await asyncpg.connect(engines.postgres_url)
    transaction = owner.transaction()
    await transaction.start()
    try:
        await owner.execute(ADD, tenant, now, os.urandom(8).hex(), ROWS)
        await owner.execute(
            "insert into events.event_keys select $1, decode(md5($2::text || n), 'hex'), now()"
            " from generate_series(1, $3::int) n",
            tenant,
            os.urandom(8).hex(),
            ROWS * 16,
        )
        await owner.execute("analyze events.event_keys, banners.banner_impressions")
        plans = [
            await _plan(owner, EVENTS.forget_keys, *ends, now - timedelta(days=36)),
            await _plan(owner, BANNERS.erase_impressions, tenant, ["ann"], month, after, *ends),
            await _plan(owner, BANNERS.export_impressions, tenant, ["ann"], month, after, *ends, 10),
        ]
        for plan in plans:
            assert "Tid Range Scan" in plan
            assert "Seq Scan" not in plan
        assert "Index" in await _plan(owner, BANNERS.places_of_impressions, tenant, month, after, 100)
    finally:
        await transaction.rollback()
        await owner.close()


async def _plan(owner: asyncpg.Connection, statement: Sql, *args: object) -> str:
    return "\n".join(row[0] for row in await owner.fetch(f"explain {statement.text}", *args))
