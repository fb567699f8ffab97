"""What stays due and what does not: accounts with nothing to read, without a token, gone; months and jobs that fail."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec import structs

from handbill.adstats.model import EntityPatch, Figures, NewConnection, NewEntity, RawStatRow, SyncJob
from handbill.adstats.providers.meta import _listed
from handbill.adstats.providers.mock import MockProvider, visible
from handbill.adstats.providers.port import Question
from handbill.adstats.tasks import AdstatsTasks
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Invalid
from tests.kit.adstats import FakeClock, a_shop, service, state, synced
from tests.kit.working import reaches, working
from tests.store.test_adstats_sync import a_queue, logged

DAY = date(2026, 3, 1)
NOWHERE = Sql("update adstats.fb_connections set time_zone = 'Etc/GMT-14' where tenant_id = $1", "test_zone")


async def test_an_account_without_ads_does_not_have_the_others_read_deep_at_every_tick(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((1,),))
    bare = await adstats.connections.create(tenant, NewConnection("MOCK", "7", "Bare", "USD"), actor="test")
    new = NewEntity("CAMPAIGN", "No ads yet", bare.connection_id)
    await adstats.editor.create_entity(tenant, new, actor="test")
    await synced(adstats, shop, DAY - timedelta(days=3), DAY)
    clock.advance(minutes=5)
    today = {f"sync:{shop.seller}:{DAY}:{DAY}:{level}" for level in ("CAMPAIGN", "ADSET", "AD")}
    assert set((await adstats.dispatch.tick(tenant)).jobIds) == today


async def test_a_backfill_ends_when_its_account_is_gone(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),))
    begun = await adstats.dispatch.backfill(tenant, DAY, DAY, actor="test")
    await adstats.connections.delete(tenant, shop.accounts[0], version=None, actor="test")
    await synced(adstats, shop, DAY)
    ended = await adstats.dispatch.progress(tenant, begun.backfill_id)
    assert (ended.state, ended.errors) == ("failed", ["no ad account is connected any more"])
    assert (await adstats.dispatch.tick(tenant)).jobs == []


async def test_an_account_that_has_no_token_yet_is_not_asked(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    new = NewConnection("META", "7", "No token", "USD")
    account = await adstats.connections.create(tenant, new, actor="test")
    named = NewEntity("CAMPAIGN", "One", account.connection_id, external_id="11")
    await adstats.editor.create_entity(tenant, named, actor="test")
    assert (await adstats.dispatch.tick(tenant)).jobs == []
    with pytest.raises(Invalid, match="no time zone"):  # the machine's own is another one on the next machine
        here = NewConnection("MOCK", "8", "Here", "USD", "localtime")
        await adstats.connections.create(tenant, here, actor="test")


async def test_the_look_back_of_an_archived_campaign_is_counted_in_its_accounts_days(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),), look_back_days=3)
    await synced(adstats, shop, DAY)
    archived = EntityPatch(status="ARCHIVED")
    await adstats.editor.change_entity(tenant, shop.entities[0].entity_id, archived, version=None, actor="test")
    async with database.worker() as tx:
        await tx.execute(NOWHERE, tenant)  # there it is tomorrow from ten in the morning on
    clock.advance(days=2, minutes=5)
    assert len((await adstats.dispatch.tick(tenant)).jobs) == 3
    clock.advance(days=1)
    assert (await adstats.dispatch.tick(tenant)).jobs == []


async def test_a_dropped_month_is_made_again_by_a_worker_that_knew_it(
    database: Database, redis: Redis, tenant: int
) -> None:
    day = date(2018, 5, 20)  # a month that no other test has
    clock = FakeClock(datetime(2018, 5, 21, tzinfo=UTC))
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),))
    await synced(adstats, shop, day)
    before = await state(database, tenant)
    clock.set(datetime(2018, 12, 30, tzinfo=UTC))  # past any look-back that another test may have asked for
    assert date(2018, 5, 1) in await adstats.retention()
    await synced(adstats, shop, day)
    assert await state(database, tenant) == before
    with pytest.raises(Invalid):
        await adstats.explain(tenant, shop.entities[0].entity_id, date.max)


async def test_a_job_for_ten_thousand_years_is_refused_and_says_so(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),))
    queue = a_queue(adstats)
    with logged() as lines:
        async with working(queue, AdstatsTasks(adstats, clock).handlers()):
            added = await queue.add("stats-sync", SyncJob(shop.seller, date.min, date.max, "AD"), tenant_id=tenant)
            job = await reaches(queue, added.id, "failed")
    assert job.attempts_made == 1
    assert [line["sellerId"] for line in lines if line["event"] == "stats-sync-failed"] == [str(shop.seller)]


class Absurd(MockProvider):
    async def fetch_stats(self, question: Question) -> list[RawStatRow]:
        rows = await super().fetch_stats(question)
        if question.account.external_id == "1000":
            return [structs.replace(row, figures=Figures(Decimal(10) ** 15)) for row in rows]
        return rows


async def test_a_figure_that_no_column_holds_is_its_own_accounts_trouble(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    absurd = Absurd(clock)
    adstats = service(database, redis, clock, providers={"MOCK": absurd, "META": absurd})
    shop = await a_shop(adstats, database, tenant, tree=((),), accounts=2)
    ended = await adstats.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))
    assert [str(error) for error in ended.trouble] == ["the figures told could not be written (22003)"]
    assert ended.written.daily == 1


def test_budgets_come_as_meta_counts_each_currency() -> None:
    told = {"id": "1", "name": "x", "daily_budget": "5050"}
    budgets = [_listed(told, "CAMPAIGN", "", currency).budget for currency in ("USD", "HUF", "KWD", "JPY")]
    assert budgets == [Decimal("50.5"), 5050, Decimal("50.5"), 5050]


def test_a_day_of_twenty_three_hours_is_over_when_it_is_over() -> None:
    """And one of twenty-five is not over before."""
    figures = [2_500] * 8
    spring, autumn = date(2026, 3, 29), date(2026, 10, 25)
    assert visible(figures, spring, datetime(2026, 3, 29, 22, tzinfo=UTC), "Europe/Paris")[0] == 2_500
    assert visible(figures, autumn, datetime(2026, 10, 25, 22, tzinfo=UTC), "Europe/Paris")[0] == 2_400
