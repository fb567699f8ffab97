"""Death at every point: whatever dies, every recorded piece of work has its effect exactly once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest

from handbill.infra.postgres import Database, Tx, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.dead.service import DeadLetters
from handbill.jobs.model import JobOptions
from handbill.jobs.outbox.handover import Handover
from handbill.jobs.queue import Queue
from handbill.jobs.records import Filter, Taken
from tests.kit.audit import RecordedAudit
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.waiting import eventually, soon
from tests.store.outbox_bench import Bench, a_bench


@asynccontextmanager
async def a_process(engines: Engines, queue: str) -> AsyncIterator[Bench]:
    """Adapters of its own: a process that dies takes them along.

    PostgreSQL notices a dead client in its own time, and until then its locks stand: whoever passes over locked rows
    finds nothing. So the next step waits until the dead one's sessions are gone.
    """
    name = f"dying-{uuid.uuid4().hex}"
    urls = derive(f"{engines.postgres_url}?application_name={name}")
    database = Database(urls, app_size=2, worker_size=2, direct_size=1)
    redis = Redis(engines.redis_url, timeout=30)
    await database.start()
    await redis.start()
    try:
        yield Bench(database, redis, queue)
    finally:
        await redis.stop()
        await database.stop()
        await eventually(lambda: departed(engines, name), what="PostgreSQL has let go of the dead process")


async def departed(engines: Engines, name: str) -> bool:
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        alive = await connection.fetchval("select count(*) from pg_stat_activity where application_name = $1", name)
    finally:
        await connection.close()
    return bool(alive == 0)


@pytest.fixture
async def bench(database: Database, redis: Redis, unique: Callable[[str], str]) -> AsyncIterator[Bench]:
    async with a_bench(database, redis, unique("crash")) as bench:
        yield bench


async def work_off(bench: Bench, effects: dict[str, int]) -> None:
    """Run every waiting job as a good handler would."""
    for job in await bench.queue.list("waiting", 0, 999):
        if await bench.effect(job):
            effects[str(job.outbox_id)] = effects.get(str(job.outbox_id), 0) + 1
        await bench.finish(job, "completed")


async def test_a_relay_may_die_at_every_point(bench: Bench, engines: Engines) -> None:
    """Jobs that got out before the death run, the next relay takes up the rest, and no effect is missing or doubled."""
    recorded: list[uuid.UUID] = []

    async def attempt() -> None:
        async with a_process(engines, bench.name) as process:
            await process.relay().serve(process.name)

    async def record() -> None:
        recorded.clear()
        recorded.extend(await bench.put(1, 2) + await bench.put(None, 1))
        recorded.extend(await bench.put(2, 1, job_id=f"own:{uuid.uuid4()}"))

    async def check(number: int, name: str) -> None:
        effects: dict[str, int] = {}
        await work_off(bench, effects)
        await bench.relay().serve(bench.name)
        await work_off(bench, effects)
        await bench.ledger.read_all(bench.name)
        assert effects == {str(id): 1 for id in recorded}, f"after a death at point {number}: {name}"
        assert await bench.statuses() == {}, f"after a death at point {number}: {name}"
        await record()

    await record()
    points = await enumerate_points(attempt, check, what="a relay cycle")
    assert points >= 12


async def test_a_ledger_may_die_at_every_point(bench: Bench, engines: Engines) -> None:
    """Each failure becomes one dead letter, and each row is settled."""
    total = 0

    async def fail_some() -> None:
        nonlocal total
        await bench.put(1, 2)
        await bench.relay().serve(bench.name)
        done, *failed = await bench.queue.list("waiting")
        await bench.finish(done, "completed")
        for job in failed:
            await bench.finish(job, "failed")
            total += 1

    async def attempt() -> None:
        async with a_process(engines, bench.name) as process:
            await process.ledger.read_all(process.name)

    async def check(number: int, name: str) -> None:
        await bench.ledger.read_all(bench.name)
        await bench.ledger.reconcile(bench.name)
        letters = await bench.letters()
        assert len(letters) == total, f"after a death at point {number}: {name}"
        assert {letter.failures for letter in letters} == {1}
        assert await bench.statuses() == {}
        await fail_some()

    await fail_some()
    assert await enumerate_points(attempt, check, what="a ledger's page") >= 10


async def test_a_redrive_may_die_at_every_point(bench: Bench, engines: Engines, tenant: int) -> None:
    """The letter is dead or redriven, never in between: one job comes of it in the end."""

    async def die_once() -> None:
        await bench.put(tenant, 1, opts=JobOptions(attempts=2))
        await bench.relay().serve(bench.name)
        [job] = await bench.queue.list("waiting")
        await bench.finish(job, "failed")
        await bench.ledger.read_all(bench.name)

    async def redrive(on: Bench) -> None:
        service = DeadLetters(on.database, on.queues, on.outbox, RecordedAudit())
        await service.redrive(Filter(queue=bench.name, tenant_id=tenant), actor="test")

    async def attempt() -> None:
        async with a_process(engines, bench.name) as process:
            await redrive(process)

    async def check(number: int, name: str) -> None:
        await redrive(bench)
        await bench.relay().serve(bench.name)
        effects: dict[str, int] = {}
        await work_off(bench, effects)
        await bench.ledger.read_all(bench.name)
        assert list(effects.values()) == [1], f"after a death at point {number}: {name}"
        assert await bench.statuses() == {}
        assert await bench.letters(status="dead") == []
        await die_once()

    await die_once()
    assert await enumerate_points(attempt, check, what="a redrive") >= 10


async def test_what_a_wiped_redis_forgot_is_done_all_the_same(bench: Bench) -> None:
    """Not yet relayed, relayed and waiting, done and not yet settled: after the wipe each effect is there once."""
    effects: dict[str, int] = {}
    first = await bench.put(1, 3)
    await bench.relay().serve(bench.name)
    [done, *_] = await bench.queue.list("waiting")
    assert await bench.effect(done)  # its completion was never heard of
    effects[str(done.outbox_id)] = 1
    later = await bench.put(2, 2)
    await bench.forget()
    assert await bench.sweeper(grace_s=3600).sweep(bench.name) == 0, "young rows are left alone"
    assert await bench.sweeper().sweep(bench.name) == 2, "the one whose effect is recorded is settled instead"
    await bench.relay().serve(bench.name)
    await work_off(bench, effects)
    await bench.ledger.read_all(bench.name)
    assert effects == {str(id): 1 for id in [*first, *later]}
    assert await bench.statuses() == {}


async def test_the_sweeper_leaves_waiting_jobs_and_settles_finished_ones(bench: Bench) -> None:
    await bench.put(1, 4)
    await bench.relay().serve(bench.name)
    _waiting, completed, failed, removed = await bench.queue.list("waiting")
    await bench.finish(completed, "completed")
    await bench.finish(failed, "failed")
    await bench.queue.remove(removed.id)
    await bench.redis.call("XTRIM", bench.queue.keys["events"], "MAXLEN", 1)  # only the removal is still told
    assert await bench.sweeper().sweep(bench.name) == 0
    assert await bench.statuses() == {"relayed": 1}
    assert [letter.job_id for letter in await bench.letters()] == [failed.id]


async def test_a_job_that_ends_before_its_relay_has_committed_is_settled(bench: Bench) -> None:
    """The ledger meets a row that a relay still holds: it waits, and settles what it then finds."""
    for own in (None, "own:1"):
        await bench.put(1, 1, job_id=own)
        entered, ended = asyncio.Event(), asyncio.Event()

        class Slow(Handover):
            """Lets the job run to its end before the relay commits."""

            async def __call__(self, tx: Tx, queue: Queue, taken: Sequence[Taken], *, first: bool = False) -> None:
                await super().__call__(tx, queue, taken, first=first)
                entered.set()  # noqa: B023 - each round waits for its own
                await ended.wait()  # noqa: B023 - as above

        relay = bench.relay()
        relay._handover = Slow()
        relaying = asyncio.create_task(relay.serve(bench.name))
        await soon(entered.wait())
        [job] = await bench.queue.list("waiting")
        await bench.finish(job, "completed")
        reading = asyncio.create_task(bench.ledger.read_all(bench.name))
        await eventually(lambda: _waits_for_a_lock(bench))
        ended.set()
        await soon(asyncio.gather(relaying, reading))
        assert await bench.statuses() == {}


async def _waits_for_a_lock(bench: Bench) -> bool:
    sql = Sql("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
    async with bench.database.worker() as tx:
        return bool(await tx.fetchval(sql))
