"""MetaProvider against the stand-in: reports, pages, halving, throttles, token death; and a sync through all of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import date, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from aiohttp import web

from handbill.adstats.model import LEVELS, ConnectionPatch, Entity, NewConnection
from handbill.adstats.providers.meta import MetaPolicy, MetaProvider, figures
from handbill.adstats.providers.mock import MockProvider
from handbill.adstats.providers.port import Account, ProviderError, ProviderThrottled, Question, TokenDead
from handbill.adstats.providers.usage import THROTTLES, fault_of, pause_s
from handbill.adstats.reading import StatsQuery
from handbill.fake_graph.insights import FakeAccount, InsightsState, routes
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Invalid
from handbill.tenants.seals import Sealer
from tests.kit.adstats import FakeClock, Shop, service
from tests.kit.sockets import listening

DAY = date(2026, 2, 19)
TOKEN = "EAAB-secret-token"


NO_IDS: tuple[object, ...] = (None, "", "None", "null", True, 1.5, -1, [], {"id": "11"}, "1 1", "١١", "1" * 65)


def an_account() -> FakeAccount:
    tree: dict[str, dict[str, list[str]]] = {"11": {"21": ["31", "32"], "22": ["33"]}, "12": {"23": []}}
    return FakeAccount("1000", TOKEN, tree=tree, budgets={"11": 10_000, "12": 5_050})


@contextlib.asynccontextmanager
async def graph(state: InsightsState) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes(state))
    async with serving(app) as url:
        yield url


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def meta(state: InsightsState, clock: FakeClock, page: int = 500) -> AsyncIterator[MetaProvider]:
    async with graph(state) as url:
        provider = MetaProvider(clock, MetaPolicy(url=url, page=page, poll_s=0, app_secret="app", insecure=True))
        try:
            yield provider
        finally:
            await provider.close()


def question(account: FakeAccount, level: str = "CAMPAIGN", days: int = 1, token: str = TOKEN) -> Question:
    entities = [
        Entity(UUID(int=int(name)), kind, UUID(int=0), UUID(int=int(name)), name, external_id=name)
        for kind in LEVELS
        for name in account.parents(kind.lower())
    ]
    known = Account(UUID(int=0), account.id, account.currency, account.zone, token)
    return Question(UUID(int=1), known, level, entities, DAY, DAY + timedelta(days=days - 1))  # type: ignore[arg-type]


async def test_every_page_is_read_and_levels_add_up() -> None:
    account = an_account()
    state = InsightsState({"1000": account})
    async with meta(state, FakeClock(), page=2) as provider:
        spends = []
        for level in LEVELS:
            rows = await provider.fetch_stats(question(account, level, days=5))
            assert len(rows) == len({(row.entity_id, row.day) for row in rows})
            spends.append(sum(row.figures.spend for row in rows))
        assert len(set(spends)) == 1
        assert spends[0] > 0
        listed = await provider.list_entities(question(account).account)
    assert [(one.entity_type, one.external_id, one.parent_external_id) for one in listed][:3] == [
        ("CAMPAIGN", "11", None),
        ("CAMPAIGN", "12", None),
        ("ADSET", "21", "11"),
    ]
    assert [one.budget for one in listed[:2]] == [Decimal("100.00"), Decimal("50.50")]
    assert all(TOKEN not in call for call in state.calls)


async def test_an_address_for_the_next_page_is_not_followed() -> None:
    async with listening() as elsewhere:
        pages = [
            {
                "data": [{"id": "11"}],
                "paging": {"next": f"http://127.0.0.1:{elsewhere.port}/", "cursors": {"after": "a"}},
            },
            {"data": [{"id": "12"}]},
        ]
        asked: list[str] = []

        async def campaigns(request: web.Request) -> web.Response:
            asked.append(request.path_qs)
            return web.json_response(pages[len(asked) - 1] if len(asked) < 3 else {"data": []})

        app = web.Application()
        app.router.add_get("/{path:.*}", campaigns)
        async with serving(app) as url:
            provider = MetaProvider(FakeClock(), MetaPolicy(url=url, insecure=True))
            rows = await provider.list_entities(question(an_account()).account)
            await provider.close()
        assert [row.external_id for row in rows] == ["11", "12"]
        assert "after=a" in asked[1]
        assert elsewhere.accepted == 0


async def test_entities_that_the_platform_does_not_name_are_left_out() -> None:
    account = an_account()

    async def answer(request: web.Request) -> web.Response:
        edge = request.path.rpartition("/")[2]
        rows: dict[str, list[dict[str, object]]] = {
            "campaigns": [{"name": "no id"}, *({"id": value} for value in NO_IDS), {"id": "11"}],
            "adsets": [{"id": "21", "campaign_id": "11"}, {"id": "22"}, {"id": "23", "campaign_id": "None"}],
            "insights": [{"date_start": str(DAY)}, *({"date_start": str(DAY), "campaign_id": one} for one in NO_IDS)],
        }
        if request.method == "POST":
            return web.json_response({"report_run_id": "7"})
        if edge == "7":
            return web.json_response({"async_status": "Job Completed", "async_percent_completion": 100})
        return web.json_response({"data": rows.get(edge, [])})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    asked = question(account)
    async with serving(app) as url:
        provider = MetaProvider(FakeClock(), MetaPolicy(url=url, poll_s=0, insecure=True))
        rows = await provider.list_entities(asked.account)
        assert await provider.fetch_stats(asked) == []
        await provider.close()
    assert [(row.external_id, row.parent_external_id) for row in rows] == [("11", None), ("21", "11")]
    assert asked.strangers == set()


def test_a_base_url_that_is_not_https_with_a_public_host_is_refused() -> None:
    for url in ("http://graph.facebook.com", "https://10.0.0.8", "http://127.0.0.1:9400", "https://１２７.０.０.１"):
        with pytest.raises(Invalid) as refused:
            MetaProvider(FakeClock(), MetaPolicy(url=url))
        assert refused.value.code == "OUTGOING_REFUSED"


async def test_asked_for_less_it_halves_pages_and_ranges() -> None:
    account = an_account()
    plain = InsightsState({"1000": account})
    narrow = InsightsState({"1000": account}, most_rows=3, most_days=4, polls=0)
    async with meta(plain, FakeClock()) as provider:
        wanted = await provider.fetch_stats(question(account, "AD", days=11))
    async with meta(narrow, FakeClock()) as provider:
        got = await provider.fetch_stats(question(account, "AD", days=11))
    assert sorted(got, key=repr) == sorted(wanted, key=repr)
    assert len(narrow.reports) == 4  # eleven days in pieces of at most four


async def test_faults_are_told_apart_and_no_word_of_the_platform_gets_through() -> None:
    account = an_account()
    state = InsightsState({"1000": account})
    clock = FakeClock()
    async with meta(state, clock) as provider:
        ask = question(account)
        state.faults.append({"code": 17, "message": f"too many calls with {TOKEN}"})
        with pytest.raises(ProviderThrottled) as throttled:
            await provider.fetch_stats(ask)
        assert TOKEN not in str(throttled.value)
        state.faults.append({"code": 190, "error_subcode": 460, "status": 401})
        with pytest.raises(TokenDead):
            await provider.fetch_stats(ask)
        with pytest.raises(TokenDead):
            await provider.fetch_stats(question(account, token="another"))
        for fault in ({"code": 2, "status": 500}, {"failed": True}):
            state.faults.append(dict(fault))
            with pytest.raises(ProviderError) as plain:
                await provider.fetch_stats(ask)
            assert type(plain.value) is ProviderError
        state.usage = 96
        with pytest.raises(ProviderThrottled) as resting:  # the first call is answered, the next one is not made
            await provider.fetch_stats(ask)
        assert resting.value.retry_after_s == 300
        state.usage = 0
        calls = len(state.calls)
        with pytest.raises(ProviderThrottled):
            await provider.fetch_stats(ask)
        assert len(state.calls) == calls
        clock.advance(seconds=301)
        assert await provider.fetch_stats(ask)
    async with graph(InsightsState()) as url:
        gone = MetaProvider(clock, MetaPolicy(url=url, insecure=True))
    with pytest.raises(ProviderError):
        await gone.fetch_stats(ask)
    await gone.close()


def test_codes_headers_and_overlapping_actions() -> None:
    for code in sorted(THROTTLES):
        assert isinstance(fault_of(400, {"error": {"code": code}}, {}), ProviderThrottled)
    assert {80_007, 80_009, 1, 100} & THROTTLES == set()
    for subcode in (458, 460, 463):
        assert isinstance(fault_of(401, {"error": {"code": 190, "error_subcode": subcode}}, {}), TokenDead)
    usage = '{"1000":[{"type":"ads_insights","call_count":%d,"estimated_time_to_regain_access":%d}]}'
    assert [pause_s({"x-business-use-case-usage": usage % pair}) for pair in ((84, 0), (85, 0), (95, 0), (10, 7))] == [
        0, 60, 300, 420,
    ]  # fmt: skip
    assert pause_s({"x-app-usage": "not json", "x-ad-account-usage": '{"acc_id_util_pct":99.9}'}) == 300
    row = {
        "spend": "5339.5",
        "impressions": "12",
        "actions": [{"action_type": "omni_purchase", "value": "3"}, {"action_type": "purchase", "value": "2"}],
        "action_values": [{"action_type": "purchase", "value": "10.5"}],
    }
    assert figures(row).values() == (Decimal("5339.5"), 12, 0, 0, 0, 0, 3, Decimal("10.5"))
    for broken in ("NaN", "-1", "1e400", "many"):
        with pytest.raises(ProviderError):
            figures({"spend": broken})


async def test_a_whole_account_from_import_to_sellpage_and_a_dead_token(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    account = an_account()
    state = InsightsState({"1000": account}, polls=0)
    async with meta(state, clock) as provider:
        adstats = service(database, redis, clock, providers={"META": provider, "MOCK": MockProvider(clock)})
        new = NewConnection("META", "1000", "Shop", "USD", access_token=TOKEN)
        connection = await adstats.connections.create(tenant, new, actor="test")
        assert (connection.token_state, connection.look_back_days) == ("valid", 28)
        told = await adstats.importer.fetch(tenant, connection.connection_id, actor="test")
        assert (told.created, told.refused) == (8, [])
        again = await adstats.importer.fetch(tenant, connection.connection_id, actor="test")
        assert (again.created, again.changed, again.unchanged) == (0, 0, 8)
        async with database.worker() as tx:
            from handbill.adstats import store

            shop = Shop(tenant, await store.seller_of(tx, tenant))
        for level in LEVELS:
            ended = await adstats.syncing.run(tenant, shop.job(DAY, DAY, level))
            assert not ended.trouble
        sums = [
            (await adstats.reading.stats(tenant, StatsQuery(DAY, DAY + timedelta(days=1), level))).totals[0].spend
            for level in LEVELS
        ]
        assert len(set(sums)) == 1
        assert sums[0] > 0
        with pytest.raises(Invalid):
            await adstats.reading.stats(tenant, StatsQuery(DAY, DAY + timedelta(days=1), zone="Mars/Olympus"))
        deleted = account.tree.pop("11")  # Meta no longer speaks of what was deleted there; it was spent all the same
        assert (await adstats.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))).written.daily == 0
        account.tree["11"] = deleted
        account.token = "changed"
        ended = await adstats.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))
        assert len(ended.dead) == 1
        assert TOKEN not in ended.dead[0]
        dead = await adstats.connections.read(tenant, connection.connection_id)
        assert dead.token_state == "dead"
        assert (await adstats.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))).accounts == 0
        stranger = service(
            database, redis, clock, providers={"META": provider, "MOCK": provider}, seals=Sealer(b"x" * 32)
        )
        patch = ConnectionPatch(access_token="changed")
        back = await adstats.connections.change(tenant, connection.connection_id, patch, version=None, actor="test")
        assert (back.token_state, back.token_note) == ("valid", None)
        assert (await adstats.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))).dead == []
        closed = await stranger.syncing.run(tenant, shop.job(DAY, DAY, "CAMPAIGN"))
        assert [str(error) for error in closed.trouble] == ["the token does not open with this installation's seal key"]
