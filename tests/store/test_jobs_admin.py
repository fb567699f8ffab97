"""The room's face for tenants and operators: walls around jobs, one job changed, a queue drained."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.dead.service import DeadLetters
from handbill.jobs.model import JobOptions
from handbill.jobs.service import JobsService
from handbill.kit.errors import Conflict, Invalid, NotFound
from tests.kit.audit import RecordedAudit
from tests.store.outbox_bench import Bench, a_bench

MakeTenant = Callable[..., Awaitable[int]]


@pytest.fixture
async def bench(database: Database, redis: Redis, unique: Callable[[str], str]) -> AsyncIterator[Bench]:
    async with a_bench(database, redis, unique("admin")) as bench:
        yield bench


@pytest.fixture
def book() -> RecordedAudit:
    return RecordedAudit()


@pytest.fixture
def service(bench: Bench, book: RecordedAudit) -> JobsService:
    return JobsService(bench.database, bench.redis, audit=book)


async def test_a_tenant_sees_its_own_jobs_in_every_state_and_no_others(
    bench: Bench, service: JobsService, tenant: int, make_tenant: MakeTenant
) -> None:
    other = await make_tenant()
    for owner in (tenant, other):
        await bench.put(owner, 4)
    await bench.relay(slots=2).serve(bench.name)
    for owner in (tenant, other):
        for state in ("pending", "waiting"):
            page = await service.list_jobs(bench.name, state, owner, None, 50)
            assert [(job.tenant_id, job.state) for job in page.items] == [(owner, state)] * 2
    assert len((await service.list_jobs(bench.name, "waiting", None, None, 50)).items) == 4
    [mine] = (await service.list_jobs(bench.name, "waiting", tenant, None, 1)).items
    [recorded] = (await service.list_jobs(bench.name, "pending", tenant, None, 1)).items
    for job in (mine, recorded):
        assert (await service.job(bench.name, job.id, tenant)).data["t"] == tenant
        with pytest.raises(NotFound):
            await service.job(bench.name, job.id, other)
        with pytest.raises(NotFound):
            await service.remove(bench.name, job.id, other, actor="test")
        with pytest.raises(NotFound):
            await service.retry(bench.name, job.id, other, actor="test")
    found = {one.queue: one.pending for one in await service.tenant_overview(tenant)}
    assert found == {bench.name: 2}


async def test_pages_walk_through_every_job_once(bench: Bench, service: JobsService, tenant: int) -> None:
    await bench.put(tenant, 7)
    await bench.put(None, 3)
    await bench.relay(slots=3).serve(bench.name)
    seen: list[str] = []
    for state in ("pending", "waiting"):
        cursor = None
        while True:
            page = await service.list_jobs(bench.name, state, tenant, cursor, 2)
            seen += [job.id for job in page.items]
            cursor = page.next
            if cursor is None:
                break
    assert len(seen) == len(set(seen)) == 7
    with pytest.raises(Invalid):
        await service.list_jobs(bench.name, "nowhere", tenant, None, 2)
    with pytest.raises(Invalid):
        await service.list_jobs(bench.name, "pending", tenant, "not-a-cursor", 2)


async def test_one_job_is_retried_promoted_removed_and_the_audit_tells(
    bench: Bench, service: JobsService, book: RecordedAudit, tenant: int
) -> None:
    await bench.put(tenant, 1)
    await bench.put(tenant, 1, job_id="x:1")
    await bench.relay().serve(bench.name)
    first, second = await bench.queue.list("waiting")
    await bench.finish(first, "failed")
    assert (await service.retry(bench.name, first.id, tenant, actor="ada")).state in ("waiting", "wait")
    with pytest.raises(Conflict):
        await service.promote(bench.name, second.id, tenant, actor="ada")
    await service.remove(bench.name, "x:1", tenant, actor="ada")
    await bench.put(tenant, 1, job_id="x:2")
    await service.remove(bench.name, "x:2", tenant, actor="ada")
    assert book.rows[0] == (tenant, "ada", "job.retry")
    assert book.rows[-2:] == [(tenant, "ada", "job.remove")] * 2
    await bench.ledger.read_all(bench.name)
    assert await bench.statuses() == {"relayed": 1}


async def test_a_drained_queue_stays_drained(bench: Bench, service: JobsService) -> None:
    await bench.put(1, 6)
    await bench.put(None, 2, opts=JobOptions(priority=3))
    await bench.relay(slots=2).serve(bench.name)
    assert await service.drain(bench.name) == 8
    assert await bench.statuses() == {}
    assert await bench.sweeper().sweep(bench.name) == 0
    counts = await bench.queue.counts()
    assert counts.pending == 0


async def test_pause_and_overview(bench: Bench, service: JobsService) -> None:
    await service.pause(bench.name)
    await bench.put(1, 3)
    await bench.relay(slots=1).serve(bench.name)
    [view] = [one for one in await service.overview() if one.queue == bench.name]
    assert (view.pending, view.jobs.waiting, view.jobs.paused) == (1, 2, True)
    await service.resume(bench.name)
    [view] = [one for one in await service.overview() if one.queue == bench.name]
    assert (view.jobs.waiting, view.jobs.paused) == (2, False)


async def test_changes_without_an_audit_log_are_not_possible(bench: Bench) -> None:
    with pytest.raises(TypeError, match="audit"):
        JobsService(bench.database, bench.redis)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="audit"):
        DeadLetters(bench.database, bench.queues, bench.outbox)  # type: ignore[call-arg]
