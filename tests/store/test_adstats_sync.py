"""Jobs: what is due is put into the queue once, runs, and says so; one seller's or account's trouble stays its own."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from handbill.adstats.model import QUEUE, ConnectionPatch, EntityPatch, NewConnection, NewEntity, SyncJob
from handbill.adstats.providers.mock import Manners, MockProvider
from handbill.adstats.providers.port import ProviderError, Question
from handbill.adstats.reading import StatsQuery
from handbill.adstats.service import AdstatsService
from handbill.adstats.tasks import AdstatsTasks
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.model import Backoff, JobOptions
from handbill.jobs.queue import Queue
from handbill.kit.errors import Conflict, Invalid
from handbill.kit.telemetry import logs
from tests.kit.adstats import FakeClock, a_shop, service, state, synced
from tests.kit.waiting import eventually
from tests.kit.working import reaches, working

DAY = date(2026, 3, 1)
NEXT = DAY + timedelta(days=1)
MakeTenant = Callable[..., Awaitable[int]]
DAILY = Sql("select count(*)::int from adstats.ad_stats_daily where tenant_id = $1", "test_daily")


@contextlib.contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """The lines as an operator reads them, whatever an earlier test has done to the set-up."""
    stream, lines = io.StringIO(), list[dict[str, Any]]()
    logs.configure("info", stream=stream)
    try:
        yield lines
    finally:
        logs.configure("info")
        lines += [json.loads(line) for line in stream.getvalue().splitlines()]


def a_queue(adstats: AdstatsService) -> Queue:
    return adstats.dispatch._queues.queue(QUEUE)


async def idle(queue: Queue) -> bool:
    counts = await queue.counts()
    return counts.pending + counts.active == 0


async def days_of(database: Database, tenant: int) -> int:
    async with database.worker() as tx:
        return int(await tx.fetchval(DAILY, tenant))


async def test_a_tick_enqueues_what_is_due_once_and_the_jobs_do_it(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, await make_tenant(), accounts=2)
    queue = a_queue(adstats)
    first = await adstats.dispatch.tick(shop.tenant)
    span = f"{shop.seller}:2026-02-26:2026-03-01"
    assert first.jobIds == [f"sync:{span}:{level}" for level in ("AD", "ADSET", "CAMPAIGN")]
    assert first.enqueued == 3
    again = await adstats.dispatch.tick(shop.tenant)
    assert (again.enqueued, {job.state for job in again.jobs}) == (0, {"already_running"})
    with logged() as lines:
        async with working(queue, AdstatsTasks(adstats, clock).handlers()):
            await eventually(lambda: idle(queue), what="the jobs are done")
    done = [line for line in lines if line["event"] == "stats-sync-complete"]
    assert {line["jobId"] for line in done} == set(first.jobIds)
    wanted = {
        "jobId", "sellerId", "statLevel", "date", "rawInserted", "dailyUpserted", "sellpageUpserted", "durationMs",
    }  # fmt: skip
    assert all(wanted <= set(line) for line in done)
    assert await days_of(database, shop.tenant) == 4 * len(shop.entities)
    # nothing is due now; in five minutes today is, in an hour yesterday too, tomorrow everything
    assert (await adstats.dispatch.tick(shop.tenant)).jobs == []
    for wait, days in ((5, 1), (55, 2), (1440, 4)):
        clock.advance(minutes=wait)
        told = await adstats.dispatch.tick(shop.tenant)
        job = (await queue.get(told.jobIds[0])).data  # type: ignore[union-attr]
        assert (date.fromisoformat(job["dateTo"]) - date.fromisoformat(job["dateFrom"])).days == days - 1
        assert told.enqueued == 3
        async with working(queue, AdstatsTasks(adstats, clock).handlers()):
            await eventually(lambda: idle(queue), what="the jobs are done")


async def test_who_is_eligible(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),))
    campaign = shop.entities[0].entity_id

    async def due() -> int:
        clock.advance(minutes=5)
        return len((await adstats.dispatch.tick(tenant)).jobs)

    async def become(**fields: Any) -> None:
        await adstats.editor.change_entity(tenant, campaign, EntityPatch(**fields), version=None, actor="test")

    assert await due() == 3
    await become(status="PAUSED")
    assert await due() == 3
    await synced(adstats, shop, DAY)
    await become(status="ARCHIVED")
    assert await due() == 3  # it had spend inside the look-back
    clock.advance(days=4)
    assert await due() == 0
    await become(status="ACTIVE")
    switch = ConnectionPatch(is_active=False)
    await adstats.connections.change(tenant, shop.accounts[0], switch, version=None, actor="test")
    assert await due() == 0


class Moody(MockProvider):
    """Fails for chosen accounts, so often."""

    def __init__(self, clock: FakeClock, failures: dict[str, int], manners: Manners | None = None) -> None:
        super().__init__(clock, manners)
        self.failures = failures
        self.asked: list[str] = []

    async def fetch_stats(self, question: Question) -> list[Any]:
        account = question.account.external_id
        self.asked.append(account)
        if self.failures.get(account, 0):
            self.failures[account] -= 1
            raise ProviderError("the platform answered 500 (code 2, 0)")
        return await super().fetch_stats(question)


async def test_retries_are_the_jobs_own_and_the_fourth_failure_is_the_last(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    clock = FakeClock()
    moody = Moody(clock, {"1000": 99})
    adstats = service(database, redis, clock, providers={"MOCK": moody, "META": moody})
    shop, neighbour = [await a_shop(adstats, database, await make_tenant(), tree=((),)) for _ in range(2)]
    extra = await adstats.connections.create(shop.tenant, NewConnection("MOCK", "7777", "Other", "USD"), actor="test")
    await adstats.editor.create_entity(
        shop.tenant, NewEntity("CAMPAIGN", "Sane", extra.connection_id, budget=Decimal(10)), actor="test"
    )
    moody.failures = {"1000": 99}
    queue = a_queue(adstats)
    at_once = JobOptions(backoff=Backoff("fixed", delay_ms=0))
    past = DAY - timedelta(days=1)  # days that do not reach today are read whole by every attempt
    job = shop.job(past, past, "CAMPAIGN")
    with logged() as lines:
        async with working(queue, AdstatsTasks(adstats, clock).handlers()):
            added = await queue.add("stats-sync", job, opts=at_once, tenant_id=shop.tenant)
            await reaches(queue, added.id, "failed")
    failed = [line for line in lines if line["event"] == "stats-sync-failed"]
    assert [line["attempt"] for line in failed] == [1, 2, 3, 4]
    assert {line["error"] for line in failed} == {"the platform answered 500 (code 2, 0)"}
    assert set(failed[0]) >= {"jobId", "sellerId", "attempt", "error"}
    states = {one.connection_id: one for one in await adstats.connections.sync_states(shop.tenant)}
    assert states[shop.accounts[0]].error == "the platform answered 500 (code 2, 0)"
    assert (states[extra.connection_id].error, states[extra.connection_id].syncs) == (
        None,
        4,
    )
    moody.failures = {}
    await adstats.syncing.run(neighbour.tenant, neighbour.job(DAY, DAY, "CAMPAIGN"))
    assert await days_of(database, neighbour.tenant) == 1
    # asked for by hand, the failed job runs anew
    told = await adstats.dispatch._add([(shop.tenant, job)])
    assert told[0].state == "enqueued"
    async with working(queue, AdstatsTasks(adstats, clock).handlers()):
        await eventually(lambda: idle(queue), what="it is done")
    assert await days_of(database, shop.tenant) == 2


async def test_a_throttled_job_waits_without_using_an_attempt_and_a_dead_token_is_no_retry(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock, manners=Manners(throttle_percent=100))
    shop = await a_shop(adstats, database, tenant, tree=((),))
    queue = a_queue(adstats)
    async with working(queue, AdstatsTasks(adstats, clock).handlers()):
        told = await adstats.dispatch.sync(tenant, DAY, actor="test")
        job = await reaches(queue, told.jobIds[0], "delayed")
    assert job.attempts_made == 0
    hurried = await adstats.dispatch.sync(tenant, DAY, actor="test")
    assert "enqueued" in {one.state for one in hurried.jobs}
    dying = service(database, redis, clock, manners=Manners(dead_accounts=frozenset({"1000"})))
    ended = await dying.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))
    assert (len(ended.dead), ended.trouble) == (1, [])
    assert (await adstats.connections.read(tenant, shop.accounts[0])).token_state == "dead"
    assert (await adstats.dispatch.tick(tenant)).jobs == []


async def test_a_backfill_goes_month_by_month_and_tells_how_far_it_is(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    with pytest.raises(Conflict, match="No ad account"):
        await adstats.dispatch.backfill(tenant, DAY, DAY, actor="test")
    shop = await a_shop(adstats, database, tenant, tree=((1,),))
    for first, last in ((DAY, DAY - timedelta(days=1)), (DAY, NEXT), (date(2022, 1, 1), DAY), (date(2023, 6, 1), DAY)):
        with pytest.raises(Invalid):
            await adstats.dispatch.backfill(tenant, first, last, actor="test")
    first = DAY - timedelta(days=89)
    begun = await adstats.dispatch.backfill(tenant, first, DAY, actor="test")
    assert (begun.state, begun.parts, begun.done) == ("running", 9, 0)
    queue = a_queue(adstats)
    assert (await queue.counts()).waiting == 6
    async with working(queue, AdstatsTasks(adstats, clock).handlers()):

        async def over() -> bool:
            return (await adstats.dispatch.progress(tenant, begun.backfill_id)).state == "done"

        await eventually(over, what="the backfill is done")
    answer = await adstats.reading.stats(tenant, StatsQuery(first, NEXT, "AD"))
    assert len(answer.rows) == 90
    page = await adstats.dispatch.backfills(tenant, None, 10)
    assert [(one.progress, one.failed) for one in page.items] == [(1.0, 0)]
    assert shop.tenant == tenant


async def test_one_seller_never_syncs_another(database: Database, redis: Redis, make_tenant: MakeTenant) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    mine, other = [await a_shop(adstats, database, await make_tenant()) for _ in range(2)]
    queue = a_queue(adstats)
    forged = SyncJob(other.seller, DAY, DAY, "CAMPAIGN")
    with logged() as lines:
        async with working(queue, AdstatsTasks(adstats, clock).handlers()):
            added = await queue.add("stats-sync", forged, tenant_id=mine.tenant)
            await reaches(queue, added.id, "failed")
            # another program's job has no tenant: it is its seller's
            foreign = await queue.add("stats-sync", forged)
            await reaches(queue, foreign.id, "completed")
    assert await days_of(database, mine.tenant) == 0
    assert await days_of(database, other.tenant) == len(other.of("CAMPAIGN"))
    assert all(str(mine.seller) not in str(line) for line in lines if line["event"].startswith("stats-sync"))
    # reading with the wrong ids finds nothing
    theirs = tuple(entity.entity_id for entity in other.entities)
    assert (await adstats.reading.stats(mine.tenant, StatsQuery(DAY, NEXT, entities=theirs))).rows == []
    assert (await adstats.reading.drift(mine.tenant, DAY, NEXT, "CAMPAIGN")) == []
    assert (await state(database, mine.tenant)) == [[], [], []]


async def test_months_of_answers_go_when_nothing_can_be_restated_and_sums_know_it(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    old = date(2019, 5, 20)  # a month that no other test has
    adstats, literal = service(database, redis, clock), service(database, redis, clock, mode="sum")
    shop = await a_shop(adstats, database, tenant, tree=((),))
    await synced(adstats, shop, old)
    before = await state(database, tenant)
    clock.set(datetime(2019, 6, 20, tzinfo=UTC))
    assert date(2019, 5, 1) not in await adstats.retention()
    clock.set(datetime(2019, 12, 30, tzinfo=UTC))  # past any look-back that another test may have asked for
    assert date(2019, 5, 1) in await adstats.retention()
    assert await state(database, tenant) == before
    assert (await adstats.explain(tenant, shop.entities[0].entity_id, old)).told == []
    with pytest.raises(Conflict, match="raw rows"):
        await literal.dispatch.sync(tenant, old, actor="test")
    with pytest.raises(Conflict, match="raw rows"):
        await literal.dispatch.backfill(tenant, old, old, actor="test")
    await synced(adstats, shop, old)  # the newest answer can always be had again
    assert await state(database, tenant) == before
