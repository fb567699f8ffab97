"""Tokens of providers: when they end is asked or given, a refused one is marked, and both reach metrics and alerts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from prometheus_client import generate_latest

from handbill.adstats import model as ads
from handbill.adstats import store as ads_store
from handbill.adstats.providers.meta import MetaPolicy, MetaProvider
from handbill.adstats.providers.mock import MockProvider
from handbill.adstats.service import AdstatsService
from handbill.alerts.conditions import CONDITIONS
from handbill.alerts.evaluation import Evaluator, Page
from handbill.alerts.pages import parse
from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Conflict, Invalid
from handbill.kit.telemetry import metrics
from handbill.kit.token_ends import EndingToken, TokenSummary, end_of
from handbill.messaging.links import Connection, ConnectionPatch, NewConnection
from handbill.wiring.token_ends import TokenEnds
from tests.kit.adstats import Shop, service
from tests.kit.clocks import START, FakeClock
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, Graph, graph
from tests.kit.reach import Book, Room, people, room
from tests.kit.waiting import soon

END, EARLIER, GIVEN = (START + timedelta(days=days) for days in (60, 50, 40))


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@asynccontextmanager
async def messaging(
    database: Database, redis: Redis, engines: Engines, clock: FakeClock, config: Config
) -> AsyncIterator[tuple[Room, Graph]]:
    async with (
        graph(config) as fake,
        room(database, redis, engines.postgres_url, fake.url, Book(people(1)), clock=clock) as at,
    ):
        yield at, fake


async def connect(at: Room, tenant: int, token: str, ends_at: datetime | None = None) -> Connection:
    new = NewConnection("Main", WABA, [NUMBER], token, "secret", token_ends_at=ends_at)
    at.tenants.add(tenant)
    return await at.service.connections.connect(tenant, new, actor="test")


def test_an_end_is_the_earliest_time_that_is_told() -> None:
    assert end_of(0, None, "1", True, -5, 10**18) is None
    assert end_of(20, 0, 10) == datetime.fromtimestamp(10, UTC)


async def test_a_connection_shows_the_end_that_the_provider_tells_and_else_the_one_that_was_given(
    engines: Engines, database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    config = Config(
        token_ends={"ends": seconds(END), "access": seconds(END)}, data_access_ends={"access": seconds(EARLIER)}
    )
    async with messaging(database, redis, engines, clock, config) as (at, _):
        made = await connect(at, tenant, "lasting", GIVEN)
        assert (made.token_state, made.token_ends_at, made.token_checked_at) == ("valid", GIVEN, START)
        ends: list[datetime | None] = []
        for patch in (
            ConnectionPatch(name="Other"),
            ConnectionPatch(token="ends", token_ends_at=GIVEN),
            ConnectionPatch(token="access"),
            ConnectionPatch(token="lasting"),
            ConnectionPatch(token_ends_at=GIVEN),
            ConnectionPatch(token_ends_at=None),
        ):
            changed = await at.service.connections.change(tenant, made.connection_id, patch, actor="test")
            ends.append(changed.token_ends_at)
        assert ends == [GIVEN, END, EARLIER, None, GIVEN, None]


async def test_an_end_that_cannot_be_kept_is_refused(
    engines: Engines, database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    async with messaging(database, redis, engines, clock, Config()) as (at, _):
        with pytest.raises(Invalid):
            await connect(at, tenant, "good", last)
        made = await connect(at, tenant, "good")
        with pytest.raises(Invalid):
            await at.service.connections.change(
                tenant, made.connection_id, ConnectionPatch(token_ends_at=last), actor="test"
            )
    async with ad_account(database, redis, tenant, clock, Config()) as account:
        connections = account.adstats.connections
        with pytest.raises(Invalid):
            await connections.create(
                tenant, ads.NewConnection("META", "1001", "Shop", "USD", token_ends_at=last), actor="test"
            )
        with pytest.raises(Invalid):
            await connections.change(
                tenant, account.connection, ads.ConnectionPatch(token_ends_at=last), version=None, actor="test"
            )


async def test_the_hourly_check_reads_the_end_and_marks_a_token_that_is_refused_until_there_is_a_new_one(
    engines: Engines, database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    counted = metrics.MESSAGING_TOKENS_DEAD._value.get()
    config = Config(token_ends={"late": seconds(END)})
    async with messaging(database, redis, engines, clock, config) as (at, fake):
        connections = at.service.connections
        number = (await connect(at, tenant, "late")).connection_id
        await connections.change(tenant, number, ConnectionPatch(token_ends_at=GIVEN), actor="test")
        clock.advance(hours=1)
        assert (await connections.refresh(tenant, number, actor="system")).token_ends_at == END
        fake.world.dead_tokens.add("late")
        for _ in range(2):
            with pytest.raises(Conflict) as refused:
                await connections.refresh(tenant, number, actor="system")
            assert refused.value.code == "PROVIDER_TOKEN"
        dead = await connections.read(tenant, number)
        assert (dead.token_state, dead.token_ends_at) == ("dead", END)
        assert dead.token_note
        assert metrics.MESSAGING_TOKENS_DEAD._value.get() == counted + 1, "once, not at each check"
        clock.advance(hours=1)
        alive = await connections.change(tenant, number, ConnectionPatch(token="fresh"), actor="test")
        assert (alive.token_state, alive.token_note, alive.token_ends_at) == ("valid", None, None)
        assert alive.token_checked_at == clock.now()


async def test_a_message_that_is_refused_because_of_the_token_marks_its_connection(
    engines: Engines, database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    async with messaging(database, redis, engines, clock, Config()) as (at, fake):
        connection = (await connect(at, tenant, "good")).connection_id
        fake.world.dead_tokens.add("good")
        states = []
        for minutes in (0, 2):  # a token that was changed a moment ago is not judged by an answer to the one before
            clock.advance(minutes=minutes)
            await at.service.connections.turn_switch(tenant, stopped=False, actor="test")
            campaign = (await at.started(tenant, connection)).campaign_id
            await at.service.keeper.poll()
            await at.service.launcher.write(tenant, campaign)
            await at.service.dispatcher.turn(tenant, NUMBER, None)
            assert (await at.service.connections.switch(tenant)).stopped
            states.append((await at.service.connections.read(tenant, connection)).token_state)
        assert states == ["valid", "dead"]


@dataclass
class AdAccount:
    """One connected ad account at the stand-in."""

    adstats: AdstatsService
    fake: Graph
    shop: Shop
    connection: UUID

    async def read(self) -> ads.Connection:
        return await self.adstats.connections.read(self.shop.tenant, self.connection)

    async def sync(self) -> ads.Connection:
        await self.adstats.syncing.run(self.shop.tenant, self.shop.job(START.date(), START.date(), "CAMPAIGN"))
        return await self.read()


@asynccontextmanager
async def ad_account(
    database: Database, redis: Redis, tenant: int, clock: FakeClock, config: Config
) -> AsyncIterator[AdAccount]:
    async with graph(config) as fake:
        provider = MetaProvider(clock, MetaPolicy(url=fake.url, poll_s=0, insecure=True))
        adstats = service(database, redis, clock, providers={"META": provider, "MOCK": MockProvider(clock)})
        new = ads.NewConnection("META", "1000", "Shop", "USD", access_token="fake", token_ends_at=GIVEN)
        connection = (await adstats.connections.create(tenant, new, actor="test")).connection_id
        await adstats.importer.fetch(tenant, connection, actor="test")
        async with database.worker() as tx:
            shop = Shop(tenant, await ads_store.seller_of(tx, tenant))
        try:
            yield AdAccount(adstats, fake, shop, connection)
        finally:
            await adstats.stop()


async def test_a_sync_asks_once_a_day_when_the_token_of_an_ad_account_ends(
    database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    config = Config(token_ends={"fake": seconds(END)})
    async with ad_account(database, redis, tenant, clock, config) as account:
        assert (await account.read()).token_ends_at == GIVEN
        first = await account.sync()
        assert (first.token_ends_at, first.token_checked_at) == (END, START)
        account.fake.world.config.token_ends["fake"] = seconds(EARLIER)
        clock.advance(hours=23)
        assert (await account.sync()).token_ends_at == END
        clock.advance(hours=2)
        assert (await account.sync()).token_ends_at == EARLIER
        patch = ads.ConnectionPatch(access_token="fake")
        changed = await account.adstats.connections.change(
            tenant, account.connection, patch, version=None, actor="test"
        )
        assert (changed.token_ends_at, changed.token_checked_at) == (None, None)


async def test_an_ad_account_whose_token_the_platform_calls_invalid_is_marked(
    database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    async with ad_account(database, redis, tenant, clock, Config()) as account:
        account.fake.world.dead_tokens.add("fake")
        assert (await account.sync()).token_state == "dead"


async def test_the_services_count_ending_and_dead_tokens_of_all_tenants(
    engines: Engines, database: Database, redis: Redis, tenant: int, clock: FakeClock
) -> None:
    async with messaging(database, redis, engines, clock, Config()) as (at, _):
        connection = (await connect(at, tenant, "good", START + timedelta(days=8))).connection_id
        early = await at.service.tokens.summarise(START)
        late = await at.service.tokens.summarise(START + timedelta(days=2))
        assert (late.ending - early.ending, late.dead) == (1, early.dead)
        assert EndingToken(tenant, str(connection), START + timedelta(days=8)) in late.first
        assert late.seconds_left is not None
        assert late.seconds_left <= 6 * 86_400
        await at.service.connections.remove(tenant, connection, actor="test")


def alerts(*names: str) -> dict[str, float]:
    """The named conditions that are true by this process's own metrics page, with their values."""
    page = Page("handbill-worker", "a", True, parse(generate_latest(metrics.REGISTRY)))
    found = Evaluator([one for one in CONDITIONS if one.name in names]).observe(100.0, 1e9, [page])
    return {name: value for name, groups in found.items() for value in groups.values()}


async def test_a_token_that_ends_within_a_week_raises_the_alert_and_a_former_leader_shows_nothing(
    clock: FakeClock,
) -> None:
    left = [8 * 86_400.0, 6 * 86_400.0]

    async def summarise(now: datetime) -> TokenSummary:
        first = [EndingToken(7, "c", now)]
        return TokenSummary(left[0], 1, 2, first) if left else TokenSummary()

    task = TokenEnds({"whatsapp": summarise}, clock)
    shown: list[float | None] = []
    for _ in range(3):
        task.ready.clear()
        await task.start()
        await soon(task.ready.wait())
        shown.append(metrics.REGISTRY.get_sample_value("handbill_token_seconds_left", {"kind": "whatsapp"}))
        if left:
            expected = {} if left[0] > 7 * 86_400 else {"HandbillTokenEnds": left[0]}
            assert alerts("HandbillTokenEnds") == expected
            left.pop(0)
        await task.stop()
    assert shown == [8 * 86_400.0, 6 * 86_400.0, None]
    assert metrics.REGISTRY.get_sample_value("handbill_tokens_dead", {"kind": "whatsapp"}) is None
