"""Connecting an account: what its platform says of it, corrections and their days, and connections made again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import date, timedelta
from uuid import UUID

import pytest

from handbill.adstats import accounts, store
from handbill.adstats.model import LEVELS, Connection, ConnectionPatch, NewConnection
from handbill.adstats.providers.meta import MetaProvider
from handbill.adstats.providers.mock import MockProvider
from handbill.adstats.providers.port import Account, AccountFacts, ProviderError, RequestRefused
from handbill.adstats.reading import StatsQuery
from handbill.adstats.service import AdstatsService
from handbill.fake_graph.insights import FakeAccount, InsightsState
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy, Conflict, HandbillError, Invalid, PreconditionFailed
from tests.kit.adstats import FakeClock, Shop, a_shop, service, state, synced
from tests.store.test_adstats_meta import TOKEN, an_account, meta

DAY = date(2026, 3, 1)
NEXT = DAY + timedelta(days=1)
MakeTenant = Callable[..., Awaitable[int]]


@dataclass
class Platform:
    """An ad account at the stand-in, and the service that connects it."""

    adstats: AdstatsService
    graph: InsightsState
    provider: MetaProvider
    clock: FakeClock
    tenant: int
    shop: Shop

    async def connect(self, token: str | None = TOKEN, account: str = "1000", **fields: str) -> Connection:
        new = NewConnection("META", account, "Shop", access_token=token, **fields)  # type: ignore[arg-type]
        return await self.adstats.connections.create(self.tenant, new, actor="test")

    async def change(self, connection_id: UUID, **fields: str) -> Connection:
        patch = ConnectionPatch(**fields)  # type: ignore[arg-type]
        return await self.adstats.connections.change(self.tenant, connection_id, patch, version=None, actor="test")

    async def refused(self, work: Awaitable[Connection]) -> str:
        with pytest.raises(HandbillError) as error:
            await work
        assert TOKEN not in error.value.detail
        return error.value.code

    async def sync(self, day: date = DAY) -> list[str]:
        """What went wrong."""
        trouble: list[str] = []
        for level in LEVELS:
            ended = await self.adstats.syncing.run(self.tenant, self.shop.job(day, day, level))
            trouble += [*map(str, ended.trouble), *ended.dead]
        return trouble

    async def only(self) -> Connection:
        [connection] = (await self.adstats.connections.list_page(self.tenant, None, 10)).items
        return connection


@contextlib.asynccontextmanager
async def platform(
    database: Database, redis: Redis, tenant: int, account: FakeAccount | None = None
) -> AsyncIterator[Platform]:
    clock = FakeClock()
    account = account or FakeAccount("1000", TOKEN, "SEK", "Europe/Stockholm", an_account().tree, {"11": 10_000})
    graph = InsightsState({"1000": account, "2000": FakeAccount("2000", "token-of-2000")}, polls=0)
    async with meta(graph, clock) as provider:
        adstats = service(database, redis, clock, providers={"META": provider, "MOCK": MockProvider(clock)})
        async with database.worker() as tx:
            shop = Shop(tenant, await store.seller_of(tx, tenant))
        yield Platform(adstats, graph, provider, clock, tenant, shop)


async def test_currency_and_zone_are_read_when_an_account_is_connected(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with platform(database, redis, tenant) as at:
        made = await at.connect()
        assert (made.currency, made.time_zone, made.verified_at) == ("SEK", "Europe/Stockholm", at.clock.now())
        assert at.graph.calls == ["GET /v23.0/act_1000"]
        assert await at.only() == made


async def test_what_the_platform_says_stands_over_what_is_given(database: Database, redis: Redis, tenant: int) -> None:
    async with platform(database, redis, tenant) as at:
        made = await at.connect(currency="EUR", time_zone="America/New_York")
        assert (made.currency, made.time_zone) == ("SEK", "Europe/Stockholm")
        await at.adstats.importer.fetch(tenant, made.connection_id, actor="test")
        assert await at.sync() == []


async def test_a_zone_that_we_do_not_know_leaves_the_given_one(database: Database, redis: Redis, tenant: int) -> None:
    async with platform(database, redis, tenant) as at:
        at.graph.accounts["1000"].zone = "Mars/Olympus"
        made = await at.connect(time_zone="Europe/Oslo")
        assert (made.currency, made.time_zone) == ("SEK", "Europe/Oslo")


async def test_an_account_that_cannot_be_read_is_refused(database: Database, redis: Redis, tenant: int) -> None:
    async with platform(database, redis, tenant) as at:
        assert await at.refused(at.connect("another")) == "AD_TOKEN_DEAD"
        assert await at.refused(at.connect(account="2000")) == "AD_ACCOUNT_UNREADABLE"  # of somebody else
        assert await at.refused(at.connect(account="3000")) == "AD_ACCOUNT_UNREADABLE"  # of nobody
        at.graph.accounts["1000"].currency = ""
        assert await at.refused(at.connect(currency="SEK")) == "AD_ACCOUNT_UNREADABLE"
        assert (await at.adstats.connections.list_page(tenant, None, 10)).items == []


@pytest.mark.parametrize("fault", [{"code": 2, "status": 500}, {"code": 17}, {"code": 1, "status": 400}])
async def test_while_the_platform_cannot_be_asked_the_account_is_unverified_until_the_next_sync(
    database: Database, redis: Redis, tenant: int, fault: dict[str, int]
) -> None:
    async with platform(database, redis, tenant) as at:
        at.graph.faults.append(dict(fault))
        assert await at.refused(at.connect()) == "AD_PLATFORM"  # nobody says what currency it has
        at.graph.faults.append(dict(fault))
        made = await at.connect(currency="EUR", time_zone="Asia/Tokyo")
        assert (made.currency, made.time_zone, made.verified_at) == ("EUR", "Asia/Tokyo", None)
        at.graph.faults.append(dict(fault))
        with pytest.raises(Busy):  # whether budgets have cents is the currency's affair
            await at.adstats.importer.fetch(tenant, made.connection_id, actor="test")
        at.graph.faults.extend(dict(fault) for _ in LEVELS)
        assert len(await at.sync()) == len(LEVELS)  # nothing is read in a zone that may be wrong
        assert (await at.only()).verified_at is None
        assert await at.sync() == []
        verified = await at.only()
        assert (verified.currency, verified.time_zone) == ("SEK", "Europe/Stockholm")
        assert verified.verified_at == at.clock.now()
        await at.adstats.importer.fetch(tenant, made.connection_id, actor="test")
        assert await at.sync() == []
        answer = await at.adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))
        assert [row.currency for row in answer.totals] == ["SEK"]


async def test_without_a_platform_to_ask_the_currency_must_be_given(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with platform(database, redis, tenant) as at:
        with pytest.raises(Invalid) as refused:
            await at.connect(token=None)
        assert [fault.field for fault in refused.value.faults] == ["currency"]
        made = await at.connect(token=None, currency="EUR")
        assert (made.currency, made.time_zone, made.verified_at) == ("EUR", "UTC", None)
        changed = await at.change(made.connection_id, access_token=TOKEN)
        assert (changed.currency, changed.time_zone) == ("SEK", "Europe/Stockholm")
        assert changed.verified_at == at.clock.now()
        assert at.graph.calls == ["GET /v23.0/act_1000"]
        with pytest.raises(Invalid):
            await at.adstats.connections.create(tenant, NewConnection("MOCK", "1", "Mock"), actor="test")


async def test_a_correction_must_be_what_the_platform_says(database: Database, redis: Redis, tenant: int) -> None:
    async with platform(database, redis, tenant) as at:
        made = await at.connect()
        assert await at.refused(at.change(made.connection_id, currency="EUR")) == "AD_ACCOUNT_DIFFERS"
        assert await at.refused(at.change(made.connection_id, time_zone="Asia/Tokyo")) == "AD_ACCOUNT_DIFFERS"
        assert await at.refused(at.change(made.connection_id, time_zone="Mars/Olympus")) == "INVALID"
        assert await at.refused(at.change(made.connection_id, access_token="token-of-2000")) == "AD_ACCOUNT_UNREADABLE"
        assert await at.only() == made
        at.graph.accounts["1000"].currency = "USD"
        changed = await at.change(made.connection_id, currency="USD")
        assert (changed.currency, changed.version) == ("USD", 2)
        at.graph.faults.append({"code": 2, "status": 500})
        unverified = await at.change(made.connection_id, currency="CHF")
        assert (unverified.currency, unverified.verified_at) == ("CHF", None)
        with pytest.raises(PreconditionFailed):
            await at.adstats.connections.change(
                tenant, made.connection_id, ConnectionPatch(currency="USD"), version=1, actor="test"
            )


async def test_an_account_that_changed_at_the_platform_is_asked_again(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with platform(database, redis, tenant) as at:
        made = await at.connect()
        await at.adstats.importer.fetch(tenant, made.connection_id, actor="test")
        assert await at.sync() == []
        before = (await at.adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).totals[0]
        at.graph.accounts["1000"].currency = "NOK"
        assert len(await at.sync()) == 1  # the first level sees it, and the next one asks
        assert (await at.only()).currency == "NOK"
        assert await at.sync() == []
        after = (await at.adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).totals
        assert [(row.currency, row.spend) for row in after] == [("NOK", before.spend)]
        at.graph.accounts["1000"].zone = "Europe/Oslo"
        at.clock.advance(hours=25)
        assert await at.sync() == []
        assert (await at.only()).time_zone == "Europe/Oslo"


async def test_an_account_that_may_not_be_read_any_more_fails_its_sync_and_others_go_on(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with platform(database, redis, tenant) as at:
        made = await at.connect()
        await at.adstats.importer.fetch(tenant, made.connection_id, actor="test")
        shop = await a_shop(at.adstats, database, tenant, tree=((),))
        del at.graph.accounts["1000"]
        at.clock.advance(hours=25)
        ended = await at.adstats.syncing.run(tenant, shop.job(DAY, NEXT, "CAMPAIGN"))
        assert [type(error) for error in ended.trouble] == [RequestRefused]
        assert ended.written.daily == 2  # two days of the mock's campaign


async def test_a_deleted_connection_is_made_again_with_its_history(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with platform(database, redis, tenant) as at:
        made = await at.connect()
        imported = await at.adstats.importer.fetch(tenant, made.connection_id, actor="test")
        assert await at.sync() == []
        assert await at.refused(at.connect()) == "AD_ACCOUNT_TAKEN"
        before = await state(database, tenant)
        await at.adstats.connections.delete(tenant, made.connection_id, version=None, actor="test")
        gone = await at.only()
        assert (gone.is_active, gone.token_state, gone.verified_at) == (False, "none", None)
        assert await at.refused(at.connect("wrong")) == "AD_TOKEN_DEAD"
        assert await at.only() == gone
        again = await at.connect()
        assert (again.connection_id, again.created_at) == (made.connection_id, made.created_at)
        assert (again.is_active, again.token_state, again.version) == (True, "valid", gone.version + 1)
        assert await at.only() == again
        once_more = await at.adstats.importer.fetch(tenant, again.connection_id, actor="test")
        assert (once_more.created, once_more.unchanged) == (0, imported.created)
        assert await at.sync() == []
        assert await state(database, tenant) == before
        assert await at.refused(at.connect()) == "AD_ACCOUNT_TAKEN"


async def test_of_two_who_make_a_deleted_connection_again_one_does(
    database: Database, redis: Redis, tenant: int
) -> None:
    adstats = service(database, redis, FakeClock())
    new = NewConnection("MOCK", "1000", "Shop", "USD")
    made = await adstats.connections.create(tenant, new, actor="test")
    await adstats.connections.delete(tenant, made.connection_id, version=None, actor="test")
    results = await asyncio.gather(
        *(adstats.connections.create(tenant, new, actor="test") for _ in range(4)), return_exceptions=True
    )
    again = [one for one in results if isinstance(one, Connection)]
    assert [one.connection_id for one in again] == [made.connection_id]
    assert {one.code for one in results if isinstance(one, Conflict)} == {"AD_ACCOUNT_TAKEN"}


class Silent(MockProvider):
    async def read_account(self, account: Account) -> AccountFacts:
        await asyncio.Event().wait()
        raise AssertionError("never set")


async def test_a_platform_that_never_answers_leaves_the_account_unverified(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "READ_TIMEOUT_S", 0.01)
    silent = Silent(FakeClock())
    adstats = service(database, redis, FakeClock(), providers={"MOCK": silent, "META": silent})
    new = NewConnection("META", "1000", "Shop", "USD", access_token="token")
    assert (await adstats.connections.create(tenant, new, actor="test")).verified_at is None


async def test_a_connection_made_again_with_another_currency_takes_its_days_along(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    adstats = service(database, redis, clock)
    shop = await a_shop(adstats, database, tenant)
    await synced(adstats, shop, DAY)
    before = (await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).totals[0]
    await adstats.connections.delete(tenant, shop.accounts[0], version=None, actor="test")
    new = NewConnection("MOCK", "1000", "Again", "EUR", "Asia/Tokyo", 7)
    again = await adstats.connections.create(tenant, new, actor="test")
    assert (again.connection_id, again.name, again.look_back_days) == (shop.accounts[0], "Again", 7)
    [after] = (await adstats.reading.stats(tenant, StatsQuery(DAY, NEXT))).totals
    assert (after.currency, after.spend) == ("EUR", before.spend)


async def test_another_sellers_connection_is_nobodys_business(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    adstats = service(database, redis, FakeClock())
    mine, theirs = await make_tenant(), await make_tenant()
    new = NewConnection("MOCK", "1000", "Shop", "USD")
    made = await adstats.connections.create(mine, new, actor="test")
    await adstats.connections.delete(mine, made.connection_id, version=None, actor="test")
    other = await adstats.connections.create(theirs, new, actor="test")
    assert other.connection_id != made.connection_id
    assert not (await adstats.connections.read(mine, made.connection_id)).is_active


async def test_the_stand_in_answers_accounts_as_the_platform_does(database: Database) -> None:
    graph = InsightsState({"1000": an_account(), "2000": FakeAccount("2000", "other")})
    asked = Account(UUID(int=0), "1000", "", "UTC", TOKEN)
    async with meta(graph, FakeClock()) as provider:
        assert await provider.read_account(asked) == AccountFacts("USD", "UTC")
        answer = await provider._call(asked, "GET", "act_1000", {})
        assert answer == {"id": "act_1000", "account_id": "1000"}
        with pytest.raises(RequestRefused, match="code 100"):
            await provider._call(asked, "GET", "act_1000", {"fields": "currency,colour"})
        graph.usage = 100
        with pytest.raises(ProviderError, match="code 17"):
            await provider.read_account(asked)
