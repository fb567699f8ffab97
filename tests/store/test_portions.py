"""Work that is cut by a time limit or a lock goes on where it stopped, and ends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from handbill.banners.erasure import Erasure
from handbill.contacts.store import S as CONTACTS
from handbill.events.reader import EventReader
from handbill.events.service import Chosen
from handbill.infra.postgres import Database, PostgresStopped, derive, walk, work
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.messaging.store import S as MESSAGING
from handbill.people.store import S as PEOPLE
from tests.kit.engines import Engines
from tests.kit.hot import UNHURRIED
from tests.kit.loop import loop
from tests.kit.many_rows import PERSON, PHONE, fill_table
from tests.kit.parked_requests import ended

ROWS = 200
SLOW_MS = 5
TIMEOUT_MS = 500
"""Half of what all rows take at least; a row takes a hundredth of it."""
OLD = timedelta(days=100)
NIL = UUID(int=0)


@pytest.fixture
async def owner(engines: Engines) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(engines.postgres_url)
    yield connection
    await connection.execute("drop function if exists public.slow_row() cascade")
    await connection.close()


@pytest.fixture
async def hurried(engines: Engines) -> AsyncIterator[Database]:
    """The adapter with a short time limit for statements, and a shorter one for locks."""
    adapter = Database(
        derive(engines.postgres_url), statement_timeout_ms=TIMEOUT_MS, lock_timeout_ms=TIMEOUT_MS // 5, hot=UNHURRIED
    )
    await adapter.start()
    yield adapter
    await adapter.stop()


async def make_slow(owner: asyncpg.Connection, table: str, event: str, which: str) -> None:
    """Each of these rows takes a while when it is changed, so that all of them take longer than the limit."""
    await owner.execute(
        f"""
        create or replace function public.slow_row() returns trigger language plpgsql as $$
        begin
            perform pg_sleep({SLOW_MS} / 1000.0);
            return case when tg_op = 'DELETE' then old else new end;
        end $$;
        grant execute on function public.slow_row() to public;
        create or replace trigger slow_row before {event} on {table} for each row
        when ({which}) execute function public.slow_row();
        """
    )


async def test_a_cut_portion_is_repeated_from_its_place_with_half_the_rows() -> None:
    rows, asked = list(range(100)), []

    async def portion(place: tuple[int], limit: int) -> tuple[int, tuple[int] | None]:
        asked.append((place[0], limit))
        if limit > 30 and place[0] >= 40:
            raise PostgresStopped("too long", sqlstate="57014")
        some = rows[place[0] : place[0] + limit]
        return len(some), (place[0] + limit,) if place[0] + limit < len(rows) else None

    assert await work(portion, (0,), 40) == 100
    assert asked == [(0, 40), (40, 40), (40, 20), (60, 20), (80, 20)]


async def test_one_row_that_is_too_slow_and_a_lock_are_told() -> None:
    for sqlstate in ("57014", "55P03"):

        async def portion(place: tuple[int], limit: int, sqlstate: str = sqlstate) -> tuple[int, None]:
            raise PostgresStopped("not now", sqlstate=sqlstate)

        with pytest.raises(PostgresStopped):
            await work(portion, (0,), 8)


async def test_pruning_ends_under_a_time_limit_that_cuts_the_whole_table(
    owner: asyncpg.Connection, hurried: Database, tenant: int
) -> None:
    await owner.execute(
        "insert into events.parked (id, tenant_id, kind, lane, reason, body, replayed_at)"
        " select gen_random_uuid(), $1, 'view', 'v1', 'X', '', now() - $2::interval from generate_series(1, $3::int)",
        tenant, OLD, ROWS,
    )  # fmt: skip
    await make_slow(owner, "events.parked", "delete", f"old.tenant_id = {tenant}")
    whole = Sql("delete from events.parked where tenant_id = $1", "whole")
    with pytest.raises(PostgresStopped):
        async with hurried.worker() as tx:
            await tx.execute(whole, tenant)
    reader, before = EventReader(), datetime.now(UTC) - timedelta(days=90)
    assert await reader.forget_replayed(hurried, before, ROWS * 2) >= ROWS
    assert await owner.fetchval("select count(*) from events.parked where tenant_id = $1", tenant) == 0


async def test_a_drop_of_parked_events_ends_under_a_time_limit_that_cuts_a_portion(
    owner: asyncpg.Connection, hurried: Database, redis: Redis, tenant: int
) -> None:
    await owner.execute(
        "insert into events.parked (id, tenant_id, kind, lane, reason, body)"
        " select gen_random_uuid(), $1, 'view', 'v1', 'X', '' from generate_series(1, $2::int)",
        tenant, ROWS,
    )  # fmt: skip
    await make_slow(owner, "events.parked", "delete", f"old.tenant_id = {tenant}")
    async with loop(hurried, redis) as house:
        requests, chosen = house.events.parked_requests, Chosen(tenant, "X")
        made = await requests.drop(tenant, chosen, actor="ada")
        done = await ended(requests, tenant, made.parked_request_id)
    assert (done.status, done.report) == ("done", {"dropped": ROWS})
    assert await owner.fetchval("select count(*) from events.parked where tenant_id = $1", tenant) == 0


async def test_an_erasure_ends_under_a_time_limit_that_cuts_the_whole_month(
    owner: asyncpg.Connection, hurried: Database, tenant: int
) -> None:
    now = datetime.now(UTC)
    await owner.execute(
        "insert into banners.banner_impressions (tenant_id, event_key, correlation_id, banner_id, user_id, occurred_at,"
        " received_at, lane) select $1, decode(md5($3::text || n), 'hex'), n::text, n % 7, 'ann', $2, $2, 1"
        " from generate_series(1, $4::int) n",
        tenant, now, os.urandom(8).hex(), ROWS * 7,
    )  # fmt: skip
    await make_slow(owner, "banners.banner_impressions", "update", f"old.tenant_id = {tenant} and old.banner_id = 0")
    for few in (ROWS * 14, ROWS):  # by the tenant's index, and by ranges of pages
        await owner.execute(
            "alter table banners.banner_impressions disable trigger slow_row;"
            f"update banners.banner_impressions set user_id = 'ann' where tenant_id = {tenant};"
            "alter table banners.banner_impressions enable trigger slow_row"
        )
        erased = await Erasure(hurried, few=few, pages=64).erase(tenant, ["ann"])
        assert erased["banners.banner_impressions"] == ROWS * 7


@pytest.mark.parametrize(
    ("table", "statement", "about", "start"),
    [
        ("contacts.import_rows", CONTACTS.erase_staged, (PERSON, [PHONE], []), (NIL, 0, 0)),
        ("contacts.import_findings", CONTACTS.erase_findings, ([PHONE],), (NIL, 0, 0)),
        ("messaging.webhook_inbox", MESSAGING.erase_webhooks, ([PHONE],), (b"",)),
        ("messaging.alerts", MESSAGING.erase_alerts, ([PHONE],), ("",)),
        ("messaging.hook_deliveries", MESSAGING.erase_deliveries, ([PHONE],), (NIL,)),
        ("people.unfolded", PEOPLE.erase_marks, ([PERSON],), (False, 0)),
        ("people.followups", PEOPLE.erase_followups, ([PERSON],), (0,)),
    ],
)
async def test_portions_together_erase_every_row_of_a_person(
    owner: asyncpg.Connection, database: Database, tenant: int, table: str, statement: Sql, about: Any, start: Any
) -> None:
    async with owner.transaction():
        await fill_table(owner, table, tenant, rows=25, every=5)
    for erased in (5, 0):
        assert await walk(database, statement, (tenant, *about), start, 4) == erased
    left = await owner.fetchval(f"select count(*) from {table} where tenant_id = $1", tenant)
    assert left == (25 if table == "messaging.hook_deliveries" else 20)


async def test_forgetting_keys_ends_under_a_time_limit_that_cuts_a_range(
    owner: asyncpg.Connection, hurried: Database, redis: Redis, tenant: int
) -> None:
    await add_keys(owner, tenant, ROWS * 160)  # several pages of each of the 16 partitions
    which = f"old.tenant_id = {tenant} and get_byte(old.key, 0) < 2"  # one of 128
    await make_slow(owner, "events.event_keys", "delete", which)
    async with loop(hurried, redis) as house:
        assert await house.events.forget_keys(datetime.now(UTC)) >= ROWS * 160
    assert await keys_of(owner, tenant) == 0


async def test_forgetting_keys_goes_on_behind_the_ranges_that_were_done(
    engines: Engines, owner: asyncpg.Connection, hurried: Database, redis: Redis, tenant: int
) -> None:
    await add_keys(owner, tenant, 8_000)
    holder = await asyncpg.connect(engines.postgres_url)
    last = "select key from events.event_keys where tenant_id = $1 order by ctid desc limit 1 for update"
    async with loop(hurried, redis) as house:
        async with holder.transaction():
            await holder.fetchval(last, tenant)
            with pytest.raises(PostgresStopped):
                await house.events.forget_keys(datetime.now(UTC), pages=1)
            left = await keys_of(owner, tenant)
            assert 0 < left < 8_000
        noted = await owner.fetch("select first_page, oldest_time from events.key_ranges where pages = 1")
        assert await house.events.forget_keys(datetime.now(UTC), pages=1) >= left
    again = await owner.fetch("select first_page, oldest_time from events.key_ranges where pages = 1")
    assert {tuple(row) for row in noted} <= {tuple(row) for row in again}, "ranges that were done are not read again"
    assert await keys_of(owner, tenant) == 0
    await holder.close()


async def add_keys(owner: asyncpg.Connection, tenant_id: int, count: int) -> None:
    await owner.execute("delete from events.key_ranges")
    await owner.execute(
        "insert into events.event_keys select $1, decode(md5($2::text || n), 'hex'), now() - $3::interval"
        " from generate_series(1, $4::int) n",
        tenant_id, os.urandom(8).hex(), OLD, count,
    )  # fmt: skip


async def keys_of(owner: asyncpg.Connection, tenant_id: int) -> int:
    count: int = await owner.fetchval("select count(*) from events.event_keys where tenant_id = $1", tenant_id)
    return count
