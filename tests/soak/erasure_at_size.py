"""50 million event keys, half of them old, and millions of rows of people: both end, and in short statements.

KEYS (default: 50,000,000) comes from the environment. 50 million keys take about 10 GB of disk for the time of the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from handbill.banners.erasure import Erasure as BannerErasure
from handbill.contacts.erasure import Erasure as ContactErasure
from handbill.events.model import HORIZON_DAYS
from handbill.infra.postgres import Database
from handbill.infra.postgres import tx as transactions
from handbill.tenants.model import NewTenant
from tests.kit.loop import Loop, loop
from tests.soak.context import Context
from tests.soak.count_under_fire import adapters

DAYS = 72
"""The keys were stored evenly over these days, in the order of time; half of them are behind the horizon."""
CHUNK = 100_000
STATEMENT_TIMEOUT_S = 30.0
ADDRESS = "ann@example.com"
IMPRESSIONS = """
insert into banners.banner_impressions
    (tenant_id, event_key, correlation_id, banner_id, user_id, occurred_at, received_at, lane)
select $1, decode(md5('i' || n), 'hex'), n::text, n % 7,
       case when n % 10000 = 0 then $2 else 'u' || n end, now(), now(), 1
from generate_series(1, $3::int) n
"""
FINDINGS = """
insert into contacts.import_findings (tenant_id, import_id, row_no, severity, code, value, original)
select $1, md5((n / 10000)::text)::uuid, n % 10000, 'reject', 'EMAIL', 'x',
       'name ' || n || ' of a rejected row, ' || case when n % 10000 = 0 then $2 else 'u' || n || '@example.com' end
from generate_series(1, $3::int) n
"""
STAGED = """
insert into contacts.import_rows (tenant_id, import_id, slice, row_no, contact_id, email, attributes, tags)
select $1, md5((n / 100000)::text)::uuid, 0, n % 100000, gen_random_uuid(),
       case when n % 10000 = 0 then $2 else 'u' || n || '@example.com' end, '{}', '{}'
from generate_series(1, $3::int) n
"""
SIZE = """
select sum(pg_total_relation_size(inhrelid))::bigint from pg_inherits where inhparent = 'events.event_keys'::regclass
"""


class _Longest:
    """The longest time of each statement, as the product's own adapter measures it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.statements = 0

    def observe(self, name: str, started: float) -> None:
        self.statements += 1
        self.seconds[name] = max(self.seconds.get(name, 0.0), time.perf_counter() - started)

    async def measure(self, work: Awaitable[Any]) -> tuple[Any, dict[str, Any]]:
        """What the work returns, and how long it and its longest statement took."""
        self.seconds, self.statements = {}, 0
        began = time.perf_counter()
        result = await work
        name = max(self.seconds, key=lambda each: self.seconds[each])
        assert self.seconds[name] < STATEMENT_TIMEOUT_S, f"{name} took {self.seconds[name]:.1f} s"
        return result, {
            "seconds": round(time.perf_counter() - began, 1),
            "statements": self.statements,
            "longest_statement": name,
            "longest_statement_seconds": round(self.seconds[name], 2),
        }


async def load_keys(ctx: Context, owner: asyncpg.Connection, tenant_id: int, keys: int, now: datetime) -> None:
    """COPY, and the primary key is built at the end."""
    await owner.execute("alter table events.event_keys drop constraint event_keys_pkey")
    step = timedelta(days=DAYS) / keys

    async def chunks() -> AsyncIterator[bytes]:
        for first in range(0, keys, CHUNK):
            names = ctx.random.randbytes(16 * min(CHUNK, keys - first)).hex()
            stored = (now - timedelta(days=DAYS) + first * step).isoformat()
            rows = (f"{tenant_id}\t\\\\x{names[at : at + 32]}\t{stored}\n" for at in range(0, len(names), 32))
            yield "".join(rows).encode()
            if first % (CHUNK * 50) == 0:
                ctx.say(f"{first:,} keys")

    columns = ("tenant_id", "key", "stored_time")
    await owner.copy_to_table("event_keys", schema_name="events", source=chunks(), columns=columns, format="text")
    await owner.execute("alter table events.event_keys add primary key (tenant_id, key)")
    await owner.execute("vacuum analyze events.event_keys")


async def forget(
    ctx: Context, house: Loop, owner: asyncpg.Connection, longest: _Longest, now: datetime
) -> dict[str, Any]:  # fmt: skip
    """A backlog of half the keys, the same night once more, and one day's keys in the next night."""
    counts: dict[str, Any] = {}
    for name, moment in (("first_night", now), ("same_night", now), ("next_night", now + timedelta(days=1))):
        forgotten, counts[name] = await longest.measure(house.events.forget_keys(moment))
        counts[name]["forgotten"] = forgotten
        ctx.say(f"{name}: {counts[name]}")
    horizon = now + timedelta(days=1) - timedelta(days=HORIZON_DAYS + 1)
    left = await owner.fetchval("select count(*) from events.event_keys where stored_time < $1", horizon)
    assert left == 0, f"{left} old keys are still there"
    return counts


async def erase(ctx: Context, database: Database, tenant_id: int, longest: _Longest) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for name, work in (
        ("erase_banners", BannerErasure(database).erase(tenant_id, [ADDRESS])),
        ("erase_contacts", ContactErasure(database).erase(tenant_id, ADDRESS)),
    ):
        erased, counts[name] = await longest.measure(work)
        counts[name]["rows"] = {table: count for table, count in erased.items() if count}
        ctx.say(f"{name}: {counts[name]}")
    return counts


async def run(ctx: Context) -> dict[str, Any]:
    keys = int(os.environ.get("KEYS", "50000000"))
    rows = keys // 10
    ctx.settings.update(keys=keys, days=DAYS, rows_of_each_table=rows, statement_timeout_s=STATEMENT_TIMEOUT_S)
    longest, now, patch = _Longest(), datetime.now(UTC), pytest.MonkeyPatch()
    async with (
        ctx.stack() as built,
        adapters(built.postgres_url, built.redis_url) as (database, redis),
        loop(database, redis) as house,
    ):
        tenant_id = (await house.tenants.create_tenant(NewTenant(name="Shop", slug="shop"), actor="soak")).tenant_id
        owner = await asyncpg.connect(built.postgres_url, command_timeout=3_600)
        try:
            await load_keys(ctx, owner, tenant_id, keys, now)
            ctx.say("keys are loaded")
            for text in (IMPRESSIONS, FINDINGS, STAGED):
                await owner.execute(text, tenant_id, ADDRESS, rows)
            await owner.execute("vacuum analyze")
            ctx.say("rows of people are loaded")
            counts: dict[str, Any] = {"key_table_bytes": await owner.fetchval(SIZE)}
            patch.setattr(transactions, "_observe", longest.observe)
            counts |= await forget(ctx, house, owner, longest, now)
            counts |= await erase(ctx, database, tenant_id, longest)
        finally:
            patch.undo()
            await owner.close()
    assert counts["erase_banners"]["rows"] == {"banners.banner_impressions": rows // 10_000}
    searched = dict.fromkeys(("contacts.import_rows", "contacts.import_findings"), rows // 10_000)
    assert counts["erase_contacts"]["rows"] == searched
    return counts
