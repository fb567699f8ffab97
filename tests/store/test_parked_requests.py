"""Replays and drops of parked events as jobs: they take turns, wait for what is away, end once, and are limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from handbill.events.dead import CAREFUL, circuit_of
from handbill.events.model import Impression, encode
from handbill.events.parked_model import Reshipped
from handbill.events.parked_requests import (
    ABANDONED_AFTER,
    AGAIN_S,
    GIVE_UP_AFTER,
    JOB_NAMES,
    KEPT_FOR,
    MAX_OPEN,
    ParkedRequests,
)
from handbill.events.reasons import Reason
from handbill.events.service import Chosen, ReplayOptions
from handbill.events.tasks import ParkedTasks
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.breaker import Breaker, BreakerPolicy
from handbill.jobs.model import Job, RetryLater, Unrecoverable
from handbill.jobs.queue import Queues
from handbill.jobs.service import Outbox
from handbill.kit.errors import Invalid, NotFound, Throttled
from handbill.kit.ids import Ids
from handbill.tenants.service import QUEUE
from tests.conftest import MakeTenant, OwnEngine
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop
from tests.kit.parked_events import ROWS, WAITING, count, park, park_good, parked
from tests.kit.parked_requests import PARK, SENT_ONCE, STOP, CountingEdge, ended, portions_of
from tests.kit.waiting import eventually
from tests.kit.working import working
from tests.store.tenants_room import actions

JOBS = Sql("select count(*) from jobs.outbox_events where tenant_id = $1 and queue = 'requests'", "test_jobs")


async def test_a_run_gives_its_slot_back_and_the_next_goes_on_where_it_stopped(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions_of(monkeypatch, 2)
    monkeypatch.setattr("handbill.events.parked_requests.TURN_S", 0.0)
    async with parked(database, redis, tenant, 5) as (house, _):
        requests = house.events.parked_requests
        replay = await requests.replay(tenant, Chosen(tenant, "REJECTED"), PARK, actor="ada")
        assert (replay.status, replay.total, replay.report) == ("queued", None, {"matched": 0, "sent": 0, **SENT_ONCE})
        seen = []
        while (await requests.run(tenant, replay.parked_request_id)).again_ms:
            request = await requests.get(tenant, replay.parked_request_id)
            seen.append((request.status, request.report["sent"], request.total))
            await house.drained()  # what is still bad is parked again
        assert seen == [("running", 2, 5), ("running", 4, 5), ("running", 5, 5)], "and ends before what it parked again"
        assert await count(database, WAITING, tenant) == 5
        drop = await requests.drop(tenant, Chosen(tenant, "REJECTED"), actor="ada")
        assert (await requests.run(tenant, drop.parked_request_id)).status == "running"
        assert await count(database, WAITING, tenant) == 3, "the first portion is committed"
        await park_good(house, tenant, 1, "late")
        assert (await ended(requests, tenant, drop.parked_request_id)).report == {"dropped": 5}
        assert await count(database, WAITING, tenant) == 1, "what was parked after its start stays"
        log = [action for action in await actions(house.tenants, tenant) if action.startswith("parked.")]
        assert log == ["parked.drop.done", "parked.drop.open", "parked.replay.done", "parked.replay.open"]


async def test_long_replays_of_one_tenant_do_not_hold_the_only_slot_against_another(
    database: Database,
    redis: Redis,
    make_tenant: MakeTenant,
    monkeypatch: pytest.MonkeyPatch,
    unique: Callable[[str], str],
) -> None:
    portions_of(monkeypatch, 1)
    monkeypatch.setattr("handbill.events.parked_requests.TURN_S", 0.0)
    busy, small = await make_tenant(), await make_tenant()
    async with loop(database, redis, main=1) as house:
        await park_good(house, busy, 6)
        await park_good(house, small, 1)
        requests, queue = house.events.parked_requests, Queues(redis).queue(unique("requests"))
        dry, ends, turns = ReplayOptions(dry_run=True), list[int](), list[int]()
        for tenant in (busy, busy, busy, small):
            made = await requests.replay(tenant, Chosen(tenant), dry, actor="ada")
            await queue.add("replay-parked", {"request_id": str(made.parked_request_id)}, tenant_id=tenant)
        tasks = ParkedTasks(requests)

        async def run(job: Job, ctx: Any) -> str:
            turns.append(job.tenant_id or 0)
            status = await tasks.run(job, ctx)
            ends.append(job.tenant_id or 0)
            return status

        async with working(queue, run, concurrency=1):
            await eventually(lambda: len(ends) == 4, what="all four have ended")
    assert ends == [small, busy, busy, busy]
    assert Counter(turns) == {busy: 3 * 7, small: 2}, "a turn for each portion, and one that finds no more"


async def test_a_dry_run_only_counts_and_leaves_no_line_in_the_audit_log(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions_of(monkeypatch, 2)
    async with loop(database, redis, main=1) as house:
        await park_good(house, tenant, 5)
        before = await actions(house.tenants, tenant)
        requests = house.events.parked_requests
        made = await requests.replay(tenant, Chosen(tenant), ReplayOptions(dry_run=True), actor="ada")
        done = await ended(requests, tenant, made.parked_request_id)
        assert (done.dry_run, done.status, done.report) == (True, "done", {"matched": 5, "sent": 0, **SENT_ONCE})
        assert await count(database, WAITING, tenant) == 5
        assert await actions(house.tenants, tenant) == before


async def test_a_replay_waits_while_redis_is_away(
    database: Database, own_redis: OwnEngine, short_tmp: Path, tenant: int
) -> None:
    home = short_tmp / "redis" / "parked"
    engine: Any = await own_redis(at=home)
    port = int(engine.url.rpartition(":")[2].partition("/")[0])
    redis = Redis(engine.url)
    await redis.start()
    try:
        async with loop(database, redis, main=1) as house:
            await park_good(house, tenant, 3)
            requests = house.events.parked_requests
            await engine.stop()
            made = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
            turn = await requests.run(tenant, made.parked_request_id)
            assert (turn.status, turn.again_ms) == ("running", AGAIN_S * 1000)
            waiting = await requests.get(tenant, made.parked_request_id)
            assert (waiting.status, waiting.error, waiting.finished_at) == ("running", "JOURNAL_AWAY", None)
            assert await count(database, WAITING, tenant) == 3
            await own_redis(at=home, port=port)

            async def is_done() -> bool:
                return (await requests.run(tenant, made.parked_request_id)).status == "done"

            await eventually(is_done, what="the replay has ended")
            done = await requests.get(tenant, made.parked_request_id)
            assert (done.error, done.report["sent"]) == (None, 3)
            await house.consumer()
            await house.drained()
            assert await count(database, ROWS, tenant) == 3
    finally:
        await redis.stop()


async def test_a_replay_waits_while_its_circuit_is_open_and_another_tenants_does_not(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    async with loop(database, redis, main=1) as house:
        await park_good(house, tenant, 2)
        await park_good(house, other, 2)
        breaker = Breaker(redis, BreakerPolicy(failures=1, open_s=300), house.keys)
        house.events.dead._breaker = breaker
        await breaker.failed(circuit_of(tenant))
        requests = house.events.parked_requests
        made = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        theirs = await requests.replay(other, Chosen(other), PARK, actor="bob")
        turn = await requests.run(tenant, made.parked_request_id)
        assert turn.status == "running"
        assert AGAIN_S * 1000 < turn.again_ms <= 300_000, "as long as the circuit says"
        assert (await requests.get(tenant, made.parked_request_id)).error == "CIRCUIT_OPEN"
        assert (await ended(requests, other, theirs.parked_request_id)).report["sent"] == 2
        await breaker.succeeded(circuit_of(tenant))
        assert (await ended(requests, tenant, made.parked_request_id)).report == {"matched": 2, "sent": 2, **SENT_ONCE}


async def test_a_replay_waits_for_clickhouse_and_sends_nothing_twice_meanwhile(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        await park_good(house, tenant, 2)
        lacking = [Impression(tenant, "lacking", 1, 1, 1)]
        await park(database, lacking, Reason.UNSHIPPED)
        edge, dead = CountingEdge(database), house.events.dead
        dead._edge = edge  # type: ignore[assignment]
        is_away = True

        async def reship(ids: Sequence[UUID]) -> Reshipped:
            if is_away:
                return Reshipped(0, 0, waits=True)
            async with database.worker() as tx:
                await dead._reader.mark_replayed(tx, ids)
            return Reshipped(len(ids), 0)

        dead.reship = reship
        requests = house.events.parked_requests
        made = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        for _ in range(2):
            assert (await requests.run(tenant, made.parked_request_id)).status == "running"
            assert (await requests.get(tenant, made.parked_request_id)).error == "CLICKHOUSE_BUSY"
            assert await count(database, WAITING, tenant) == 1, "the others did not wait for it"
        is_away = False
        done = await ended(requests, tenant, made.parked_request_id)
        assert (done.status, done.error) == ("done", None)
        assert done.report == {**SENT_ONCE, "matched": 3, "sent": 2, "shipped": 1}
        assert sorted(edge.accepted) == ["e0", "e1"], "each once"


async def test_a_request_that_waits_for_a_day_without_progress_has_failed(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        await park_good(house, tenant, 1)
        house.events.dead._breaker = breaker = Breaker(redis, BreakerPolicy(failures=1, open_s=300), house.keys)
        await breaker.failed(circuit_of(tenant))
        clock = FakeClock()
        requests = on_clock(house, clock)
        made = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        tasks = ParkedTasks(requests)
        clock.advance(seconds=GIVE_UP_AFTER.total_seconds())
        with pytest.raises(RetryLater):  # the time in the queue is no waiting for an engine
            await tasks.run(job(tenant, made.parked_request_id), None)
        clock.advance(seconds=GIVE_UP_AFTER.total_seconds())
        assert await tasks.run(job(tenant, made.parked_request_id), None) == "failed"
        failed = await requests.get(tenant, made.parked_request_id)
        assert (failed.status, failed.error, failed.report["sent"]) == ("failed", "CIRCUIT_OPEN", 0)
        assert await tasks.run(job(tenant, made.parked_request_id), None) == "failed", (
            "delivered again, it changes nothing"
        )
        assert (await actions(house.tenants, tenant)).count("parked.replay.failed") == 1


def on_clock(house: Loop, clock: FakeClock) -> ParkedRequests:
    return ParkedRequests(
        house.database, Outbox(house.redis), house.tenants.audit, house.events.dead, clock, Ids(clock)
    )  # fmt: skip


def job(tenant_id: int | None, request_id: UUID | str) -> Job:
    opts = {} if tenant_id is None else {"tenant": tenant_id}
    data = {"request_id": str(request_id)}
    return Job(id="1", wire_id="1", queue=QUEUE, name="replay-parked", data=data, opts=opts)


async def test_a_job_that_failed_for_good_or_was_lost_ends_its_request_and_old_ends_are_removed(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        clock = FakeClock()
        requests = on_clock(house, clock)
        tasks = ParkedTasks(requests)
        assert set(tasks.handlers()) == set(JOB_NAMES.values())
        failing = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        await tasks.failed(job(tenant, failing.parked_request_id), "stalled", "")
        failed = await requests.get(tenant, failing.parked_request_id)
        assert (failed.status, failed.error) == ("failed", "JOB_FAILED")
        lost = await requests.drop(tenant, Chosen(tenant, "REJECTED"), actor="ada")
        clock.advance(seconds=(ABANDONED_AFTER + timedelta(minutes=1)).total_seconds())
        recent = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        await requests.prune(clock.now())
        assert (await requests.get(tenant, lost.parked_request_id)).error == "JOB_FAILED"
        assert (await requests.get(tenant, recent.parked_request_id)).status == "queued"
        assert (await actions(house.tenants, tenant)).count("parked.drop.failed") == 1
        clock.advance(seconds=(KEPT_FOR - timedelta(minutes=1)).total_seconds())
        await ended(requests, tenant, recent.parked_request_id)
        assert await requests.prune(clock.now()) >= 1
        with pytest.raises(NotFound):
            await requests.get(tenant, failing.parked_request_id)
        for kept in (lost, recent):
            assert await requests.get(tenant, kept.parked_request_id) is not None
        for broken in (job(None, lost.parked_request_id), job(tenant, "no id")):
            with pytest.raises(Unrecoverable):
                await tasks.run(broken, None)


async def test_open_requests_of_a_tenant_are_limited_and_their_job_is_in_the_same_transaction(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    async with loop(database, redis, main=1) as house:
        requests = house.events.parked_requests
        for _ in range(MAX_OPEN):
            latest = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        for refused in (
            requests.replay(tenant, Chosen(tenant), PARK, actor="ada"),
            requests.drop(tenant, Chosen(tenant, "REJECTED"), actor="ada"),
        ):
            with pytest.raises(Throttled) as full:
                await refused
            assert full.value.code == "TOO_MANY_PARKED_REQUESTS"
        assert await count(database, JOBS, tenant) == MAX_OPEN
        assert (await requests.drop(other, Chosen(other, "REJECTED"), actor="bob")).status == "queued"
        await ended(requests, tenant, latest.parked_request_id)
        assert (await requests.drop(tenant, Chosen(tenant, "REJECTED"), actor="ada")).status == "queued"
        with pytest.raises(Invalid, match="Say which"):
            await requests.drop(tenant, Chosen(tenant), actor="ada")


async def test_another_tenant_neither_sees_nor_runs_a_request_and_keeps_its_own_parked_events(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    async with loop(database, redis, main=1) as house:
        await park_good(house, tenant, 2)
        await park_good(house, other, 2)
        requests = house.events.parked_requests
        made = await requests.drop(tenant, Chosen(tenant, "REJECTED"), actor="ada")
        for whose, request_id in ((other, made.parked_request_id), (tenant, uuid4())):
            with pytest.raises(NotFound) as missing:
                await requests.get(whose, request_id)
            assert missing.value.code == "PARKED_REQUEST_NOT_FOUND"
            with pytest.raises(NotFound):
                await requests.run(whose, request_id)
        await requests.fail(other, made.parked_request_id)
        assert (await requests.get(tenant, made.parked_request_id)).status == "queued"
        async with database.tenant(other) as tx:  # row-level security, whatever a statement says
            assert await tx.fetchval(Sql("select count(*) from events.parked_requests", "t", "t", "a test")) == 0
        assert (await ended(requests, tenant, made.parked_request_id)).report == {"dropped": 2}
        assert await count(database, WAITING, other) == 2


async def test_a_stop_is_careful_and_says_where_it_stopped(database: Database, redis: Redis, tenant: int) -> None:
    async with parked(database, redis, tenant, CAREFUL + 5) as (house, gate):
        requests = house.events.parked_requests
        made = await requests.replay(tenant, Chosen(tenant), STOP, actor="ada")
        done = await ended(requests, tenant, made.parked_request_id)
        assert (done.report["sent"], done.report["failed"], done.report["stopped"]) == (CAREFUL, CAREFUL, True)
        gate.shut = False
        made = await requests.replay(tenant, Chosen(tenant), STOP, actor="ada")
        done = await ended(requests, tenant, made.parked_request_id)
        assert (done.total, done.report["sent"], done.report["stopped"]) == (CAREFUL + 5, CAREFUL + 5, False)
        assert await count(database, ROWS, tenant) == (CAREFUL + 5) * 3


async def test_a_portion_of_large_events_is_bounded_in_bytes(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [Impression(tenant, f"e{n}", 1, 1, 1, page="x" * 100) for n in range(4)]
    # Two of them are below the limit and three above it, whatever number the tenant has: its bytes are in each.
    monkeypatch.setattr("handbill.events.parked_requests.PORTION_BYTES", 2 * len(encode(events[0])) + 1)
    async with loop(database, redis, main=1) as house:
        dead, requests = house.events.dead, house.events.parked_requests
        dead._edge = CountingEdge(database)  # type: ignore[assignment]
        await park(database, events)
        await park(database, [Impression(tenant, "large", 1, 1, 1, page="x" * 1_000)])
        replay_portion, portions = dead.replay_portion, []

        async def observed(tenant_id: int, rows: Sequence[Any], *args: Any, **how: Any) -> Any:
            portions.append(len(rows))
            return await replay_portion(tenant_id, rows, *args, **how)

        monkeypatch.setattr(dead, "replay_portion", observed)
        made = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        done = await ended(requests, tenant, made.parked_request_id)
        assert (done.report["sent"], portions) == (5, [3, 2])
