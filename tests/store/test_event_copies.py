"""Copies in the pipeline: the smallest sequence counts, whoever commits first, and it is forgotten in time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import asyncpg
import msgspec

from handbill.banners.imports import lines
from handbill.events.model import HISTORY_SEQUENCE, CapturedEvent, Row, decode, encode, key
from handbill.events.model import Edge as SaidEdge
from handbill.events.parked_model import Chosen
from handbill.events.policy import ConsumerPolicy
from handbill.events.service import STATE as EVENTS
from handbill.events.store import EventStore
from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.infra.state import state_hash
from handbill.people.model import EdgeKind
from handbill.people.service import STATE as PEOPLE
from tests.conftest import MakeTenant
from tests.kit.engines import Engines
from tests.kit.loop import loop
from tests.kit.waiting import eventually
from tests.store.test_event_order import corrections, impression, people_now, sequences

PARKED = Sql("select body from events.parked where tenant_id = $1 order by id", "test_parked_bodies")
BLOCKED = Sql(
    "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    " and query ~ '(insert into|update) events.event_keys')",
    "test_blocked",
    "tests",
    "the engine's own view",
)


async def test_a_parked_event_has_the_smallest_sequence_of_its_copies_in_the_batch(
    database: Database, redis: Redis, tenant: int
) -> None:
    """Its copies are dropped with the batch and do not come again: replayed, it must know what they said."""
    async with loop(database, redis) as app:
        now = app.clock.now_ms()
        bad = msgspec.structs.replace(impression(tenant, "bad", now, 7), page="a\0b")
        await app.events.accept([bad, msgspec.structs.replace(bad, sequence=3)])
        await app.consumer(ConsumerPolicy(batch_events=100, batch_wait_ms=0))
        await app.drained()
        async with database.worker() as tx:
            bodies = [row["body"] for row in await tx.fetch(PARKED, tenant)]
    assert [decode(body) for body in bodies] == [msgspec.structs.replace(bad, sequence=3)]
    assert await corrections(database, tenant) == {}


async def test_a_copy_that_waits_for_the_first_one_of_another_lane_lowers_its_sequence(
    database: Database, tenant: int
) -> None:
    """Two workers at once: whoever comes second sees what the first has committed meanwhile."""
    store, row = EventStore(), copies(tenant, ("one", 9))
    smaller = copies(tenant, ("one", 4))

    async def second() -> list[Row]:
        async with database.worker() as tx:
            assert await store.insert_keys(tx, smaller) == set()
            return await store.lower_sequences(tx, smaller)

    async with database.worker() as tx:
        await store.insert_keys(tx, row)
        waiting = asyncio.create_task(second())
        await eventually(lambda: blocked(database), what="the second worker waits for the first")
    assert await waiting == smaller
    assert await sequences(database, tenant) == {key("impression", "one"): 4}


async def test_of_two_workers_that_lower_one_sequence_at_once_the_smaller_wins(database: Database, tenant: int) -> None:
    store = EventStore()
    smallest, smaller = copies(tenant, ("one", 3)), copies(tenant, ("one", 4))

    async def lower(tx: Tx, rows: Sequence[Row]) -> None:
        await store.correct_sequences(tx, await store.lower_sequences(tx, rows))

    async def second() -> None:
        async with database.worker() as tx:
            await lower(tx, smaller)

    async with database.worker() as tx:
        await store.insert_keys(tx, copies(tenant, ("one", 9)))
    async with database.worker() as tx:
        await lower(tx, smallest)
        waiting = asyncio.create_task(second())
        await eventually(lambda: blocked(database), what="the second worker waits for the first")
    await waiting
    assert await sequences(database, tenant) == await corrections(database, tenant) == {key("impression", "one"): 3}


async def blocked(database: Database) -> bool:
    async with database.worker() as tx:
        return bool(await tx.fetchval(BLOCKED))


def copies(tenant: int, *chosen: tuple[str, int]) -> list[Row]:
    """Rows of impressions with these ids and sequences, in the order in which a batch writes them."""
    events = [impression(tenant, event_id, 1_000, sequence) for event_id, sequence in chosen]
    rows = [Row(n, key("impression", event.id), event, encode(event)) for n, event in enumerate(events)]
    return sorted(rows, key=lambda row: row.key)


async def test_workers_with_overlapping_copies_in_many_lanes_end_with_the_smallest_sequences(
    database: Database, redis: Redis, tenant: int
) -> None:
    """The same ids in every lane at once, each time with another sequence. Nobody waits in a circle."""
    chance = random.Random(5)
    async with loop(database, redis, main=4) as app:
        now = app.clock.now_ms()
        ids = [f"e{number}" for number in range(60)]
        sent = [
            msgspec.structs.replace(impression(tenant, event_id, now, chance.randrange(1_000)), session=f"s{session}")
            for event_id in ids
            for session in range(12)
        ]
        chance.shuffle(sent)
        for start in range(0, len(sent), 15):
            await app.events.accept(sent[start : start + 15])
        for _ in range(4):
            await app.consumer(ConsumerPolicy(batch_events=20, batch_wait_ms=0, lease_s=4))
        await app.drained()
        errors = [health.last_error for consumer in app.consumers for health in consumer.healths()]
    smallest = {
        key("impression", each): min(event.sequence for event in sent if event.id == each) for each in ids
    }  # fmt: skip
    stored = await sequences(database, tenant)
    assert stored == smallest
    corrected = await corrections(database, tenant)
    assert corrected == {each: stored[each] for each in corrected}
    assert not any(errors), errors


async def test_a_replay_of_ten_thousand_copies_writes_no_row_again(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        sent = [
            CapturedEvent(
                tenant, f"e{n}", now, now, "$identify", f"u{n % 50}", "own", set=b'{"plan":1}', set_once=b'{"first":2}',
                edge=SaidEdge(EdgeKind.IDENTIFY, f"anon{n % 50}"), micros=n % 1_000, sequence=n % 7,
            )
            for n in range(10_000)
        ]  # fmt: skip
        await app.consumer(ConsumerPolicy(batch_events=10_000, batch_wait_ms=0))
        await app.events.accept(sent)
        await app.drained()
        before = await places(database, tenant)
        random.Random(1).shuffle(sent)
        await app.events.accept(sent)
        await app.drained()
    after = await places(database, tenant)
    assert {table: len(rows) for table, rows in after.items()} == {
        "events.event_keys": 10_000, "people.properties": 50, "people.person_edges": 50, "people.persons": 50,
        "people.distinct_ids": 100, "events.sequence_corrections": 0, "people.unfolded": 0,
    }  # fmt: skip
    assert after == before


async def places(database: Database, tenant: int) -> dict[str, list[str]]:
    """Where each row stands in its table: a row that is written, even as it was, stands elsewhere."""
    found = {}
    async with database.worker() as tx:
        for table in (
            "events.event_keys", "people.properties", "people.person_edges", "people.persons", "people.distinct_ids",
            "events.sequence_corrections", "people.unfolded",
        ):  # fmt: skip
            statement = Sql(f"select tableoid::text || ctid::text from {table} where tenant_id = $1", "test_places")
            found[table] = sorted(row[0] for row in await tx.fetch(statement, tenant))
    return found


async def test_parked_copies_that_are_replayed_end_with_the_smallest_sequence(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """Some copies are parked in batches of their own, others are counted before and after the replay."""
    owner = await asyncpg.connect(engines.postgres_url)
    async with loop(database, redis, main=1) as app:
        now = app.clock.now_ms()
        await app.consumer(ConsumerPolicy(batch_events=1, batch_wait_ms=0))
        await owner.execute(
            "alter table people.properties add constraint ill check (distinct_id <> 'curable') not valid"
        )
        copies = [
            CapturedEvent(
                tenant, f"e{n}", now, now, "see", who, "own", set=b'{"plan":%d}' % n, micros=1, sequence=sequence
            )
            for who in ("curable", "well")
            for n, sequence in ((1, 5), (2, 4), (1, 1), (2, 6))
        ]  # fmt: skip
        copies[4:] = [msgspec.structs.replace(each, id=f"w{each.id}") for each in copies[4:]]
        try:
            for each in copies:
                await app.events.accept([each])
            await app.drained()
        finally:
            await owner.execute("alter table people.properties drop constraint ill")
            await owner.close()
        assert await people_now(database, tenant) == {"well": {"plan": 2}}
        await app.events.dead.replay(Chosen(tenant))
        await app.drained()
    assert await people_now(database, tenant) == {"well": {"plan": 2}, "curable": {"plan": 2}}
    assert await sequences(database, tenant) == {
        key("capture", f"{w}e{n}"): sequence for w in ("", "w") for n, sequence in ((1, 1), (2, 4))
    }


async def test_a_file_of_history_orders_events_of_one_time_by_their_lines(
    database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    """Whatever the chunks, and given again from where it stopped."""
    async with loop(database, redis) as app:
        await app.consumer(ConsumerPolicy(batch_events=3, batch_wait_ms=0))
        banner, placement = await app.banner(tenant), await app.placement(tenant)
        line = {
            "bannerPublicId": str(banner.banner_id),
            "placementPublicId": str(placement.placement_id),
            "occurredAt": "2020-05-01T00:00:00.000123Z",
        }
        file = tmp_path / "history.jsonl"
        file.write_text("".join(json.dumps({**line, "correlationId": f"h{n}"}) + "\n" for n in range(1, 8)))
        for size in (3, 7):
            source = list(lines(file))
            for start in range(0, len(source), size):
                await app.banners.importer.chunk(tenant, "impression", source[start : start + size])
        await app.drained()
    assert await sequences(database, tenant) == {key("impression", f"h{n}"): HISTORY_SEQUENCE + n for n in range(1, 8)}
    assert await corrections(database, tenant) == {}


async def test_the_sequence_is_part_of_the_state_and_the_corrections_are_not(database: Database, tenant: int) -> None:
    """Which sequence counts depends on the copies alone; whether the journal has a larger one, on their arrival."""
    store = EventStore()
    states = []
    for statement in (store.insert_keys, store.lower_sequences, store.correct_sequences):
        async with database.worker() as tx:
            sequence = 9 if statement == store.insert_keys else 4
            await statement(tx, copies(tenant, ("one", sequence)))
        async with database.worker() as tx:
            states.append(await state_hash(tx, (*EVENTS, *PEOPLE)))
    inserted, lowered, corrected = states
    assert inserted["events.event_keys"] != lowered["events.event_keys"]
    assert corrected == lowered


async def test_corrections_go_with_their_tenant(engines: Engines, database: Database, make_tenant: MakeTenant) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    store = EventStore()
    async with database.worker() as tx:
        await store.correct_sequences(tx, [*copies(tenant, ("a", 1)), *copies(other, ("a", 1))])
    owner = await asyncpg.connect(engines.postgres_url)
    await owner.execute("delete from tenants.tenants where tenant_id = $1", tenant)
    await owner.close()
    assert await corrections(database, tenant) == {}
    assert await corrections(database, other) == {key("impression", "a"): 1}


async def test_corrections_are_forgotten_behind_the_horizon_and_no_others(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    store = EventStore()
    rows = copies(tenant, *((f"e{number}", number) for number in range(25)))
    async with database.worker() as tx:
        await store.correct_sequences(tx, rows)
    async with loop(database, redis) as app:
        now = app.clock.now()
        await app.events.forget_sequence_corrections(now)  # other tests of this database may have left old ones
        owner = await asyncpg.connect(engines.postgres_url)
        for days, some in ((37, rows[:20]), (35, rows[20:])):
            await owner.execute(
                "update events.sequence_corrections set corrected_at = $3::timestamptz - $4::interval"
                " where tenant_id = $1 and event_key = any ($2::bytea[])",
                tenant, [row.key for row in some], now, timedelta(days=days),
            )  # fmt: skip
        await owner.close()
        assert await app.events.forget_sequence_corrections(now, limit=3) == 20
        assert await corrections(database, tenant) == {row.key: row.event.sequence for row in rows[20:]}
        assert await app.events.forget_sequence_corrections(now) == 0
