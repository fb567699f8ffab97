"""Whether a view was counted before, as `POST /views` asks: right, together with others, and never in the way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import asyncpg

from handbill.events.key_lookup import PAUSE_S, KeyLookup
from handbill.events.model import key
from handbill.events.reader import EventReader
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, HotTimeouts, Tx, derive
from handbill.infra.sqlfiles import Sql
from handbill.kit.telemetry import metrics
from tests.conftest import MakeTenant
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.hot import UNHURRIED
from tests.kit.plans import plan_of
from tests.kit.proxy import proxy
from tests.kit.waiting import eventually, soon

ADD = Sql("insert into events.event_keys (tenant_id, key, stored_time) values ($1, $2, now())", "test_add")


async def add(database: Database, tenant: int, event_id: str) -> None:
    async with database.worker() as tx:
        await tx.execute(ADD, tenant, key("view", event_id))


class CountingReader(EventReader):
    """Notes how many keys each statement asks for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def counted_among(self, tx: Tx, keys: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        self.asked.append(len(keys))
        return await super().counted_among(tx, keys)


def unanswered() -> float:
    return float(metrics.EVENTS_KEY_LOOKUPS.labels("unanswered")._value.get())


async def test_a_key_is_known_to_its_tenant_only_and_those_who_ask_together_share_a_statement(
    database: Database, tenant: int, make_tenant: MakeTenant
) -> None:
    other = await make_tenant()
    await add(database, tenant, "mine")
    lookup = KeyLookup(database)
    reader = lookup._reader = CountingReader()
    asked = [(tenant, "mine"), (other, "mine"), (tenant, "new"), *((tenant, f"n{n}") for n in range(200))]
    answers = await asyncio.gather(*(lookup.is_counted(whose, key("view", name)) for whose, name in asked))
    assert answers == [True, False, False, *[False] * 200]
    assert reader.asked == [203]
    assert await lookup.is_counted(tenant, key("impression", "mine")) is False, "another kind is another event"


async def test_a_silent_postgresql_is_waited_for_once_and_then_not_asked_for_a_moment(
    engines: Engines, tenant: int
) -> None:
    clock = FakeClock()
    async with proxy(engines.postgres_url) as (net, url):
        database = Database(derive(url), hot=UNHURRIED)
        await database.start()
        lookup = KeyLookup(database, monotonic=clock.monotonic)
        try:
            await add(database, tenant, "mine")
            assert await lookup.is_counted(tenant, key("view", "mine")) is True
            database.hot._timeouts = HotTimeouts(fallback_s=0.01, lookup_s=0.02)
            net.freeze()
            before, timed_out = unanswered(), metrics.PG_HOT_LOOKUPS.labels("timed_out")._value.get()
            everybody = [lookup.is_counted(tenant, key("view", f"v{n}")) for n in range(3_000)]
            assert set(await soon(asyncio.gather(*everybody))) == {None}
            for _ in range(100):
                assert await soon(lookup.is_counted(tenant, key("view", "mine"))) is None
            assert unanswered() == before + 3_100
            assert metrics.PG_HOT_LOOKUPS.labels("timed_out")._value.get() == timed_out + 1, "one wait for all of them"
            net.thaw()
            database.hot._timeouts = UNHURRIED
            assert await lookup.is_counted(tenant, key("view", "mine")) is None, "not before the pause is over"
            clock.advance(seconds=PAUSE_S)

            async def is_answered() -> bool:
                clock.advance(seconds=PAUSE_S)
                return await lookup.is_counted(tenant, key("view", "mine")) is True

            await eventually(is_answered)
        finally:
            net.thaw()
            await database.stop()


async def test_more_than_may_wait_are_not_kept_waiting(database: Database, tenant: int) -> None:
    lookup = KeyLookup(database)
    many = await asyncio.gather(*(lookup.is_counted(tenant, key("view", f"m{n}")) for n in range(11_000)))
    assert (many.count(None), many.count(False)) == (1_000, 10_000)


NEVER_ANALYZED = (
    "update pg_class set reltuples = -1, relpages = 0 where relname like 'event_keys%'",
    "delete from pg_statistic where starelid in (select oid from pg_class where relname like 'event_keys%')",
)


async def test_keys_are_looked_up_one_by_one_in_a_table_nobody_has_analyzed(engines: Engines, tenant: int) -> None:
    owner = await asyncpg.connect(engines.postgres_url)
    transaction = owner.transaction()
    await transaction.start()
    try:
        for forget in NEVER_ANALYZED:  # it may have been, a moment ago
            await owner.execute(forget)
        await owner.execute(
            "insert into events.event_keys"
            " select $1, decode(md5(n::text), 'hex'), now() from generate_series(1, 20000) n",
            tenant,
        )
        keys = [hashlib.md5(str(n).encode()).digest() for n in range(500)]
        text = sqlfiles.load("handbill.events").counted_among.text
        for mode in ("force_custom_plan", "force_generic_plan"):
            await owner.execute(f"set plan_cache_mode = {mode}")
            plan = await plan_of(owner, text, [tenant] * 500, keys)
            assert plan.rows_read("event_keys") <= 500
    finally:
        await transaction.rollback()
        await owner.close()
