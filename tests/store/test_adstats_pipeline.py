"""The pipeline: n syncs are one, levels add up to the cent, adding up shows its factor, sellpages follow campaigns."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.adstats import pipeline, store
from handbill.adstats.model import LEVELS, Entity, EntityPatch, Figures, Listed, NewConnection, NewEntity, RawStatRow
from handbill.adstats.providers.meta import MetaProvider
from handbill.adstats.providers.mock import Manners, MockProvider, told
from handbill.adstats.providers.port import Account, Question
from handbill.adstats.reading import StatsQuery, StatsRow
from handbill.adstats.service import ratio
from handbill.adstats.store import Source
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Invalid
from tests.kit.adstats import RAW, FakeClock, Shop, a_shop, service, state, synced

DAY = date(2026, 3, 1)
NEXT = DAY + timedelta(days=1)
MakeTenant = Callable[..., Awaitable[int]]


def expected(shop: Shop, clock: FakeClock, day: date, *, running: bool = False) -> dict[UUID, Figures]:
    """What the platform says at this moment about every entity of the first account."""
    account = Account(shop.accounts[0], "1000", "USD", "UTC")
    found: dict[UUID, Figures] = {}
    for level in LEVELS:
        question = Question(shop.seller, account, level, shop.entities, day, day)
        rows = told(question, day, clock.now() if running else None)
        found |= {row.entity_id: row.figures for row in rows}
    return found


def figures(row: StatsRow) -> Figures:
    return Figures(*(getattr(row, name) for name in Figures.__struct_fields__))


async def test_n_syncs_are_one_sync_and_equal_the_platform(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    once, often = [await a_shop(adstats, database, await make_tenant()) for _ in range(2)]
    await synced(adstats, once, DAY)
    before = await state(database, often.tenant)
    for _ in range(4):
        await synced(adstats, often, DAY)
        clock.advance(minutes=5)
    assert before == [[], [], []]
    for shop in (once, often):
        truth = expected(shop, clock, DAY)
        async with database.worker() as tx:
            assert await tx.fetchval(RAW, shop.tenant) == len(shop.entities)
        for level in LEVELS:
            answer = await adstats.reading.stats(shop.tenant, StatsQuery(DAY, NEXT, level, ("entity",)))
            assert {row.entity_id: figures(row) for row in answer.rows} == {
                entity.entity_id: truth[entity.entity_id] for entity in shop.of(level)
            }
    # every level tells the same sums, and their ratios are of the sums
    answers = [await adstats.reading.stats(often.tenant, StatsQuery(DAY, NEXT, level)) for level in LEVELS]
    assert len({tuple(map(figures, answer.totals)) for answer in answers}) == 1
    total = answers[0].totals[0]
    assert total.cpc == (total.spend / total.link_clicks).quantize(Decimal("0.000001"))
    assert total.roas == (total.purchase_value / total.spend).quantize(Decimal("0.000001"))


async def test_adding_up_shows_its_factor_and_a_rebuild_goes_back(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    literal, sane = service(database, redis, clock, mode="sum"), service(database, redis, clock)
    shop = await a_shop(literal, database, tenant, tree=((1,),))
    for _ in range(3):
        await synced(literal, shop, DAY)
        clock.advance(minutes=5)
    query = StatsQuery(DAY, NEXT, "CAMPAIGN", ("entity",))
    [row] = (await literal.reading.stats(tenant, query)).rows
    truth = expected(shop, clock, DAY)[shop.entities[0].entity_id]
    assert (row.spend, row.factor) == (3 * truth.spend, Decimal(3))
    assert row.cpc == (truth.spend / truth.link_clicks).quantize(Decimal("0.000001"))  # the ratio gives nothing away
    why = await sane.explain(tenant, shop.entities[0].entity_id, DAY)
    assert (why.literal_spend, why.literal_factor) == (3 * truth.spend, Decimal(3))
    assert (len(why.told), why.told[0].seen) == (1, 3)
    await sane.syncing.rebuild(tenant, DAY, DAY)
    [row] = (await sane.reading.stats(tenant, query)).rows
    assert (row.spend, row.factor) == (truth.spend, Decimal(1))
    [page] = (await sane.reading.sellpages(tenant, DAY, NEXT, True, ())).rows
    assert (page.spend, page.sellpage_id) == (truth.spend, shop.sellpages[0])
    rates = [ratio(page.link_clicks, page.impressions)]
    rates += [ratio(page.purchases, whole) for whole in (page.link_clicks, page.content_views)]
    assert [page.cr1, page.cr2, page.cr3] == rates
    assert 0 < page.cr1 < 1


tree = st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4)


@given(tree, st.integers(0, 200_000), st.sampled_from(["USD", "VND", "KWD"]), st.integers(0, 40 * 24 * 60))
def test_levels_add_up_to_the_cent_for_any_tree_at_any_moment(
    tree: list[list[int]], budget: int, currency: str, minutes: int
) -> None:
    number = iter(range(1, 1_000))
    entities: list[Entity] = []

    def add(kind: Any, parent: Entity | None) -> Entity:
        own = UUID(int=next(number))
        made = Entity(
            own, kind, UUID(int=0), parent.campaign_id if parent else own, "x", parent.entity_id if parent else None,
            budget=Decimal(budget) / 100,
        )  # fmt: skip
        entities.append(made)
        return made

    for sets in tree:
        campaign = add("CAMPAIGN", None)
        for ads in sets:
            adset = add("ADSET", campaign)
            for _ in range(ads):
                add("AD", adset)
    now = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    sums: dict[str, dict[UUID, list[Any]]] = {}
    account = Account(UUID(int=0), "1", currency, "UTC")
    above = {entity.entity_id: entity.parent_id for entity in entities}
    for level in LEVELS:
        rows = told(Question(UUID(int=9), account, level, entities, DAY, DAY), DAY, now)
        sums[level] = {row.entity_id: list(row.figures.values()) for row in rows}
    for upper, lower in (("CAMPAIGN", "ADSET"), ("ADSET", "AD")):
        up: dict[UUID | None, list[Any]] = defaultdict(lambda: [0] * 8)
        for entity, values in sums[lower].items():
            up[above[entity]] = [a + b for a, b in zip(up[above[entity]], values, strict=True)]
        with_children = {above[entity.entity_id] for entity in entities if entity.entity_type == lower}
        for entity, values in sums[upper].items():
            assert entity not in with_children or up[entity] == values


async def test_a_moved_campaign_takes_its_days_along_and_none_is_counted_twice(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((), (), ()))
    await synced(adstats, shop, DAY - timedelta(days=1), DAY)

    async def pages() -> dict[UUID | None, Decimal]:
        answer = await adstats.reading.sellpages(tenant, DAY - timedelta(days=1), NEXT, False, ())
        return {row.sellpage_id: row.spend for row in answer.rows}

    first, second = shop.sellpages
    before = await pages()
    assert set(before) == {first, second, None}
    moved = shop.entities[0].entity_id
    await adstats.editor.change_entity(tenant, moved, EntityPatch(sellpage_id=second), version=None, actor="test")
    assert await pages() == {second: before[first] + before[second], None: before[None]}
    await adstats.editor.change_entity(tenant, moved, EntityPatch(sellpage_id=None), version=None, actor="test")
    assert await pages() == {second: before[second], None: before[first] + before[None]}


async def test_currencies_are_never_added_and_an_archived_campaign_keeps_its_last_day(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),))
    dong = await adstats.connections.create(
        tenant, NewConnection("MOCK", "2000", "Dong", "VND", "Asia/Ho_Chi_Minh"), actor="test"
    )
    new = NewEntity("CAMPAIGN", "Saigon", dong.connection_id, sellpage_id=shop.sellpages[0], budget=Decimal(2_500_000))
    await adstats.editor.create_entity(tenant, new, actor="test")
    campaign = shop.entities[0].entity_id
    await adstats.editor.change_entity(tenant, campaign, EntityPatch(status="ARCHIVED"), version=None, actor="test")
    await synced(adstats, shop, DAY)
    truth = expected(shop, clock, DAY)[campaign]
    answer = await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))
    assert [row.currency for row in answer.totals] == ["USD", "VND"]
    assert figures(answer.totals[0]) == truth
    assert answer.totals[1].spend == answer.totals[1].spend.to_integral()  # no cents in Vietnam
    assert 2_125_000 <= answer.totals[1].spend <= 2_875_000
    pages = await adstats.reading.sellpages(tenant, DAY, NEXT, True, ())
    assert [(row.sellpage_id, row.currency) for row in pages.rows] == [
        (shop.sellpages[0], "USD"),
        (shop.sellpages[0], "VND"),
    ]


async def test_two_syncs_of_one_day_at_once_and_an_old_answer_that_comes_late(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock, manners=Manners(running=True))
    shop = await a_shop(adstats, database, await make_tenant())
    level_jobs = [shop.job(DAY, DAY, level) for level in LEVELS for _ in range(3)]
    await asyncio.gather(*(adstats.syncing.run(shop.tenant, job) for job in level_jobs))
    truth = expected(shop, clock, DAY, running=True)
    for level in LEVELS:
        answer = await adstats.reading.stats(shop.tenant, StatsQuery(DAY, NEXT, level, ("entity",)))
        assert {row.entity_id: figures(row) for row in answer.rows} == {
            key: value for key, value in truth.items() if key in {entity.entity_id for entity in shop.of(level)}
        }
    # an answer of an hour ago is written only now: nothing changes
    before = await state(database, shop.tenant)
    campaign = shop.of("CAMPAIGN")[0]
    late = RawStatRow(campaign.entity_id, "x", DAY, Figures(Decimal(1), 1))
    source = Source(shop.tenant, shop.accounts[0], "CAMPAIGN", "USD", UUID(int=7), clock.now() - timedelta(hours=1))
    async with database.worker() as tx:
        written = await pipeline.write(tx, source, [late], pipeline.DayRules("CUMULATIVE", "latest"))
    assert (written.raw, written.daily) == (1, 0)
    assert await state(database, shop.tenant) == before


async def test_increments_are_added_once_each(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant, tree=((),))
    campaign = shop.entities[0].entity_id
    async with database.worker() as tx:
        await store.make_month(tx, DAY)
    pieces = [RawStatRow(campaign, "x", DAY, Figures(Decimal(n), n), piece=f"p{n}") for n in (1, 2, 3)]
    for number, some in enumerate((pieces[:2], pieces, pieces)):
        source = Source(tenant, shop.accounts[0], "CAMPAIGN", "USD", UUID(int=number + 1), clock.now())
        async with database.worker() as tx:
            await pipeline.write(tx, source, some, pipeline.DayRules("DELTA", "latest"))
    [row] = (await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).totals
    assert (row.spend, row.impressions, row.factor) == (Decimal(6), 6, Decimal(1))


class OtherPlatform(MockProvider):
    ad_source = "OTHER"


async def test_sellpages_keep_each_platform_under_its_own_word(database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    meta, other = MockProvider(clock), OtherPlatform(clock)
    adstats = service(database, redis, clock, providers={"MOCK": meta, "META": other})
    shop = await a_shop(adstats, database, tenant, tree=((),))
    new = NewConnection("META", "5000", "Elsewhere", "USD", access_token="token")
    elsewhere = (await adstats.connections.create(tenant, new, actor="test")).connection_id
    campaign = NewEntity(
        "CAMPAIGN", "Elsewhere", elsewhere, sellpage_id=shop.sellpages[0], external_id="11", budget=Decimal(50)
    )
    made = await adstats.editor.create_entity(tenant, campaign, actor="test")
    await synced(adstats, shop, DAY)
    spent = {
        row.entity_id: row.spend
        for row in (await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT, by=("entity",)))).rows
    }

    async def pages() -> dict[tuple[UUID | None, str | None], Decimal]:
        answer = await adstats.reading.sellpages(tenant, DAY, NEXT, True, ())
        assert [row.ad_source for row in answer.totals] == [None]
        assert answer.totals[0].spend == sum(spent.values())
        return {(row.sellpage_id, row.ad_source): row.spend for row in answer.rows}

    own = spent[shop.entities[0].entity_id]
    assert await pages() == {
        (shop.sellpages[0], "META"): own,
        (shop.sellpages[0], "OTHER"): spent[made.entity_id],
    }
    patch = EntityPatch(sellpage_id=shop.sellpages[1])
    await adstats.editor.change_entity(tenant, made.entity_id, patch, version=None, actor="test")
    moved = {(shop.sellpages[0], "META"): own, (shop.sellpages[1], "OTHER"): spent[made.entity_id]}
    assert await pages() == moved
    await adstats.syncing.rebuild(tenant, DAY, DAY)
    assert await pages() == moved


def test_meta_and_the_mock_are_one_source() -> None:
    assert (MetaProvider.ad_source, MockProvider.ad_source) == ("META", "META")


async def test_an_entity_without_the_id_of_its_platform_is_refused(
    database: Database, redis: Redis, tenant: int
) -> None:
    adstats = service(database, redis, FakeClock())
    new = NewConnection("META", "5000", "Shop", "USD")
    account = (await adstats.connections.create(tenant, new, actor="test")).connection_id
    with pytest.raises(Invalid) as refused:
        await adstats.editor.create_entity(tenant, NewEntity("CAMPAIGN", "No id", account), actor="test")
    assert [fault.field for fault in refused.value.faults] == ["external_id"]
    named = NewEntity("CAMPAIGN", "Named", account, external_id="11")
    campaign = (await adstats.editor.create_entity(tenant, named, actor="test")).entity_id
    with pytest.raises(Invalid):
        await adstats.editor.create_entity(tenant, NewEntity("ADSET", "No id", parent_id=campaign), actor="test")
    for listed in ({}, {"external_id": None}, {"external_id": ""}, {"external_id": 11}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"entity_type": "CAMPAIGN", "name": "Listed", **listed}, Listed)
