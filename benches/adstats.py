"""Entity-days a second, from the platform's answer to the sellpages, against the bare statements for the same rows.

Every seller has a hundred entities (5 campaigns, 15 ad sets, 80 ads) whose running totals have all moved since the last
look: the dearest case, for each gives a raw row, a day, a belief and a share of its sellpage. The limit writes the same
rows into tables of the same shape with four plain statements for each seller and level: no comparing, no lock, no
state, no drawing of figures, no account to look up. Beside it: what a look costs that finds nothing new, whether the
cost of an entity grows with their number, and the rows and bytes of one simulated day, sampled and multiplied to 10,000
sellers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg

from benches._bench import Options, Result, alternating, main, require, rounded, say
from handbill.adstats import pipeline
from handbill.adstats.model import LEVELS, Entity, Level, RawStatRow, SyncJob
from handbill.adstats.providers.mock import Manners, told
from handbill.adstats.providers.port import Account, Question
from handbill.adstats.reading import StatsQuery
from handbill.adstats.service import AdstatsService
from handbill.infra.postgres import Database
from handbill.infra.postgres.urls import derive
from handbill.infra.redis import Redis
from tests.kit.adstats import FakeClock, Shop, a_shop, service
from tests.kit.stack import stack

BAR = "ratio >= 0.40"
CONCURRENCY = 5
TREE = ((6, 5, 5), (6, 5, 5), (6, 5, 5), (6, 5, 5), (6, 5, 5))
START = datetime(2026, 3, 10, 6, 0, tzinfo=UTC)
DAY = START.date()

_BARE = """
create schema bench;
create table bench.raw (like adstats.ad_stats_raw including all);
create table bench.daily (like adstats.ad_stats_daily including all);
create table bench.ledger (like adstats.ad_stats_ledger including all);
create table bench.pages (like adstats.sellpage_stats_daily including all);
create table bench.entities as select * from adstats.entities;
alter table bench.entities add primary key (tenant_id, entity_id);
"""
_FIGURES = "spend, impressions, link_clicks, content_views, add_to_cart, checkout_initiated, purchases, purchase_value"
_SET = ", ".join(f"{name} = excluded.{name}" for name in _FIGURES.split(", "))
_TOLD = """unnest($5::uuid[], $6::date[], $7::numeric[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
    $12::bigint[], $13::bigint[], $14::numeric[]) as t (entity_id, day, spend, impressions, link_clicks, content_views,
    add_to_cart, checkout_initiated, purchases, purchase_value)"""
RAW = f"""insert into bench.raw (tenant_id, entity_id, date_start, sync_id, entity_type, external_entity_id,
    connection_id, fetched_at, last_seen_at, {_FIGURES})
select $1::int, entity_id, day, gen_random_uuid(), $2::text, '', $3::uuid, $4::timestamptz, $4, {_FIGURES}
from {_TOLD}"""
DAILY = f"""insert into bench.daily (tenant_id, entity_type, entity_id, stat_date, connection_id, currency,
    {_FIGURES}, cpm, ctr, cpc, cost_per_purchase, roas, fetched_at)
select $1::int, $2::text, entity_id, day, $3::uuid, 'USD', {_FIGURES}, adstats.ratio(spend * 1000, impressions),
    adstats.ratio(link_clicks, impressions), adstats.ratio(spend, link_clicks), adstats.ratio(spend, purchases),
    adstats.ratio(purchase_value, spend), $4::timestamptz from {_TOLD}
on conflict (tenant_id, entity_type, entity_id, stat_date) do update set {_SET}, cpm = excluded.cpm, ctr = excluded.ctr,
    cpc = excluded.cpc, cost_per_purchase = excluded.cost_per_purchase, roas = excluded.roas"""
LEDGER = f"""insert into bench.ledger (tenant_id, entity_type, entity_id, stat_date, believed_on, believed_at, currency,
    {_FIGURES})
select $1::int, $2::text, entity_id, day, $4::timestamptz::date, $4, 'USD', {_FIGURES}
from {_TOLD} where $3::uuid is not null
on conflict (tenant_id, entity_type, entity_id, stat_date, believed_on) do update set {_SET}"""
PAGES = """insert into bench.pages (tenant_id, sellpage_id, stat_date, ad_source, currency, ad_spend, impressions,
    link_clicks, content_views, add_to_cart, checkout_initiated, purchases, purchase_value, orders_count, revenue, cpm,
    ctr, cost_per_purchase, roas, cr1, cr2, cr3)
select $1::int, e.sellpage_id, d.stat_date, 'META', 'USD', sum(d.spend), sum(d.impressions), sum(d.link_clicks),
    sum(d.content_views), sum(d.add_to_cart), sum(d.checkout_initiated), sum(d.purchases), sum(d.purchase_value),
    sum(d.purchases), sum(d.purchase_value), 0, 0, 0, 0, 0, 0, 0
from bench.daily d join bench.entities e on e.tenant_id = d.tenant_id and e.entity_id = d.entity_id
where d.tenant_id = $1 and d.entity_type = 'CAMPAIGN' and d.stat_date = $2::date group by 2, 3
on conflict (tenant_id, sellpage_id, stat_date, ad_source, currency) do update set ad_spend = excluded.ad_spend,
    impressions = excluded.impressions, link_clicks = excluded.link_clicks, purchases = excluded.purchases,
    purchase_value = excluded.purchase_value, revenue = excluded.revenue"""


async def tenants(owner: asyncpg.Connection, count: int) -> list[int]:
    rows = await owner.fetch(
        "insert into tenants.tenants (public_id, slug, name, created_at, updated_at)"
        " select gen_random_uuid(), 'b-' || gen_random_uuid(), 'Bench', now(), now() from generate_series(1, $1)"
        " returning tenant_id",
        count,
    )
    return [row[0] for row in rows]


async def pooled(work: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """As the queue runs them: five at a time."""
    todo = iter(work)

    async def lane() -> None:
        for one in todo:
            await one()

    await asyncio.gather(*(lane() for _ in range(CONCURRENCY)))


def rows_of(shop: Shop, level: Level, day: date, now: datetime) -> list[RawStatRow]:
    account = Account(shop.accounts[0], "1000", "USD", "UTC")
    return told(Question(shop.seller, account, level, shop.entities, day, day), day, now)


async def synced(adstats: AdstatsService, shops: Sequence[Shop], day: date = DAY) -> float:
    """Seconds for all levels of all sellers."""

    def one(shop: Shop, level: Level) -> Callable[[], Awaitable[Any]]:
        return lambda: adstats.syncing.run(shop.tenant, SyncJob(shop.seller, day, day, level))

    began = time.perf_counter()
    await pooled([one(shop, level) for shop in shops for level in LEVELS])
    return time.perf_counter() - began


async def bare(pool: asyncpg.Pool, shops: Sequence[Shop], now: datetime) -> float:
    """The same rows by plain statements; their columns are made before the clock starts."""
    ready: list[tuple[Shop, Level, list[Any]]] = []
    for shop in shops:
        for level in LEVELS:
            rows = rows_of(shop, level, DAY, now)
            columns = [list(column) for column in zip(*(row.figures.values() for row in rows), strict=True)]
            ready.append((shop, level, [[row.entity_id for row in rows], [row.day for row in rows], *columns]))

    def one(shop: Shop, level: Level, columns: list[Any]) -> Callable[[], Awaitable[Any]]:
        async def write() -> None:
            head = (shop.tenant, level, shop.accounts[0], now)
            async with pool.acquire() as connection, connection.transaction():
                for statement in (RAW, DAILY, LEDGER):
                    await connection.execute(statement, *head, *columns)
                if level == "CAMPAIGN":
                    await connection.execute(PAGES, shop.tenant, DAY)

        return write

    began = time.perf_counter()
    await pooled([one(*each) for each in ready])
    return time.perf_counter() - began


@asynccontextmanager
async def adapters(postgres_url: str, redis_url: str) -> AsyncIterator[tuple[Database, Redis]]:
    database = Database(derive(postgres_url), app_size=CONCURRENCY, worker_size=CONCURRENCY)
    redis = Redis(redis_url)
    await database.start()
    await redis.start()
    try:
        yield database, redis
    finally:
        await redis.stop()
        await database.stop()


async def correct(adstats: AdstatsService, shop: Shop, now: datetime) -> None:
    for level in LEVELS:
        query = StatsQuery(DAY, DAY + timedelta(days=1), level, ("entity",))
        found = {row.entity_id: row.spend for row in (await adstats.reading.stats(shop.tenant, query)).rows}
        wanted = {row.entity_id: row.figures.spend for row in rows_of(shop, level, DAY, now)}
        require(found == wanted, f"the days of level {level} are not what the platform told")


async def flat(
    adstats: AdstatsService, database: Database, owner: asyncpg.Connection, clock: FakeClock
) -> dict[str, float]:
    """Microseconds for one entity-day of a seller with ever more ads."""
    found: dict[str, float] = {}
    for ads in (10, 100, 1_000):
        [tenant] = await tenants(owner, 1)
        shop = await a_shop(adstats, database, tenant, tree=((0,),))
        await many_ads(owner, shop, ads)
        job = SyncJob(shop.seller, DAY, DAY, "AD")
        took = []
        for _ in range(5):
            clock.advance(minutes=5)
            began = time.perf_counter()
            await adstats.syncing.run(tenant, job)
            took.append(time.perf_counter() - began)
        found[str(ads)] = rounded(sorted(took)[2] / ads * 1e6)
    return found


async def many_ads(owner: asyncpg.Connection, shop: Shop, count: int) -> None:
    adset: Entity = shop.of("ADSET")[0]
    await owner.execute(
        "insert into adstats.entities (tenant_id, entity_id, entity_type, connection_id, parent_id, campaign_id, name,"
        " created_at, updated_at) select $1, gen_random_uuid(), 'AD', $2, $3, $4, 'Ad ' || n, now(), now()"
        " from generate_series(1, $5) n",
        shop.tenant, adset.connection_id, adset.entity_id, adset.campaign_id, count,
    )  # fmt: skip


async def a_day(
    adstats: AdstatsService, owner: asyncpg.Connection, shops: Sequence[Shop], clock: FakeClock, ticks: int
) -> dict[str, Any]:
    """Every tick of one day: today each time, yesterday each hour, four weeks once. Rows and bytes it leaves."""
    sizes = "select count(*), coalesce(sum(pg_column_size(t.*)), 0) from adstats.{} t where tenant_id = any ($1)"
    names = ("ad_stats_raw", "ad_stats_daily", "ad_stats_ledger", "sellpage_stats_daily")
    ids = [shop.tenant for shop in shops]
    clock.set(datetime(2026, 3, 19, 23, 57, tzinfo=UTC))
    day = date(2026, 3, 20)
    for shop in shops:  # the four weeks before are there already
        for level in LEVELS:
            job = SyncJob(shop.seller, day - timedelta(days=28), day - timedelta(days=1), level)
            await adstats.syncing.run(shop.tenant, job)
    before = {name: await owner.fetchrow(sizes.format(name), ids) for name in names}
    step = 1440 / ticks
    for tick in range(ticks):
        clock.advance(minutes=step)
        deep = timedelta(days=28 if tick == ticks // 2 else 1 if tick % max(ticks // 24, 1) == 0 else 0)
        for shop in shops:
            for level in LEVELS:
                await adstats.syncing.run(shop.tenant, SyncJob(shop.seller, day - deep, day, level))
    entities = sum(len(shop.entities) for shop in shops)
    found: dict[str, Any] = {"sampled_sellers": len(shops), "ticks": ticks}
    for name in names:
        after = await owner.fetchrow(sizes.format(name), ids)
        rows, size = after[0] - before[name][0], after[1] - before[name][1]
        found[name] = {
            "rows_per_entity": rounded(rows / entities),
            "rows_at_10k_sellers": round(rows / entities * 1_000_000),
            "gigabytes_at_10k_sellers": rounded(size / entities * 1_000_000 / 1e9),
        }
    found["literal_raw_rows_at_10k_sellers"] = ticks * 29 * 1_000_000
    return found


async def body(options: Options) -> Result:
    sellers = options.scaled(60, 12)
    async with stack() as built, adapters(built.postgres_url, built.redis_url) as (database, redis):
        owner = await asyncpg.connect(built.postgres_url, command_timeout=600)
        pool = await asyncpg.create_pool(built.postgres_url, min_size=CONCURRENCY, max_size=CONCURRENCY)
        clock = FakeClock(START)
        adstats = service(database, redis, clock, manners=Manners(running=True))
        say(f"{sellers} sellers with 100 entities each")
        shops = [await a_shop(adstats, database, tenant, tree=TREE) for tenant in await tenants(owner, sellers)]
        entities = sum(len(shop.entities) for shop in shops)
        require(entities == 100 * sellers, f"{entities} entities were made")
        await owner.execute(_BARE)
        await synced(adstats, shops)
        await bare(pool, shops, clock.now())

        async def value() -> float:
            clock.advance(minutes=5)
            return entities / await synced(adstats, shops)

        async def limit() -> float:
            clock.advance(minutes=5)
            return entities / await bare(pool, shops, clock.now())

        rounds = await alternating(value, limit)
        await synced(adstats, shops)
        await correct(adstats, shops[0], clock.now())
        quiet = entities / await synced(adstats, shops)
        say("one simulated day")
        day = await a_day(adstats, owner, shops[: options.scaled(3, 1)], clock, options.scaled(288, 48))
        clock.set(START + timedelta(hours=1))
        growth = await flat(adstats, database, owner, clock)
        await pool.close()
        await owner.close()
    detail = {
        "sellers": sellers, "entities": entities, "concurrency": CONCURRENCY, "unchanged_per_s": rounded(quiet),
        "us_per_entity_day_by_ads": growth, "one_day": day, "chunk": pipeline.CHUNK, **rounds.detail(),
    }  # fmt: skip
    return Result(rounds.value, "entity-days/s", rounds.limit, detail)


if __name__ == "__main__":
    main("adstats", body)
