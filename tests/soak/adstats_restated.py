"""Weeks of a platform that restates its figures, throttles and lets tokens die, read by processes that die as well.

On each simulated day every seller is read by a process that dies at a random crash point, then by one that lives. In
the end every day that is four weeks old is the platform's final truth, every level adds up, and the ledger tells of
each day what was believed on every other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from handbill.adstats.model import LEVELS, ConnectionPatch, Figures, SyncJob
from handbill.adstats.providers.mock import LATE_DAYS, Manners, MockProvider, told
from handbill.adstats.providers.port import Account, Question
from handbill.adstats.reading import StatsQuery
from handbill.adstats.service import AdstatsService
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from tests.kit.adstats import FakeClock, Shop, a_shop, service
from tests.kit.crashes import Died, dying_at
from tests.soak.context import Context

SELLERS = 16
DAYS = 45
START = datetime(2026, 3, 1, 18, 0, tzinfo=UTC)
ZONES = ("UTC", "America/Los_Angeles", "Asia/Tokyo", "Europe/Paris")
DAY = timedelta(days=1)
Beliefs = dict[tuple[date, UUID], tuple[Any, ...]]


class Chaos:
    """The sellers, the clock, and a tally of what happened to them."""

    def __init__(self, ctx: Context, clock: FakeClock) -> None:
        self.ctx = ctx
        self.clock = clock
        self.tally = dict.fromkeys(("syncs", "deaths", "throttles", "tokens_died", "beliefs_compared"), 0)
        self.shops: list[Shop] = []
        self.zones: dict[int, str] = {}

    def manners(self) -> Manners:
        return Manners(running=True, throttle_percent=10, seed=self.ctx.random.getrandbits(32), steps=3)


@contextlib.asynccontextmanager
async def adapters(postgres: str, redis: str) -> AsyncIterator[tuple[Database, Redis]]:
    database, line = Database(derive(postgres), app_size=5, worker_size=5), Redis(redis)
    await database.start()
    await line.start()
    try:
        yield database, line
    finally:
        with contextlib.suppress(Died):
            await line.stop()
        with contextlib.suppress(Died):
            await database.stop()


async def read_all(chaos: Chaos, adstats: AdstatsService, first: date) -> None:
    """Every seller and level, five at a time, until each has answered. A dead token is mended by its owner."""
    todo = [(shop, level) for shop in chaos.shops for level in LEVELS]
    chaos.ctx.random.shuffle(todo)

    async def lane() -> None:
        while todo:
            shop, level = todo.pop()
            today = chaos.clock.now().date()
            job = SyncJob(shop.seller, max(first, today - LATE_DAYS * DAY), today + DAY, level)
            while True:
                ended = await adstats.syncing.run(shop.tenant, job)
                chaos.tally["syncs"] += 1
                if ended.dead:
                    chaos.tally["tokens_died"] += 1
                    patch = ConnectionPatch(access_token="another")
                    await adstats.connections.change(shop.tenant, shop.accounts[0], patch, version=None, actor="soak")
                elif ended.trouble:
                    chaos.tally["throttles"] += 1
                else:
                    break

    lanes = [asyncio.ensure_future(lane()) for _ in range(5)]
    try:
        await asyncio.gather(*lanes)
    finally:  # the dead do nothing more
        for task in lanes:
            task.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)


async def killed(chaos: Chaos, postgres: str, redis: str, first: date) -> None:
    """A process of its own that dies at a random point; whatever it had not committed is gone."""
    number = chaos.ctx.random.randint(1, 400)
    with dying_at(number) as seen:
        with contextlib.suppress(Died):
            async with adapters(postgres, redis) as (database, line):
                await read_all(chaos, service(database, line, chaos.clock, manners=chaos.manners()), first)
        chaos.tally["deaths"] += len(seen) >= number


async def dead_tokens(chaos: Chaos, adstats: AdstatsService, database: Database, line: Redis) -> None:
    """One seller's token dies under a sync; the others never notice."""
    shop = chaos.ctx.random.choice(chaos.shops)
    strict = MockProvider(chaos.clock, Manners(dead_accounts=frozenset({"1000"})))
    dying = service(database, line, chaos.clock, providers={"MOCK": strict, "META": strict})
    today = chaos.clock.now().date()
    ended = await dying.syncing.run(shop.tenant, SyncJob(shop.seller, today, today, "CAMPAIGN"))
    assert len(ended.dead) == 1, ended
    assert (await adstats.connections.read(shop.tenant, shop.accounts[0])).token_state == "dead"
    chaos.tally["tokens_died"] += 1
    patch = ConnectionPatch(access_token="another")
    await adstats.connections.change(shop.tenant, shop.accounts[0], patch, version=None, actor="soak")


async def believed(adstats: AdstatsService, tenant: int, first: date, last: date, as_of: date | None) -> Beliefs:
    found: Beliefs = {}
    sums: dict[str, Any] = {}
    for level in LEVELS:
        query = StatsQuery(first, last + DAY, level, ("day", "entity"), as_of=as_of)
        answer = await adstats.reading.stats(tenant, query)
        sums[level] = [tuple(getattr(row, name) for name in Figures.__struct_fields__) for row in answer.totals]
        for row in answer.rows:
            assert row.day is not None
            assert row.entity_id is not None
            found[row.day, row.entity_id] = tuple(getattr(row, name) for name in Figures.__struct_fields__)
    assert sums["CAMPAIGN"] == sums["ADSET"] == sums["AD"], f"levels of tenant {tenant} do not add up"
    return found


def final(shop: Shop, zone: str, day: date) -> Beliefs:
    account = Account(shop.accounts[0], "1000", "USD", zone)
    found: Beliefs = {}
    for level in LEVELS:
        rows = told(Question(shop.seller, account, level, shop.entities, day, day), day, None)
        found |= {(day, row.entity_id): row.figures.values() for row in rows}
    return found


async def sellers(chaos: Chaos, adstats: AdstatsService, database: Database, owner: asyncpg.Connection) -> None:
    rows = await owner.fetch(
        "insert into tenants.tenants (public_id, slug, name, created_at, updated_at)"
        " select gen_random_uuid(), 's-' || gen_random_uuid(), 'Soak', now(), now() from generate_series(1, $1)"
        " returning tenant_id",
        SELLERS,
    )
    draw = chaos.ctx.random
    for at, (tenant,) in enumerate(rows):
        tree: Sequence[Sequence[int]] = [
            [draw.randint(1, 3) for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 3))
        ]
        zone = ZONES[at % len(ZONES)]
        chaos.zones[tenant] = zone
        chaos.shops.append(
            await a_shop(adstats, database, tenant, tree=tree, zone=zone, look_back_days=28, access_token="first")
        )


async def run(ctx: Context) -> dict[str, Any]:
    clock = FakeClock(START)
    chaos = Chaos(ctx, clock)
    ctx.settings.update(sellers=SELLERS, days=DAYS, throttle_percent=10)
    first = START.date()
    kept: dict[date, dict[int, Beliefs]] = {}
    async with ctx.stack() as built, adapters(built.postgres_url, built.redis_url) as (database, line):
        owner = await asyncpg.connect(built.postgres_url)
        adstats = service(database, line, clock, manners=chaos.manners())
        await sellers(chaos, adstats, database, owner)
        for number in range(DAYS):
            today = clock.now().date()
            await killed(chaos, built.postgres_url, built.redis_url, first)
            if number % 7 == 3:
                await dead_tokens(chaos, adstats, database, line)
            await read_all(chaos, adstats, first)
            kept[today] = {
                shop.tenant: await believed(adstats, shop.tenant, first, today + DAY, None) for shop in chaos.shops
            }
            clock.advance(days=1)
            if number % 10 == 9:
                ctx.say(f"day {number + 1}: {chaos.tally}")
        for as_of, by_tenant in kept.items():
            for tenant, snapshot in by_tenant.items():
                then = await believed(adstats, tenant, first, as_of + DAY, as_of)
                assert then == snapshot, f"tenant {tenant}: what was believed on {as_of} is not what the ledger says"
                chaos.tally["beliefs_compared"] += len(snapshot)
        settled = 0
        last = max(kept)
        for shop in chaos.shops:
            day = first
            while day <= last - LATE_DAYS * DAY - DAY:
                truth = final(shop, chaos.zones[shop.tenant], day)
                assert {key: value for key, value in kept[last][shop.tenant].items() if key[0] == day} == truth
                settled += len(truth)
                day += DAY
        rows = {
            name: await owner.fetchval(f"select count(*) from adstats.{name}")
            for name in ("ad_stats_raw", "ad_stats_daily", "ad_stats_ledger", "sellpage_stats_daily")
        }
        await owner.close()
    entities = sum(len(shop.entities) for shop in chaos.shops)
    return {**chaos.tally, **rows, "entities": entities, "final_entity_days_equal_the_truth": settled}
