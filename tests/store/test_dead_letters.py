"""Dead letters: whoever failed the job, it is written once, with a way back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.dead.service import DeadLetters
from handbill.jobs.model import JobOptions
from handbill.jobs.records import Filter
from handbill.kit.errors import NotFound
from tests.kit.audit import RecordedAudit
from tests.store.outbox_bench import Bench, a_bench


@pytest.fixture
async def bench(database: Database, redis: Redis, unique: Callable[[str], str]) -> AsyncIterator[Bench]:
    async with a_bench(database, redis, unique("dead")) as bench:
        yield bench


@pytest.fixture
def dead(bench: Bench) -> DeadLetters:
    return DeadLetters(bench.database, bench.queues, bench.outbox, RecordedAudit())


async def fail_all(bench: Bench, reason: str = "it broke") -> None:
    await bench.relay().serve(bench.name)
    for job in await bench.queue.list("waiting", 0, 999):
        await bench.finish(job, "failed", reason)
    await bench.ledger.read_all(bench.name)


async def test_a_failure_is_written_once_with_all_there_is_to_know(bench: Bench, tenant: int) -> None:
    [outbox_id] = await bench.put(tenant, 1, opts=JobOptions(attempts=3, priority=0))
    await fail_all(bench, "no such number")
    await bench.ledger.read_all(bench.name)
    await bench.ledger.reconcile(bench.name)
    [letter] = await bench.letters()
    assert (letter.tenant_id, letter.job_id, letter.name) == (tenant, str(outbox_id), "work")
    assert (letter.reason, letter.attempts, letter.failures) == ("no such number", 3, 1)
    assert letter.effect_id == outbox_id
    assert await bench.statuses() == {}, "the outbox row is settled with the letter"


async def test_a_failure_whose_event_was_trimmed_is_found_in_the_failed_set(bench: Bench) -> None:
    await bench.queue.add("foreign", {"x": 1}, opts=JobOptions(job_id="a:1"))
    [job] = await bench.queue.list("waiting")
    await bench.finish(job, "failed", "stalled")
    await bench.redis.call("DEL", bench.queue.keys["events"])
    await bench.ledger.read_all(bench.name)
    assert await bench.letters() == []
    assert await bench.ledger.reconcile(bench.name) == 1
    assert await bench.ledger.reconcile(bench.name) == 0
    [letter] = await bench.letters()
    assert (letter.job_id, letter.reason, letter.source, letter.data) == (
        "a:1",
        "stalled",
        "reconciled",
        {"x": 1},
    )


async def test_of_a_job_that_is_already_gone_the_outbox_still_has_the_data(bench: Bench) -> None:
    await bench.put(3, 1)
    await bench.relay().serve(bench.name)
    [job] = await bench.queue.list("waiting")
    await bench.finish(job, "failed", "gone at once")
    await bench.redis.many(
        [("DEL", bench.queue.keys.job(job.wire_id)), ("ZREM", bench.queue.keys["failed"], job.wire_id)]
    )
    await bench.ledger.read_all(bench.name)
    [letter] = await bench.letters()
    assert (letter.tenant_id, letter.reason, letter.data) == (3, "gone at once", {"n": 0, "t": 3})


async def test_odd_bytes_of_another_program_do_not_stop_the_neighbours(bench: Bench) -> None:
    await bench.queue.add("foreign", {"bad": "a\x00b", "k\x00": 1}, opts=JobOptions(job_id="odd"))
    await bench.queue.add("foreign", {"good": True}, opts=JobOptions(job_id="good"))
    await bench.queue.add("foreign", {}, opts=JobOptions(job_id="wild"), tenant_id=2**40)
    await bench.redis.call("HSET", bench.queue.keys.job("wild"), "timestamp", "1e300", "attemptsMade", "1e12")
    for job in await bench.queue.list("waiting"):
        await bench.finish(job, "failed", "nul \x00 inside")
    await bench.ledger.read_all(bench.name)
    letters = {letter.job_id: letter for letter in await bench.letters()}
    assert set(letters) == {"odd", "good", "wild"}
    assert letters["odd"].reason == "nul  inside"
    assert letters["wild"].tenant_id is None


async def test_a_job_that_somebody_retried_meanwhile_is_not_dead(bench: Bench) -> None:
    await bench.put(1, 1)
    await bench.relay().serve(bench.name)
    [job] = await bench.queue.list("waiting")
    await bench.finish(job, "failed")
    await bench.queue.retry(job.id)
    await bench.ledger.read_all(bench.name)
    assert await bench.letters() == []
    assert await bench.statuses() == {"relayed": 1}


async def test_a_letter_whose_job_was_retried_elsewhere_and_succeeded_is_closed(bench: Bench) -> None:
    await bench.put(1, 1)
    await fail_all(bench)
    [letter] = await bench.letters(status="dead")
    await bench.queue.retry(letter.job_id)
    [job] = await bench.queue.list("waiting")
    await bench.finish(job, "completed")
    await bench.ledger.read_all(bench.name)
    assert [one.status for one in await bench.letters()] == ["redriven"]


async def test_redrive_by_filter_counts_first_and_keeps_the_effects_identity(
    bench: Bench, dead: DeadLetters, tenant: int
) -> None:
    ids = await bench.put(tenant, 3)
    await fail_all(bench, "network down")
    await bench.put(tenant, 1)
    await fail_all(bench, "bad data")
    wanted = Filter(tenant_id=tenant, queue=bench.name, reason="network")
    assert await dead.count(wanted) == 3
    assert await dead.redrive(wanted, actor="test") == 3
    assert await dead.redrive(wanted, actor="test") == 0, "once is enough"
    await bench.relay().serve(bench.name)
    jobs = await bench.queue.list("waiting")
    assert {job.outbox_id for job in jobs} == {str(id) for id in ids}
    for job in jobs:
        assert await bench.effect(job)
        await bench.finish(job, "completed")
    await bench.ledger.read_all(bench.name)
    assert await bench.statuses() == {}
    assert [letter.reason for letter in await bench.letters(status="dead")] == ["bad data"]


async def test_a_redriven_job_that_fails_again_is_the_same_letter_once_more(
    bench: Bench, dead: DeadLetters, tenant: int
) -> None:
    await bench.put(tenant, 1)
    await fail_all(bench)
    [first] = await bench.letters()
    await dead.redrive(Filter(tenant_id=tenant, ids=(first.id,)), actor="test")
    await fail_all(bench, "and again")
    [second] = await bench.letters()
    assert (second.id, second.status, second.failures, second.redrives, second.reason) == (
        first.id,
        "dead",
        2,
        1,
        "and again",
    )


async def test_a_purged_letter_does_not_come_back(bench: Bench, dead: DeadLetters, tenant: int) -> None:
    await bench.put(tenant, 3)
    await fail_all(bench)
    assert await dead.purge(Filter(tenant_id=tenant, queue=bench.name), actor="test") == 3
    await bench.ledger.read_all(bench.name)
    await bench.ledger.reconcile(bench.name)
    assert await bench.letters() == []


async def test_nobody_reads_redrives_or_purges_anothers_letters(
    bench: Bench, dead: DeadLetters, tenant: int, make_tenant: Callable[..., object]
) -> None:
    other: int = await make_tenant()  # type: ignore[misc]
    await bench.put(tenant, 1)
    await bench.put(None, 1)
    await fail_all(bench)
    mine = next(letter for letter in await bench.letters() if letter.tenant_id == tenant)
    wanted = Filter(tenant_id=other, queue=bench.name)
    assert (await dead.page(wanted, None, 10)).items == []
    assert await dead.redrive(wanted, actor="test") == 0
    assert await dead.purge(wanted, actor="test") == 0
    with pytest.raises(NotFound):
        await dead.get(mine.id, other)
    assert (await dead.get(mine.id, tenant)).id == mine.id
    assert [one.id for one in (await dead.page(Filter(tenant_id=tenant, queue=bench.name), None, 10)).items] == [
        mine.id
    ]


async def test_pages_walk_through_all_letters_once(bench: Bench, dead: DeadLetters) -> None:
    await bench.put(None, 7)
    await fail_all(bench)
    seen, cursor = [], None
    while True:
        page = await dead.page(Filter(queue=bench.name), cursor, 3)
        seen += [letter.id for letter in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 7
    assert seen == sorted(seen, reverse=True)
