"""Exported means counted: an engine that answers well and keeps nothing, or loses rows later, costs no event."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import pytest

from handbill.events.export_audit import AuditPolicy, ExportAuditor
from handbill.events.history import History
from handbill.events.model import CapturedEvent, Event, Impression, Row, View, key
from handbill.events.policy import ConsumerPolicy
from handbill.events.shipping_present import count_rows
from handbill.events.shipping_store import Load
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import from_ms
from handbill.kit.ids import Ids
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import captures, shipped, shipping, stored, wanted
from tests.kit.waiting import eventually

SMALL = ConsumerPolicy(batch_events=40, batch_wait_ms=0)
AT_ONCE = AuditPolicy(after_s=0)
DAY_MS = 86_400_000
STATES = Sql(
    "select done_at is not null as done, audited_at is not null as audited, coalesce(lost_events, 0) as lost"
    " from events.ch_batches where lane = any ($1::text[])",
    "test_batch_states",
)
WAIT = {"mutations_sync": 1}


class Swallowing(ClickHouse):
    """Answers well to every insert of events, and keeps only a part of the rows, while `swallows` is set."""

    def __init__(self, engines: Engines, kept: float) -> None:
        super().__init__(engines.clickhouse_url, engines.worker)
        self.swallows = True
        self.swallowed = 0
        self._kept = kept

    async def insert_columns(
        self, table: str, columns: Sequence[str], values: Sequence[Sequence[Any]], token: str | None = None
    ) -> None:
        if self.swallows and table == "events":
            rows = int(len(values[0]) * self._kept)
            self.swallowed += len(values[0]) - rows
            values, token = [column[:rows] for column in values], None
        await super().insert_columns(table, columns, values, token)


async def states(app: Loop) -> list[tuple[bool, bool, int]]:
    async with app.database.worker() as tx:
        return [(row["done"], row["audited"], row["lost"]) for row in await tx.fetch(STATES, app.lane_names())]


async def export(app: Loop, events: Sequence[Event], history: ClickHouse, **options: Any) -> None:
    """Accept, count and export these, with a consumer that stays."""
    await app.consumer(SMALL, shipping=shipping(app.database, history, app.journal, **options))
    for at in range(0, len(events), 50):
        await app.events.accept(events[at : at + 50])
    await app.drained()
    await shipped(app)


async def audit(app: Loop, history: ClickHouse, **options: Any) -> None:
    made = shipping(app.database, history, app.journal, **options)
    await ExportAuditor(made, app.clock, AT_ONCE).run()


async def all_audited(app: Loop, history: ClickHouse) -> bool:
    """Whatever the auditor sends back, the exporter exports again within some seconds."""
    await audit(app, history)
    return all(done and audited for done, audited, _ in await states(app))


@pytest.mark.parametrize("kept", [0.0, 0.6])
async def test_rows_that_were_taken_and_not_kept_are_not_done(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int, kept: float
) -> None:
    """While it swallows rows nothing is done and the journal keeps every event; afterwards each is there once."""
    engine = Swallowing(engines, kept)
    await engine.start()
    try:
        async with loop(database, redis, main=1) as app:
            events = captures(random.Random(21), tenant, 150, app.clock.now_ms())
            await app.consumer(SMALL, shipping=shipping(database, engine, app.journal))
            for at in range(0, len(events), 50):
                await app.events.accept(events[at : at + 50])
            await app.drained()
            await eventually(
                lambda: engine.swallowed > 20 or (kept and engine.swallowed > 5), what="rows are swallowed"
            )
            engine.swallows = False
            await shipped(app)
            assert await stored(history, tenant) == wanted(events)
            for consumer in app.consumers:
                await consumer.stop()
    finally:
        await engine.stop()


async def test_nothing_is_done_while_every_row_is_swallowed(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    engine = Swallowing(engines, 0.0)
    await engine.start()
    try:
        async with loop(database, redis, main=1) as app:
            events = captures(random.Random(22), tenant, 60, app.clock.now_ms())
            consumer = await app.consumer(SMALL, shipping=shipping(database, engine, app.journal))
            await app.events.accept(events)
            await app.drained()
            await eventually(lambda: engine.swallowed >= 4 * len(events), what="it was tried again and again")
            assert not any(done for done, _, _ in await states(app))
            await consumer.stop()
            assert not any(done for done, _, _ in await states(app))
            assert await _held(app) == len(events)
    finally:
        await engine.stop()


async def _held(app: Loop) -> int:
    """Events that the journal has in the loop's first lane."""
    entries = await app.journal.read(app.lane_names()[0], "0-0", events=10_000)
    return sum(len(entry.bodies) for entry in entries)


async def test_rows_lost_after_their_export_are_exported_again_once(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Also rows whose token the table still remembers, and of a batch that is there in part."""
    async with loop(database, redis) as app:
        events = captures(random.Random(23), tenant, 200, app.clock.now_ms())
        await export(app, events, history)
        assert await stored(history, tenant) == wanted(events)
        await history.command(
            f"alter table events delete where tenant_id = {tenant} and cityHash64(event_key) % 3 = 0", WAIT
        )
        assert 0 < len(await stored(history, tenant)) < len(events)
        await eventually(lambda: all_audited(app, history), what="every batch is complete and audited")
        assert await stored(history, tenant) == wanted(events)
        assert not any(lost for _, _, lost in await states(app))


async def test_what_the_journal_has_no_more_is_listed_as_lost(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as app:
        events = captures(random.Random(24), tenant, 90, app.clock.now_ms())
        await export(app, events, history)
        await history.command(
            f"alter table events delete where tenant_id = {tenant} and cityHash64(event_key) % 2 = 0", WAIT
        )
        left = len(await stored(history, tenant))
        for consumer in app.consumers:
            await consumer.stop()
        await redis.call("DEL", *(app.keys.tagged("journal", lane) for lane in app.lane_names()))
        await audit(app, history)
        lost = [each for each in await app.events.lost(limit=10_000) if each.lane in app.lane_names()]
        assert sum(each.events for each in lost) == len(events) - left > 0
        await audit(app, history)
        again = [each for each in await app.events.lost(limit=10_000) if each.lane in app.lane_names()]
        assert again == lost


async def test_a_batch_exported_again_brings_no_erased_name_back(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """Who was erased is not kept, so the rows of a tenant with an erasure since go without any name."""

    async def erased(tenants: Collection[int], since: datetime) -> Collection[int]:
        assert tenants == {tenant}
        return {tenant}

    page = "https://shop.example/annabel"
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        banner = (await app.shop(tenant)).banners[0]
        events: list[Event] = [
            CapturedEvent(tenant, "mail-1", now, now, "paid", "annabel@shop.example", "own", b'{"to":"annabel"}',
                          session="annabel-s", ip="203.0.113.9", url=page),
            Impression(tenant, "i-annabel", now, now, banner, user="annabel", page=page, referrer="annabel"),
            View(tenant, "v-annabel", now, now, banner, user="annabel", device_id="annabel-phone"),
        ]  # fmt: skip
        await export(app, events, history, erased=erased)
        assert await stored(history, tenant) == wanted(events)
        await history.command(f"alter table events delete where tenant_id = {tenant}", WAIT)
        await eventually(lambda: all_audited(app, history), what="every batch is complete and audited")
        assert await stored(history, tenant) == wanted(events)
        rows = await history.query("select * from events where tenant_id = {t:UInt32}", {"t": tenant})
        assert all("annabel" not in str(value) for row in rows for value in row)


async def test_a_group_of_more_tenants_than_a_statement_could_name_is_counted(history: ClickHouse) -> None:
    """Forty thousand numbers of seven digits are more than the 256 KB that a statement may have."""
    ids, first = Ids(), random.Random(26).randrange(3_000_000, 9_000_000)
    batch, absent = (Load(ids.new(), "0-0", "1-0", b"\xff", 8) for _ in range(2))
    at, numbers = 1_790_000_000_000, range(first, first + 40_000)
    events = [CapturedEvent(number, "e", at, at, "paid", "d", "own") for number in numbers]
    rows = [Row(place, key(event.kind, event.id), event, b"") for place, event in enumerate(events)]
    columns = ("tenant_id", "at", "event_key", "batch_id")
    made = [(row.event.tenant, from_ms(at), row.key, batch.id.bytes) for row in rows[:30_000]]
    await history.insert("events", columns, made, str(ids.new()))
    found = await count_rows(history, [(batch if row.place % 2 else absent, row) for row in rows])
    assert (found[batch.id], found[absent.id]) == (30_000, 0)


async def test_a_month_that_retention_dropped_is_not_missing(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async def classes(tenants: object) -> dict[int, int]:
        return {tenant: 7}

    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        old = now - 300 * DAY_MS
        events = [CapturedEvent(tenant, "h", old, now, "paid", "d", "own", marks=("historical",))]
        await export(app, events, history, classes=classes)
        assert len(await stored(history, tenant)) == 1
        await History(history, app.clock).drop(from_ms(now))
        assert await stored(history, tenant) == []
        await audit(app, history, classes=classes)
        assert await states(app) == [(True, True, 0)]


async def test_a_journal_is_trimmed_only_behind_counted_batches(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """However old: with nothing to wait for, entries go as soon as their batch is done, and not before."""
    eager = ConsumerPolicy(batch_events=40, batch_wait_ms=0, trim_after_s=0)
    engine = Swallowing(engines, 0.0)
    await engine.start()
    try:
        async with loop(database, redis, main=1) as app:
            events = captures(random.Random(25), tenant, 80, app.clock.now_ms())
            consumer = await app.consumer(eager, shipping=shipping(database, engine, app.journal))
            for at in range(0, len(events), 10):
                await app.events.accept(events[at : at + 10])
            await app.drained()
            await eventually(lambda: engine.swallowed >= len(events), what="all were taken")
            for run, _ in consumer._runs.values():
                run._trimmed_at = -1e9
                await run._trim()
            assert await _held(app) == len(events)
            engine.swallows = False
            await shipped(app)
            for run, _ in consumer._runs.values():
                run._trimmed_at = -1e9
                await run._trim()
            assert await _held(app) < len(events)
            assert await stored(history, tenant) == wanted(events)
            await consumer.stop()
    finally:
        await engine.stop()
