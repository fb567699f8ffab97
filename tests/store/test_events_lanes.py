"""Who owns a lane: epochs, leases, shares. Whatever happens to owners, every event is counted once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from handbill.banners.service import BannerSink
from handbill.caps.sink import CapsSink
from handbill.events import consumer as consumers
from handbill.events import lanes as lane_runs
from handbill.events.batch import Batch
from handbill.events.consumer import Consumer
from handbill.events.edge import EdgePolicy
from handbill.events.lanes import LaneRun
from handbill.events.model import Impression, Row
from handbill.events.pipeline.commit import Commit, LaneLost
from handbill.events.pipeline.steps import STEPS
from handbill.events.policy import ConsumerPolicy
from handbill.events.sharing import STEP_S
from handbill.events.store import EventStore
from handbill.infra.journal.spill import SpillPolicy
from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Throttled
from handbill.kit.ids import Ids
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import spawn_watched
from tests.conftest import MakeTenant
from tests.kit import ledger
from tests.kit.loop import loop, own_lanes
from tests.kit.waiting import eventually

EXPIRE = Sql("update events.lanes set lease_until = now() - interval '1 hour' where lane = any ($1::text[])", "expire")
MANIFESTS = Sql("select count(*)::int from events.ch_batches where lane = any ($1::text[])", "manifests")
QUICK = ConsumerPolicy(batch_wait_ms=1, lease_s=1)


async def kill(consumer: Consumer) -> None:
    """The process is gone: nothing is finished, nothing handed back."""
    tasks = [task for _, task in consumer._runs.values()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await consumer._leader.stop()
    consumer._runs.clear()


async def test_an_owner_of_an_older_epoch_commits_nothing(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(random.Random(1), [shop], 30, house.clock.now_ms())
        book = ledger.Ledger()
        book.note(sent)
        await house.events.accept(sent)
        store, sinks = EventStore(), (BannerSink(database), CapsSink(database, house.caps))
        commit = Commit(database, store, sinks, Ids(), timedelta(seconds=60))
        lane = house.lane_names()[0]
        async with database.worker() as tx:
            for each, number in house.lanes.all():
                await store.add_lane(tx, each, number)
            first = await store.claim(tx, [lane], "first", timedelta(seconds=-1))
            second = await store.claim(tx, [lane], "second", timedelta(seconds=60))
            assert await store.claim(tx, [lane], "third", timedelta(seconds=60)) is None
        assert first is not None
        assert second is not None
        assert second.owned.epoch == first.owned.epoch + 1
        entries = await house.journal.read(lane, first.cursor, events=1_000)
        bodies = [body for entry in entries for body in entry.bodies]

        def batch(owner: object) -> Batch:
            made = Batch(owner, first.cursor, entries[-1].id, bodies, first.cursor)  # type: ignore[arg-type]
            for step in STEPS:
                made = step(made)
            return made

        with pytest.raises(LaneLost):
            await commit(batch(first.owned))
        assert not await ledger.counted(database, [tenant])
        assert len((await commit(batch(second.owned))).survivors) == len(sent)
        with pytest.raises(LaneLost):  # the same range again: the cursor has gone on
            await commit(batch(second.owned))
        await ledger.check(database, book)


async def test_leases_stolen_in_the_middle_of_the_work(database: Database, redis: Redis, tenant: int) -> None:
    """Three workers, two lanes: again and again the owner is declared dead while it works."""
    dice = random.Random(2)
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        book = ledger.Ledger()
        for _ in range(3):
            await house.consumer(ConsumerPolicy(batch_events=25, batch_wait_ms=1, lease_s=0.4))
        for turn in range(12):
            sent = ledger.events(dice, [shop], 60, house.clock.now_ms(), word=f"t{turn}-")
            book.note([*sent, *sent[:10]])
            await house.events.accept([*sent, *sent[:10]])
            async with database.worker() as tx:
                await tx.execute(EXPIRE, house.lane_names())
        for consumer in house.consumers:
            await consumer.stop()
        await house.consumer()
        await house.drained()
        await ledger.check(database, book)


async def test_a_dead_owners_lanes_are_taken_over(database: Database, redis: Redis, tenant: int) -> None:
    dice = random.Random(3)
    async with loop(database, redis, main=3) as house:
        shop = await house.shop(tenant)
        book = ledger.Ledger()
        for turn in range(3):
            consumer = await house.consumer(ConsumerPolicy(batch_events=20, batch_wait_ms=1, lease_s=0.5))
            sent = ledger.events(dice, [shop], 150, house.clock.now_ms(), word=f"t{turn}-")
            book.note(sent)
            await house.events.accept(sent)
            await eventually(lambda held=consumer: held.lanes(), what="it has a lane")
            await kill(consumer)
        await house.consumer(QUICK)
        await house.drained()
        await ledger.check(database, book)


async def test_lanes_are_shared_and_handed_back(database: Database, redis: Redis) -> None:
    async with loop(database, redis, main=3) as house:
        one = await house.consumer(QUICK)
        await eventually(lambda: len(one.lanes()) == 4, what="the first has all")
        two = await house.consumer(QUICK)

        def shared() -> bool:
            return len(one.lanes()) == 2 and sorted(one.lanes() + two.lanes()) == sorted(house.lane_names())

        await eventually(shared, what="they share")
        await two.stop()
        await eventually(lambda: len(one.lanes()) == 4, what="the first has all again")


async def test_leases_are_renewed_while_lanes_are_given_up_and_their_exports_do_not_end(
    database: Database, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ClickHouse does not answer: each export that is told to end takes its time, as long as a lease."""
    exports: list[asyncio.Task[Any]] = []

    async def export() -> None:
        task = asyncio.current_task()
        assert task is not None
        exports.append(task)
        await asyncio.Event().wait()

    monkeypatch.setattr(consumers, "_LAST_SHIPMENT_S", 1e6)
    async with loop(database, redis, main=3) as house:
        one = await house.consumer(QUICK)
        await eventually(lambda: len(one.lanes()) == 4, what="the first has all")
        renewals: list[Sequence[str]] = []
        real = EventStore.renew

        async def renew(store: EventStore, tx: Tx, worker: str, lanes: Sequence[str], lease: timedelta) -> Any:
            if worker == one._worker:
                renewals.append(sorted(lanes))
            return await real(store, tx, worker, lanes, lease)

        monkeypatch.setattr(EventStore, "renew", renew)
        shipper: Any = SimpleNamespace(stop=lambda: None, health=TaskHealth("export"))
        one._ships.update({lane: (shipper, spawn_watched(export, shipper.health)) for lane in one.lanes()})
        two = await house.consumer(QUICK)
        await eventually(lambda: len(one.lanes()) == 2, what="the first gives two of them up")
        kept = one.lanes()
        before = len(renewals)
        await eventually(lambda: renewals[before:].count(kept) >= 5, what="the others are renewed, and none taken back")
        assert len(exports) == 4
        assert not any(task.done() for task in exports)
        monkeypatch.setattr(consumers, "_LAST_SHIPMENT_S", 0.0)
        for task in exports:
            task.cancel()
        await eventually(lambda: len(two.lanes()) == 2, what="the second has what was given up")


async def test_no_export_is_left_behind_when_a_lane_is_given_up_and_taken_again(
    database: Database, redis: Redis
) -> None:
    async with loop(database, redis, main=1) as house:
        consumer = await house.consumer(QUICK)
        await eventually(lambda: len(consumer.lanes()) == 2, what="both lanes are worked on")
        lane, gate = consumer.lanes()[0], asyncio.Event()
        shipper: Any = SimpleNamespace(stop=gate.set, health=TaskHealth("export"))

        async def export() -> None:
            await gate.wait()

        task = spawn_watched(export, shipper.health)
        consumer._ships[lane] = (shipper, task)
        consumer._let_go(lane)
        await consumer._leader.stop()  # whatever becomes of the distribution of lanes meanwhile
        await asyncio.gather(*consumer._handovers.values())
        assert task.done()
        assert lane not in consumer._ships
        await consumer._leader.start()
        await eventually(lambda: lane in consumer.lanes(), what="it is taken again")


async def test_a_lane_nobody_knows_to_be_his_runs_out(database: Database, redis: Redis) -> None:
    """A claim whose answer was lost, or a release that was not heard: the table says ours, and nobody works on it."""
    async with loop(database, redis, main=1) as house:
        consumer = await house.consumer(QUICK, start=False)
        store = EventStore()
        async with database.worker() as tx:
            for lane, number in house.lanes.all():
                await store.add_lane(tx, lane, number)
            assert await store.claim(tx, house.lane_names(), consumer._worker, timedelta(seconds=0.5))
        await consumer.start()
        await eventually(lambda: len(consumer.lanes()) == 2, what="both lanes are worked on")


async def test_the_journal_is_trimmed_behind_and_never_before(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_runs, "_TRIM_EVERY_S", 0.0)
    dice = random.Random(5)
    async with loop(database, redis, main=2) as house:
        shop = await house.shop(tenant)
        book = ledger.Ledger()
        for _ in range(2):
            await house.consumer(ConsumerPolicy(batch_events=20, batch_wait_ms=1, lease_s=2, trim_after_s=0))
        for turn in range(10):
            sent = ledger.events(dice, [shop], 50, house.clock.now_ms(), word=f"t{turn}-")
            book.note(sent)
            await house.events.accept(sent)
            if turn % 3 == 0:
                async with database.worker() as tx:
                    await tx.execute(EXPIRE, house.lane_names())
        await house.drained()
        await ledger.check(database, book)

        async def short() -> bool:
            left = [await redis.call("XLEN", house.keys.tagged("journal", lane)) for lane in house.lane_names()]
            async with database.worker() as tx:
                return bool(max(left) <= 1 and await tx.fetchval(MANIFESTS, house.lane_names()) == 0)

        await eventually(short, what="what is counted is forgotten")


async def test_a_noisy_tenant_never_holds_up_the_others(
    database: Database, redis: Redis, make_tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 12 for tenants: the noise goes to a lane of its own, which works little while others wait."""
    noisy, quiet = await make_tenant(), await make_tenant()
    policy = EdgePolicy(spill=SpillPolicy(floor=0.5, share=0.3, tau_s=100, hold_s=1_000))
    async with loop(database, redis, lanes=own_lanes(1), edge=policy) as house:
        loud, calm = await house.shop(noisy), await house.shop(quiet)
        dice = random.Random(6)
        now = house.clock.now_ms()
        book = ledger.Ledger()
        noise = ledger.events(dice, [loud], 2_000, now)
        for start in range(0, len(noise), 10):  # an entry is never cut in two: small ones make a long way
            await house.events.accept(noise[start : start + 10])
        words = ledger.events(dice, [calm], 100, now)
        await house.events.accept(words)
        book.note(words)
        main, overflow = house.lane_names()
        held = (await house.journal.lag(overflow, "0-0")).events
        assert held > 1_900
        pauses = note_pauses(monkeypatch)
        store, lease = EventStore(), timedelta(seconds=600)
        async with database.worker() as tx:  # the main lane belongs to a worker that does nothing
            for lane, number in house.lanes.all():
                await store.add_lane(tx, lane, number)
            elsewhere = await store.claim(tx, [main], "elsewhere", lease)
        assert elsewhere is not None
        consumer = await house.consumer(ConsumerPolicy(batch_events=10, batch_wait_ms=0, overflow_share=1e-6))
        await eventually(lambda: pauses[overflow] >= 3, what="the overflow lane pauses, and looks, and pauses again")
        [run] = [run for run, _ in consumer._runs.values()]
        assert (await house.journal.lag(overflow, run.cursor)).events == held - 10, "one batch, and then the others"
        async with database.worker() as tx:
            await store.release(tx, elsewhere.owned, elsewhere.projected)
        await house.drained()  # the main lane first, and then the noise without any pause
        book.note(noise)
        await ledger.check(database, book)


async def test_a_noisy_tenant_alone_is_not_slowed(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = EdgePolicy(spill=SpillPolicy(floor=0.0, share=0.3, tau_s=100, hold_s=1_000))
    async with loop(database, redis, lanes=own_lanes(1), edge=policy) as house:
        noise = ledger.events(random.Random(6), [await house.shop(tenant)], 300, house.clock.now_ms())
        for start in range(0, len(noise), 10):
            await house.events.accept(noise[start : start + 10])
        main, overflow = house.lane_names()
        assert (await house.journal.lag(main, "0-0")).events == 0
        pauses = note_pauses(monkeypatch)
        await house.consumer(ConsumerPolicy(batch_events=10, batch_wait_ms=0, overflow_share=1e-6))
        await house.drained()  # one pause would take hours
        assert pauses[overflow] == 0
        book = ledger.Ledger()
        book.note(noise)
        await ledger.check(database, book)


def note_pauses(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each lane paused for others."""
    pauses: Counter[str] = Counter()
    pause = LaneRun._pause

    async def note(run: LaneRun, seconds: float) -> None:
        if seconds == STEP_S:
            pauses[run.owned.lane] += 1
        await pause(run, seconds)

    monkeypatch.setattr(LaneRun, "_pause", note)
    return pauses


async def test_the_edge_sheds_when_the_lanes_are_too_far_behind(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=1, edge=EdgePolicy(threshold=50, retry_after_s=7)) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        sent = [Impression(tenant, f"e{n}", now, now, shop.banners[0]) for n in range(60)]
        await house.events.accept(sent)
        await house.edge.look()
        with pytest.raises(Throttled) as told:
            await house.events.accept([Impression(tenant, "late", now, now, shop.banners[0])])
        assert told.value.retry_after == 7
        await house.consumer()
        await house.drained()
        await house.edge.look()
        await house.events.accept([Impression(tenant, "late", now, now, shop.banners[0])])
        await house.drained()
        book = ledger.Ledger()
        book.note([*sent, Impression(tenant, "late", now, now, shop.banners[0])])
        await ledger.check(database, book)


class Poisoned:
    """A sink whose projection PostgreSQL refuses, whenever it is asked."""

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Nothing must be there."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        """Nothing to write."""

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        raise PostgresError("a value that no folding takes", sqlstate="22003", constraint=None, statement="fold")


async def test_a_projection_that_is_refused_for_good_does_not_stop_the_lane(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        consumer = await house.consumer(QUICK, start=False)
        consumer._sinks = (Poisoned(), *consumer._sinks)
        await consumer.start()
        for number in range(3):
            now = house.clock.now_ms()
            await house.events.accept([Impression(tenant, f"e{number}", now, now, shop.banners[0])])
            await house.drained()
        assert "a value that no folding takes" in str([health.last_error for health in consumer.healths()])
