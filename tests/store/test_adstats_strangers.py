"""What happens beside a sync: campaigns made at the platform, a failing neighbour, a sellpage that goes meanwhile."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest

from handbill.adstats import store
from handbill.adstats.model import JOB, QUEUE, EntityPatch, NewConnection, NewEntity
from handbill.adstats.providers.mock import MockProvider
from handbill.adstats.providers.port import ProviderError, Question
from handbill.adstats.tasks import AdstatsTasks
from handbill.fake_graph.insights import InsightsState
from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Redis
from handbill.jobs.model import Job
from handbill.kit.errors import Conflict
from tests.kit.adstats import FakeClock, Shop, a_shop, service
from tests.store.test_adstats_meta import TOKEN, an_account, meta

DAY = date(2026, 3, 1)


async def test_a_campaign_made_at_the_platform_is_imported_at_most_hourly(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    account = an_account()
    graph = InsightsState({"1000": account}, polls=0)
    async with meta(graph, clock) as provider:
        adstats = service(database, redis, clock, providers={"META": provider, "MOCK": MockProvider(clock)})
        new = NewConnection("META", "1000", "Shop", "USD", access_token=TOKEN)
        connection = (await adstats.connections.create(tenant, new, actor="test")).connection_id
        await adstats.importer.fetch(tenant, connection, actor="test")
        async with database.worker() as tx:
            shop = Shop(tenant, await store.seller_of(tx, tenant))
        tasks = AdstatsTasks(adstats, clock)

        async def sync() -> tuple[int, int]:
            """Strangers of the last answer, and campaigns that are known after it."""
            name = shop.job(DAY, DAY, "CAMPAIGN").job_id
            data = {"sellerId": str(shop.seller), "dateFrom": str(DAY), "dateTo": str(DAY), "level": "CAMPAIGN"}
            await tasks.sync(Job(id=name, wire_id=name, queue=QUEUE, name=JOB, data=data, opts={}), None)
            [state] = await adstats.connections.sync_states(tenant, connection)
            known = await adstats.editor.list_entities(tenant, None, 100, "CAMPAIGN", None, None, None)
            return state.unmatched, len(known.items)

        assert await sync() == (0, 2)
        account.tree["13"] = {"24": []}
        account.budgets["13"] = 7_000
        assert await sync() == (1, 3)
        assert await sync() == (0, 3)
        account.tree["14"] = {"25": []}
        account.budgets["14"] = 7_000
        clock.advance(minutes=50)
        assert await sync() == (1, 3)  # not again within the hour
        clock.advance(minutes=10)
        assert await sync() == (1, 4)
        assert await sync() == (0, 4)


class Noted(MockProvider):
    """Fails for one account, and remembers which days it was asked for of which."""

    failing = "1000"

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.asked: list[tuple[str, int]] = []

    async def fetch_stats(self, question: Question) -> list[Any]:
        account = question.account.external_id
        self.asked.append((account, (question.date_to - question.date_from).days + 1))
        if account == self.failing:
            raise ProviderError("the platform answered 500")
        return await super().fetch_stats(question)


async def test_a_retry_reads_again_only_what_was_not_read_since_the_job_was_added(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    noted = Noted(clock)
    adstats = service(database, redis, clock, providers={"MOCK": noted, "META": noted})
    shop = await a_shop(adstats, database, tenant, tree=((),), accounts=2, look_back_days=3)
    job = shop.job(DAY - timedelta(days=3), DAY, "CAMPAIGN")
    added = clock.now()

    async def again(**later: Any) -> list[tuple[str, int]]:
        clock.advance(**later)
        noted.asked = []
        await adstats.syncing.run(tenant, job, added)
        return noted.asked

    assert await again() == [("1000", 4), ("1001", 4)]
    assert await again(minutes=1) == [("1000", 4)]
    assert await again(minutes=5) == [("1000", 4), ("1001", 1)]  # today goes on meanwhile
    assert await again(hours=1) == [("1000", 4), ("1001", 2)]
    assert await again(minutes=1) == [("1000", 4)]
    added = clock.now() + timedelta(seconds=1)  # a job of its own, asked for anew
    assert await again(minutes=1) == [("1000", 4), ("1001", 4)]
    noted.failing = ""
    await adstats.dispatch.backfill(tenant, DAY - timedelta(days=3), DAY, actor="test")
    assert await again(minutes=1) == [("1000", 4), ("1001", 4)]  # a backfill is owed every day of its part


async def test_a_sellpage_that_goes_while_a_campaign_is_tied_to_it(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adstats = service(database, redis, FakeClock())
    shop = await a_shop(adstats, database, tenant, tree=((), (), ()))
    edit = adstats.editor
    looked = edit._sellpage_there

    async def then_gone(tx: Tx, tenant: int, page: UUID | None) -> None:
        await looked(tx, tenant, page)
        assert page is not None
        await edit.delete_sellpage(tenant, page, version=None, actor="test")

    for entity in shop.entities[:2]:
        await edit.change_entity(tenant, entity.entity_id, EntityPatch(sellpage_id=None), version=None, actor="test")
    monkeypatch.setattr(edit, "_sellpage_there", then_gone)
    new = NewEntity("CAMPAIGN", "Late", shop.accounts[0], sellpage_id=shop.sellpages[0])
    with pytest.raises(Conflict) as refused:
        await edit.create_entity(tenant, new, actor="test")
    assert refused.value.code == "SELLPAGE_GONE"
    patch = EntityPatch(sellpage_id=shop.sellpages[1])
    with pytest.raises(Conflict) as moved:
        await edit.change_entity(tenant, shop.entities[2].entity_id, patch, version=None, actor="test")
    assert moved.value.code == "SELLPAGE_GONE"
    assert (await edit.entity(tenant, shop.entities[2].entity_id)).sellpage_id is None
