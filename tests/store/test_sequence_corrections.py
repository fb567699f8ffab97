"""ClickHouse has the sequence that counts of every event, whether a copy came before or after the export."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from handbill.events.correction_store import Correction, CorrectionStore
from handbill.events.export_audit import AuditPolicy, ExportAuditor
from handbill.events.model import CapturedEvent, Event, Impression, at_us
from handbill.events.policy import ConsumerPolicy
from handbill.events.sequence_corrector import CorrectorPolicy, SequenceCorrector
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Broken
from tests.conftest import MakeTenant
from tests.kit import people as kit
from tests.kit import retrying_client as client
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import hasty, shipped, shipping
from tests.kit.waiting import eventually

ONE_BY_ONE = ConsumerPolicy(batch_events=1, batch_wait_ms=0)
OPEN = Sql(
    "select count(*)::int from events.sequence_corrections where tenant_id = $1 and exported_at is null", "test_open"
)
FINISHED = Sql(
    "select count(*)::int from events.sequence_corrections where tenant_id = $1 and exported_at is not null",
    "test_finished",
)
CHECKED = Sql("select checked_at from events.sequence_corrections where tenant_id = $1", "test_checked")
UNCHECKED = Sql("update events.sequence_corrections set checked_at = null where tenant_id = $1", "test_unchecked")

STORED = """
select event_id, toUnixTimestamp64Milli(at) * 1000 + micros, sequence from events where tenant_id = {t:UInt32}
"""


def impression(tenant: int, event_id: str, now: int, sequence: int) -> Impression:
    return Impression(tenant, event_id, now, now, 1, session="s", sequence=sequence)


async def stored(history: ClickHouse, tenant: int) -> dict[str, tuple[int, int]]:
    """Time in microseconds and sequence of each event in ClickHouse, each of which is there once."""
    rows = await history.query(STORED, {"t": tenant})
    found = {str(event_id): (int(us), int(sequence)) for event_id, us, sequence in rows}
    assert len(found) == len(rows)
    return found


async def count(database: Database, statement: Sql, tenant: int) -> int:
    async with database.worker() as tx:
        return int(await tx.fetchval(statement, tenant))


async def export(app: Loop, history: ClickHouse, policy: ConsumerPolicy = ONE_BY_ONE) -> None:
    """Count and export everything; the consumer goes on with whatever comes later."""
    if not app.consumers:
        await app.consumer(policy, shipping=shipping(app.database, history, app.journal))
    await app.drained()
    await shipped(app)


async def correct(app: Loop, history: ClickHouse, tenant: int, policy: CorrectorPolicy | None = None) -> None:
    corrector = SequenceCorrector(app.database, history, app.clock, policy)

    async def done() -> bool:
        await corrector.run()
        return await count(app.database, OPEN, tenant) == 0

    await eventually(done, timeout=60, what="every correction is in ClickHouse")


async def test_a_copy_after_the_export_corrects_the_row(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        await app.events.accept([impression(tenant, "one", now, 9), impression(tenant, "other", now, 9)])
        await export(app, history)
        await app.events.accept([impression(tenant, "one", now, 4)])
        await export(app, history)
        assert await stored(history, tenant) == {"one": (now * 1000, 9), "other": (now * 1000, 9)}
        await correct(app, history, tenant)
        assert await stored(history, tenant) == {"one": (now * 1000, 4), "other": (now * 1000, 9)}
        await app.events.accept([impression(tenant, "one", now, 2)])
        await export(app, history)
        await correct(app, history, tenant)
        assert await stored(history, tenant) == {"one": (now * 1000, 2), "other": (now * 1000, 9)}


async def test_a_copy_before_the_export_is_exported_and_nothing_is_changed_later(
    engines: Engines, database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    """The first exporter finds no ClickHouse and ends; the next one reads the rows from the journal, which has 9."""
    away = hasty(engines, "http://127.0.0.1:1")
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        counting = await app.consumer(ONE_BY_ONE, shipping=shipping(database, away, app.journal))
        await app.events.accept([impression(tenant, "one", now, 9)])
        await app.events.accept([impression(tenant, "one", now, 4)])
        await app.drained()
        await counting.stop()
        app.consumers.clear()
        assert await count(database, OPEN, tenant) == 1
        await export(app, history)
        assert await stored(history, tenant) == {"one": (now * 1000, 4)}
        assert not await SequenceCorrector(database, history, app.clock).run(), "nothing is left to be corrected"
        assert await count(database, FINISHED, tenant) == 1


async def test_a_smaller_sequence_of_a_copy_in_one_batch_is_exported_by_whoever_exports_it(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        await app.events.accept([impression(tenant, "one", now, sequence) for sequence in (9, 5, 7)])
        await export(app, history, ConsumerPolicy(batch_events=100, batch_wait_ms=0))
        assert await stored(history, tenant) == {"one": (now * 1000, 5)}


async def test_a_row_that_clickhouse_lost_is_exported_again_with_its_corrected_sequence(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        await app.events.accept([impression(tenant, "one", now, 9)])
        await export(app, history)
        await app.events.accept([impression(tenant, "one", now, 4)])
        await export(app, history)
        await correct(app, history, tenant)
        await history.command(f"alter table events delete where tenant_id = {tenant}", {"mutations_sync": 1})
        assert await stored(history, tenant) == {}
        auditor = ExportAuditor(shipping(database, history, app.journal), app.clock, AuditPolicy(after_s=0))
        assert (await auditor.run()).requeued == 1
        await shipped(app)
        assert await stored(history, tenant) == {"one": (now * 1000, 4)}


async def test_one_key_of_two_tenants_has_a_sequence_for_each(
    database: Database, redis: Redis, history: ClickHouse, make_tenant: MakeTenant
) -> None:
    ann, bob, cat = [await make_tenant() for _ in range(3)]
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        await app.events.accept([impression(tenant, "one", now, 90) for tenant in (ann, bob, cat)])
        await export(app, history)
        await app.events.accept([impression(ann, "one", now, 10), impression(bob, "one", now, 20)])
        await export(app, history)
        for tenant in (ann, bob):
            await correct(app, history, tenant)
        found = [(await stored(history, tenant))["one"][1] for tenant in (ann, bob, cat)]
    assert found == [10, 20, 90]


async def test_an_event_that_clickhouse_lacks_is_asked_for_again_and_holds_nobody_up(
    database: Database, redis: Redis, history: ClickHouse, make_tenant: MakeTenant
) -> None:
    absent, there = await make_tenant(), await make_tenant()
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        async with database.worker() as tx:
            for n in range(3):
                await tx.execute(ADD, absent, bytes([n]) * 16, 5)
        await app.events.accept([impression(there, "one", now, 9)])
        await export(app, history)
        await app.events.accept([impression(there, "one", now, 4)])
        await export(app, history)
        await correct(app, history, there, CorrectorPolicy(max_rows=2, max_rows_per_tenant=1))
        assert (await stored(history, there))["one"][1] == 4
        corrector = SequenceCorrector(database, history, app.clock)
        await corrector.run()
        async with database.worker() as tx:
            assert all(row["checked_at"] is not None for row in await tx.fetch(CHECKED, absent))
            due = await CorrectionStore().due(tx, per_tenant=10, limit=10)
        assert absent not in {each.tenant_id for each in due}, "not again at once"


ADD = Sql(
    "insert into events.sequence_corrections (tenant_id, event_key, sequence) values ($1, $2, $3)",
    "test_add_correction",
)


async def test_a_correction_that_became_smaller_meanwhile_stays_open(
    database: Database, tenant: int, history: ClickHouse
) -> None:
    store = CorrectionStore()
    async with database.worker() as tx:
        await tx.execute(ADD, tenant, b"k" * 16, 3)
        await store.finish(tx, [Correction(tenant, b"k" * 16, 4)])
        await store.postpone(tx, [Correction(tenant, b"k" * 16, 4)])
    assert await count(database, OPEN, tenant) == 1
    async with database.worker() as tx:
        assert [row["checked_at"] for row in await tx.fetch(CHECKED, tenant)] == [None]


async def test_finished_corrections_go_after_a_day_and_open_ones_stay(
    database: Database, redis: Redis, history: ClickHouse, tenant: int
) -> None:
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        await app.events.accept([impression(tenant, "one", now, 9)])
        await export(app, history)
        await app.events.accept([impression(tenant, "one", now, 4)])
        await export(app, history)
        async with database.worker() as tx:
            await tx.execute(ADD, tenant, b"k" * 16, 3)
            await tx.execute(UNCHECKED, tenant)
        corrector = SequenceCorrector(database, history, app.clock)

        async def finished() -> bool:
            await corrector.run()
            return await count(database, FINISHED, tenant) == 1

        await eventually(finished, timeout=60, what="the correction is in ClickHouse")
        assert (await count(database, OPEN, tenant), await count(database, FINISHED, tenant)) == (1, 1)
        await SequenceCorrector(database, history, app.clock, CorrectorPolicy(keep=timedelta(0))).run()
        assert (await count(database, OPEN, tenant), await count(database, FINISHED, tenant)) == (1, 0)


class Refusing(ClickHouse):
    """Says of every running mutation that it fails, and keeps what it is asked to end."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.mutations: list[tuple[Any, ...]] = []
        self.commands: list[str] = []

    async def query(self, sql: str, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
        if "system.mutations" in sql:
            return self.mutations
        return await super().query(sql, *args, **kwargs)

    async def command(self, sql: str, settings: Any = None) -> Any:
        self.commands.append(sql)


async def test_a_mutation_that_fails_is_ended_and_reported(
    database: Database, redis: Redis, history: ClickHouse
) -> None:
    engine = Refusing()
    async with loop(database, redis, main=1) as app:
        corrector = SequenceCorrector(database, engine, app.clock)
        engine.mutations = [("mutation_7.txt", "")]
        assert await corrector.run(), "one that is under way is waited for"
        assert engine.commands == []
        engine.mutations = [("mutation_7.txt", "Code: 241. Memory limit")]
        with pytest.raises(Broken, match="Memory limit"):
            await corrector.run()
        assert len(engine.commands) == 1
        assert "kill mutation" in engine.commands[0]
        assert "mutation_7.txt" in engine.commands[0]


@pytest.mark.parametrize("seed", [11, 12])
async def test_whatever_is_retried_in_whatever_order_clickhouse_has_the_order_that_counts(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, seed: int
) -> None:
    """Copies before, between and after exports; two consumers; the corrector runs in between."""
    chance = random.Random(seed)
    made = client.calls(seed, number=120)
    delivered = client.requests(seed, made)
    expected = client.counted(delivered)
    async with loop(database, redis, main=2) as app:
        now = app.clock.now_ms()
        batches = [_of_tenant(tenant, now, batch) for batch in delivered]
        chance.shuffle(batches)
        corrector = SequenceCorrector(database, history, app.clock, CorrectorPolicy(max_rows_per_tenant=7))
        policy = ConsumerPolicy(batch_events=9, batch_wait_ms=0)
        for _ in range(2):
            await app.consumer(policy, shipping=shipping(database, history, app.journal))
        for batch in batches:
            await app.events.accept(batch)
            if chance.random() < 0.2:
                await export(app, history)
                await corrector.run()
        await export(app, history)
        await correct(app, history, tenant)
        first = {event.id: event for batch in batches for event in reversed(batch)}
        assert len(first) == len(expected)
        found = await stored(history, tenant)
        assert found == {event.id: (now * 1000 - kit.HOUR * 1000 + at_us(event), event.sequence) for event in expected}
        in_order = sorted(found, key=lambda event_id: (*found[event_id], event_id))
        assert in_order == [event.id for event in expected]


def _of_tenant(tenant: int, now: int, batch: Sequence[CapturedEvent]) -> list[Event]:
    return [
        msgspec.structs.replace(event, tenant=tenant, at=now - kit.HOUR + event.at, received=now) for event in batch
    ]
