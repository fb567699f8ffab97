"""Corrections of an account's currency and zone, and what becomes of its days."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from handbill.adstats.model import LEVELS, ConnectionPatch, Figures, RawStatRow, SyncJob
from handbill.adstats.providers.mock import Manners, MockProvider, told
from handbill.adstats.providers.port import Account, ProviderError, Question
from handbill.adstats.reading import StatsQuery
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.kit.adstats import FakeClock, a_shop, service, state, synced

DAY = date(2026, 3, 1)
NEXT = DAY + timedelta(days=1)
MakeTenant = Callable[..., Awaitable[int]]
CURRENCIES = Sql(
    "select currency from adstats.ad_stats_daily where tenant_id = $1 union "
    "select currency from adstats.ad_stats_ledger where tenant_id = $1 union "
    "select currency from adstats.sellpage_stats_daily where tenant_id = $1",
    "test_currencies",
)


async def test_the_days_of_a_corrected_currency_keep_their_figures(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    tenant, other = await make_tenant(), await make_tenant()
    shop, beside = [await a_shop(adstats, database, one, accounts=2) for one in (tenant, other)]
    for number in range(3):
        await synced(adstats, shop, DAY - timedelta(days=2), DAY)
        await synced(adstats, beside, DAY)
        clock.advance(days=number)
    untouched = await state(database, other)
    span = (DAY - timedelta(days=2), NEXT)

    async def sums(by: str, as_of: date | None = None) -> dict[tuple[object, ...], Decimal]:
        query = StatsQuery(*span, by=("entity", "day"), as_of=as_of)
        rows = (await adstats.reading.stats(tenant, query)).rows
        own = {one.entity_id for one in shop.entities if one.connection_id == shop.accounts[0]}
        return {(row.day, row.entity_id): row.spend for row in rows if (row.currency == by) and (row.entity_id in own)}

    before, believed = await sums("USD"), await sums("USD", NEXT)
    pages = (await adstats.reading.sellpages(tenant, *span, False, ())).totals
    assert [row.currency for row in pages] == ["USD"]
    patch = ConnectionPatch(currency="EUR")
    changed = await adstats.connections.change(tenant, shop.accounts[0], patch, version=None, actor="test")
    assert changed.currency == "EUR"
    assert (await sums("EUR"), await sums("EUR", NEXT)) == (before, believed)
    assert await sums("USD") == {}
    totals = (await adstats.reading.sellpages(tenant, *span, False, ())).totals
    assert [row.currency for row in totals] == ["EUR", "USD"]
    assert sum(row.spend for row in totals) == pages[0].spend
    assert await state(database, other) == untouched
    due = await adstats.dispatch.tick(tenant)  # the look-back is read again
    assert {job.split(":")[2] for job in due.jobIds} == {str(clock.now().date() - timedelta(days=3))}
    back = ConnectionPatch(currency="USD")
    await adstats.connections.change(tenant, shop.accounts[0], back, version=None, actor="test")
    async with database.worker() as tx:
        assert [row["currency"] for row in await tx.fetch(CURRENCIES, tenant)] == ["USD"]


ZONES = (
    ("Pacific/Kiritimati", "America/Los_Angeles"),
    ("America/Los_Angeles", "Pacific/Kiritimati"),
    ("Asia/Tokyo", "Atlantic/Azores"),
    ("Atlantic/Azores", "Europe/Lisbon"),
    ("Europe/Lisbon", "Asia/Kolkata"),
    ("America/Los_Angeles", "Atlantic/Azores"),
)
CHANGES = (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 3, 8, tzinfo=UTC))


@pytest.mark.parametrize(("wrong", "right"), ZONES)
async def test_after_a_correction_of_the_zone_the_figures_are_those_of_the_right_zone(
    database: Database, redis: Redis, tenant: int, wrong: str, right: str
) -> None:
    """The platform's days are of the right zone all along: days of 23 and 25 hours, and days that have not begun."""
    rng = random.Random(wrong + right)
    clock = FakeClock(rng.choice(CHANGES) + timedelta(hours=rng.randrange(-30, 30)))
    adstats = service(database, redis, clock, manners=Manners(running=True))
    shop = await a_shop(adstats, database, tenant, tree=((1,),), zone=wrong, look_back_days=3)

    async def due() -> set[date]:
        """Run what is due; the days that were read."""
        read: set[date] = set()
        for job in (await adstats.dispatch.tick(tenant)).jobIds:
            _, _, first, last, level = job.split(":")
            sync = SyncJob(shop.seller, date.fromisoformat(first), date.fromisoformat(last), level)  # type: ignore[arg-type]
            ended = await adstats.syncing.run(tenant, sync)
            assert not ended.trouble
            read |= {sync.dateFrom, sync.dateTo}
        return read

    for _ in range(rng.randrange(1, 4)):
        clock.advance(minutes=rng.randrange(5, 400))
        await due()
    patch = ConnectionPatch(time_zone=right)
    await adstats.connections.change(tenant, shop.accounts[0], patch, version=None, actor="test")
    await due()
    local = clock.now().astimezone(ZoneInfo(right)).date()
    days = [local - timedelta(days=number) for number in range(4)]
    account = Account(shop.accounts[0], "1000", "USD", right)
    for level in LEVELS:
        expected: dict[tuple[date | None, UUID | None], Figures] = {}
        for day in days:
            for row in told(Question(shop.seller, account, level, shop.entities, day, day), day, clock.now()):
                expected[day, row.entity_id] = row.figures
        query = StatsQuery(days[-1], local + timedelta(days=5), level, ("day", "entity"))
        rows = (await adstats.reading.stats(tenant, query)).rows
        assert {
            (row.day, row.entity_id): Figures(*(getattr(row, name) for name in Figures.__struct_fields__))
            for row in rows
            if row.impressions
        } == expected
    end = local + timedelta(days=5)
    pages = (await adstats.reading.sellpages(tenant, days[-1], end, True, ())).rows
    campaigns = (await adstats.reading.stats(tenant, StatsQuery(days[-1], end))).rows
    assert {row.day: row.spend for row in pages if row.spend} == {row.day: row.spend for row in campaigns if row.spend}
    assert (await adstats.reading.stats(tenant, StatsQuery(days[-1], local, zone=right))).exact_zone


class Corrected(MockProvider):
    """While it answers, the account is corrected."""

    correct: Callable[[], Awaitable[object]] | None = None

    async def fetch_stats(self, question: Question) -> list[RawStatRow]:
        rows = await super().fetch_stats(question)
        if self.correct is not None:
            correct, self.correct = self.correct, None
            await correct()
        return rows


async def test_an_answer_from_before_a_correction_is_not_written(database: Database, redis: Redis, tenant: int) -> None:
    provider = Corrected(FakeClock())
    adstats = service(database, redis, FakeClock(), providers={"MOCK": provider, "META": provider})
    shop = await a_shop(adstats, database, tenant, tree=((),))
    patch = ConnectionPatch(currency="JPY")
    provider.correct = lambda: adstats.connections.change(
        tenant, shop.accounts[0], patch, version=None, actor="test"
    )  # fmt: skip
    job = shop.job(DAY, DAY, "CAMPAIGN")
    [error] = (await adstats.syncing.run(tenant, job)).trouble
    assert isinstance(error, ProviderError)
    assert (await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).rows == []
    assert (await adstats.syncing.run(tenant, job)).trouble == []
    [row] = (await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).rows
    assert (row.currency, row.spend % 1) == ("JPY", Decimal(0))
