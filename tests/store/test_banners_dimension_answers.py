"""What statistics from the events say when the event store is away or lacks some, and what else goes with the rows."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from handbill.banners.event_filters import Chosen
from handbill.banners.event_stats import EventStats
from handbill.banners.stats import as_csv
from handbill.banners.stats_model import MissingEvents, StatsQuery, StatsRow
from handbill.banners.suspicion import Suspected, counted
from handbill.banners.uniques import Unidentified, Uniques
from handbill.events.forgetting import Forgetting
from handbill.events.model import CapturedEvent, Click, Event, Impression
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.insights.query_limiter import QueryLimits
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.clock import from_ms
from handbill.kit.errors import Busy, Invalid, Throttled
from tests.kit.banner_stats import (
    DAY,
    DIMENSIONS,
    count,
    figures,
    random_events,
    shipping_loop,
    shop,
)  # fmt: skip
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import hasty, shipped, shipping
from tests.kit.waiting import eventually


@pytest.fixture
async def house(database: Database, redis: Redis, clickhouse: ClickHouse) -> AsyncIterator[Loop]:
    async with shipping_loop(database, redis, clickhouse) as made:
        yield made


async def test_a_question_about_events_is_refused_while_clickhouse_is_away_and_others_are_not(
    house: Loop, engines: Engines, tenant: int
) -> None:
    await shop(house, tenant)
    today = house.clock.now().date()
    stats = house.banners.stats
    nowhere = hasty(engines, "http://127.0.0.1:9")
    await nowhere.start()
    stats._event_stats = EventStats(EventStoreReader(nowhere, Bounds()))
    try:
        with pytest.raises(Busy) as refused:
            await stats.read(tenant, StatsQuery(today, today + DAY, by=("variant",)))
        assert (refused.value.code, refused.value.status) == ("STATS_EVENTS_AWAY", 503)
        assert refused.value.retry_after
        assert (await stats.read(tenant, StatsQuery(today, today + DAY, by=("banner",)))).source == "counters"
    finally:
        await nowhere.stop()
    stats._event_stats = EventStats(None)
    with pytest.raises(Busy, match="ClickHouse"):
        await stats.read(tenant, StatsQuery(today, today + DAY, pages=("/x",)))


async def test_questions_about_events_take_the_slots_of_insights(
    house: Loop, clickhouse: ClickHouse, tenant: int
) -> None:
    limits = QueryLimits(tenant_running=1, tenant_waiting=0)
    reader = EventStoreReader(clickhouse, Bounds(queries=limits))
    stats = house.banners.stats
    stats._event_stats = EventStats(reader)
    today = house.clock.now().date()
    async with reader.limiter.slot(tenant):
        with pytest.raises(Throttled) as refused:
            await stats.read(tenant, StatsQuery(today, today + DAY, by=("variant",)))
    assert refused.value.code == "INSIGHTS_BUSY"
    await stats.read(tenant, StatsQuery(today, today + DAY, by=("variant",)))
    stats._event_stats = EventStats(EventStoreReader(clickhouse, Bounds(rows_read=1)))
    numbers = await shop(house, tenant)
    await count(house, random_events(Random(1), tenant, numbers, house.clock.now_ms(), 50))
    with pytest.raises(Invalid) as heavy:
        await stats.read(tenant, StatsQuery(today - 4 * DAY, today + DAY, by=("variant",)))
    assert heavy.value.code == "INSIGHT_TOO_HEAVY"
    stats._uniques = Uniques(EventStoreReader(clickhouse, Bounds(rows_read=1)))
    people = (await stats.read(tenant, StatsQuery(today - 4 * DAY, today + DAY, uniques=True))).uniques
    assert people is not None
    assert (people.impressions, people.unidentified) == (None, None)
    assert "too much" in (people.note or "")


async def test_more_rows_than_may_be_answered_are_refused(
    house: Loop, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handbill.banners.stats.MOST_ROWS", 5)
    monkeypatch.setattr("handbill.banners.event_stats.MOST_ROWS", 5)
    numbers = await shop(house, tenant)
    banner, now = next(iter(numbers["banner"])), house.clock.now_ms()
    await count(house, [Impression(tenant, f"i{n}", now, now, banner, page=f"/{n}") for n in range(6)])
    today = from_ms(now).date()
    with pytest.raises(Invalid) as refused:
        await house.banners.stats.read(tenant, StatsQuery(today, today + DAY, by=("page",), zone="UTC"))
    assert refused.value.code == "TOO_MANY_ROWS"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("variants", ("",)), ("variants", ("x" * 201,)), ("countries", ("F\0",)), ("devices", ("d",) * 51),
        ("pages", ("?only=query",)), ("pages", ("/" * 2_001,)),
    ],
)  # fmt: skip
async def test_a_filter_that_cannot_match_is_refused_by_name(
    house: Loop, tenant: int, field: str, values: tuple[str, ...]
) -> None:
    today = house.clock.now().date()
    query = msgspec.structs.replace(StatsQuery(today, today + DAY), **{field: values})
    names = {"variants": "variant", "countries": "country", "devices": "device", "pages": "page"}
    with pytest.raises(Invalid) as refused:
        await house.banners.stats.read(tenant, query)
    assert {fault.field for fault in refused.value.faults} == {names[field]}


async def test_an_event_of_a_client_that_only_bears_the_name_of_a_banner_event_is_none(
    house: Loop, tenant: int
) -> None:
    numbers = await shop(house, tenant)
    banner, now = next(iter(numbers["banner"])), house.clock.now_ms()
    fake = [
        CapturedEvent(tenant, f"f{n}", now, now, name, f"u{n}", "own", b'{"counted":true,"variant":"a"}')
        for n, name in enumerate(("$banner_impression", "$banner_click", "$banner_view"))
    ]
    await count(house, [Impression(tenant, "i", now, now, banner, user="u", variant="a"), *fake])
    today = from_ms(now).date()
    query = StatsQuery(today, today + DAY, "total", ("variant",), zone="UTC", uniques=True)
    answer = await house.banners.stats.read(tenant, query)
    assert [(row.variant, *figures(row)[:3]) for row in answer.rows] == [("a", 1, 0, 0)]
    assert answer.uniques is not None
    assert (answer.uniques.impressions, answer.uniques.clicks, answer.uniques.views) == (1, 0, 0)


async def test_events_of_nobody_are_no_people_and_are_told(house: Loop, tenant: int) -> None:
    numbers = await shop(house, tenant)
    banner, now = next(iter(numbers["banner"])), house.clock.now_ms()
    events: list[Event] = [Impression(tenant, f"i{n}", now, now, banner) for n in range(9)]
    events += [Impression(tenant, f"b{n}", now, now, banner, marks=("bot",)) for n in range(4)]
    events += [Click(tenant, f"c{n}", now, now, banner) for n in range(3)]
    events += [Impression(tenant, "of-ann", now, now, banner, user="ann")]
    await count(house, events)
    today = from_ms(now).date()
    answer = await house.banners.stats.read(tenant, StatsQuery(today, today + DAY, zone="UTC", uniques=True))
    people = answer.uniques
    assert answer.source == "counters"
    assert people is not None
    assert (people.impressions, people.clicks, people.views) == (1, 0, 0)
    assert people.unidentified == Unidentified(9, 3, 0)


async def test_erased_people_still_count_by_variant_country_and_device(
    house: Loop, database: Database, clickhouse: ClickHouse, tenant: int
) -> None:
    numbers = await shop(house, tenant)
    events = random_events(Random(5), tenant, numbers, house.clock.now_ms(), 200)
    await count(house, events)
    async with database.worker() as tx:
        await tx.execute(OTHERS_DONE, [lane for lane, _ in house.lanes.all()])
    today = house.clock.now().date()
    query = StatsQuery(today - 4 * DAY, today + DAY, "total", ("variant", "country", "device"), zone="UTC")
    before = await house.banners.stats.read(tenant, query)
    erased = await Forgetting(database, clickhouse).erase(tenant, ["ann", "bob", "cyd"])
    assert erased["clickhouse.events"] > 100
    after = await house.banners.stats.read(tenant, query)
    assert after.rows == before.rows
    assert (after.missing, after.complete_from) == ([], None)
    left = await clickhouse.query(
        "select count() from events where tenant_id = {t:UInt32} and (distinct_id in ('ann', 'bob', 'cyd') or"
        " startsWith(distinct_id, 'erased:') and (url != '' or JSONHas(properties, 'destination')))",
        {"t": tenant},
    )
    assert left[0][0] == 0


async def test_what_the_event_store_has_lost_is_told_by_day(house: Loop, clickhouse: ClickHouse, tenant: int) -> None:
    numbers = await shop(house, tenant)
    first, second = numbers["banner"]
    now = house.clock.now_ms()
    old = now - 3 * 86_400_000
    events: list[Event] = [Impression(tenant, f"o{n}", old, now, first, variant="a") for n in range(5)]
    events += [Click(tenant, f"k{n}", old, now, first, variant="a") for n in range(2)]
    events += [Impression(tenant, f"n{n}", now, now, first, variant="b") for n in range(3)]
    await count(house, [*events, Impression(tenant, "other", old, now, second)])
    await clickhouse.command(
        f"alter table events delete where tenant_id = {tenant} and event = '$banner_impression'"
        f" and event_id in ('o0', 'o1')",
        {"mutations_sync": 1},
    )
    today, day = from_ms(now).date(), from_ms(old).date()
    query = StatsQuery(today - 5 * DAY, today + DAY, "total", ("variant",), zone="UTC")
    answer = await house.banners.stats.read(tenant, query)
    assert answer.missing == [MissingEvents(day, 2)]
    assert answer.complete_from == day + DAY
    assert {row.variant: row.impressions for row in answer.rows} == {"a": 3, "b": 3, None: 1}
    *_, last = as_csv(answer).decode().splitlines()
    assert last == f"# 2 events of days before {day + DAY} are not in the event store and not here."
    narrow = msgspec.structs.replace(query, banners=(numbers["banner"][second],))
    answer = await house.banners.stats.read(tenant, narrow)
    assert (answer.missing, len(as_csv(answer).decode().splitlines())) == ([], 2)


async def test_an_answer_from_events_is_as_fresh_as_their_export(
    database: Database, redis: Redis, clickhouse: ClickHouse, tenant: int
) -> None:
    """Counted and not exported: the counters have it, the events have not, and both say so."""
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis, main=1, event_store=EventStoreReader(clickhouse, Bounds())) as house:
        numbers = await shop(house, tenant)
        banner = next(iter(numbers["banner"]))
        away = ClickHouse("http://127.0.0.1:9")
        await away.start()
        await house.consumer(shipping=shipping(database, away, house.journal))
        now = house.clock.now_ms()
        await house.events.accept([Impression(tenant, "i", now, now, banner, variant="a")])
        accepted = house.clock.now()
        await house.drained()

        async def later() -> bool:
            return house.clock.now() > accepted + timedelta(milliseconds=50)

        await eventually(later, timeout=30, what="some time after the event was accepted")
        today = from_ms(now).date()
        events = StatsQuery(today, today + DAY, "total", ("variant",), zone="UTC")
        answer = await house.banners.stats.read(tenant, events)
        assert (answer.rows, answer.missing) == ([], [MissingEvents(today, 1)])
        assert answer.complete_from in (None, today + DAY)  # over midnight, today is a day that is over
        assert answer.fresh_at <= accepted
        counters = await house.banners.stats.read(tenant, StatsQuery(today, today + DAY, "total", zone="UTC"))
        assert counters.totals.impressions == 1
        for consumer in house.consumers:
            await consumer.stop()
        await away.stop()
        await house.consumer(shipping=shipping(database, clickhouse, house.journal))
        await shipped(house)
        before = house.clock.now()
        answer = await house.banners.stats.read(tenant, events)
        assert [(row.variant, row.impressions) for row in answer.rows] == [("a", 1)]
        assert (answer.missing, answer.complete_from) == ([], None)
        assert answer.fresh_at >= before


async def test_freshness_does_not_forget_what_the_journal_has_lost(
    database: Database, redis: Redis, clickhouse: ClickHouse, tenant: int
) -> None:
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis, main=1, event_store=EventStoreReader(clickhouse, Bounds())) as house:
        numbers = await shop(house, tenant)
        away = ClickHouse("http://127.0.0.1:9")
        await away.start()
        consumer = await house.consumer(shipping=shipping(database, away, house.journal))
        now = house.clock.now_ms()
        await house.events.accept([Impression(tenant, "i", now, now, next(iter(numbers["banner"])))])
        await house.drained()
        await consumer.stop()
        await away.stop()
        committed = house.clock.now()
        for lane in house.lane_names():
            await redis.call("DEL", house.keys.tagged("journal", lane))
            await redis.call("DEL", house.keys.tagged("journal", lane, "meta"))

        async def later() -> bool:
            return house.clock.now() > committed + timedelta(milliseconds=50)

        await eventually(later, timeout=30, what="some time after the commit")
        today = from_ms(now).date()
        query = StatsQuery(today, today + DAY, by=("variant",), zone="UTC")
        assert (await house.banners.stats.read(tenant, query)).fresh_at <= committed


async def test_suspected_clicks_obey_every_filter(house: Loop, database: Database, tenant: int) -> None:
    numbers = await shop(house, tenant)
    banner = next(iter(numbers["banner"]))
    (place, place_id), (elsewhere, elsewhere_id) = numbers["placement"].items()
    (one, one_id), (two, two_id) = numbers["campaign"].items()
    now = house.clock.now_ms()
    day = from_ms(now).date()
    about: dict[str, Any] = {"variant": "a", "country": "FR", "device": "mobile", "page": "/sale?x=1"}
    events: list[Event] = [
        Click(tenant, f"c{n}", now, now, banner, place, one, session=f"s{n}", **about) for n in range(81)
    ]
    events += [Impression(tenant, f"i{n}", now - 5, now, banner, elsewhere, two, user=f"u{n}") for n in range(10)]
    events += [Click(tenant, f"k{n}", now, now, banner, elsewhere, two, user=f"u{n}", variant="b") for n in range(10)]
    bot: dict[str, Any] = {"session": "crawler", "marks": ("bot",), **about}
    events += [Click(tenant, f"b{n}", now + n, now, banner, place, one, **bot) for n in range(3)]  # counted apart
    await count(house, events)
    await house.banners.rollup.tenant_day(tenant, day)
    stats = house.banners.stats
    every = StatsQuery(day, day + DAY, "total", zone="UTC")
    marked = [Suspected("no_impression", "click", 81)]

    async def suspected(**filters: Any) -> Any:
        return (await stats.read(tenant, msgspec.structs.replace(every, **filters))).suspected

    assert await suspected() == marked
    assert await suspected(campaigns=(one_id,)) == await suspected(placements=(place_id,)) == marked
    assert await suspected(campaigns=(two_id,)) == await suspected(placements=(elsewhere_id,)) == []
    hits: list[dict[str, Any]] = [
        {"variants": ("a", "z")}, {"countries": ("fr",)}, {"devices": ("MOBILE",)}, {"pages": ("/sale#y",)},
        {"variants": ("a",), "countries": ("FR",), "campaigns": (one_id,)},
    ]  # fmt: skip
    misses: list[dict[str, Any]] = [
        {"variants": ("b",)}, {"countries": ("NP",)}, {"devices": ("Desktop",)}, {"pages": ("/",)},
        {"variants": ("a",), "campaigns": (two_id,)},
    ]  # fmt: skip
    for asked in hits:
        assert await suspected(**asked) == marked, asked
    for asked in misses:
        assert await suspected(**asked) == [], asked
    async with database.tenant(tenant) as tx:
        start, end, by_variant = from_ms(now) - DAY, from_ms(now) + DAY, Chosen(variants=("a",))
        assert await counted(tx, tenant, start, end, by_variant, limit=81) == marked
        assert await counted(tx, tenant, start, end, by_variant, limit=80) is None, "too many to look at"
    async with database.worker() as tx:
        await tx.execute(RAW_GONE, tenant)
    assert await suspected(variants=("a",)) is None, "nobody can say"
    assert await suspected(campaigns=(one_id,)) == marked


async def test_rows_have_names_and_a_table_is_safe_to_open(house: Loop, tenant: int) -> None:
    numbers = await shop(house, tenant)
    banner = next(iter(numbers["banner"]))
    place, campaign = next(iter(numbers["placement"])), next(iter(numbers["campaign"]))
    now = house.clock.now_ms()
    about: dict[str, Any] = {"variant": "-2+3", "country": "=1", "device": "@sum", "page": "=cmd()|'/c calc'!A0"}
    await count(house, [Impression(tenant, "i", now, now, banner, place, campaign, **about)])
    today = from_ms(now).date()
    stats = house.banners.stats
    answer = await stats.read(tenant, StatsQuery(today, today + DAY, "total", DIMENSIONS, zone="UTC"))
    (row,) = answer.rows
    assert (row.banner_name, row.placement_name, row.campaign_name) == ("+1", "Home", "=C")
    assert (row.variant, row.country, row.device, row.page) == ("-2+3", "=1", "@sum", "=cmd()|'/c calc'!A0")
    assert (row.ctr, row.ctr_low, row.ctr_high) == (0.0, 0.0, 0.793451)
    (line,) = csv.DictReader(io.StringIO(as_csv(answer).decode()))
    assert list(line) == [field.name for field in msgspec.structs.fields(StatsRow)]
    texts = ("variant", "country", "device", "page", "banner_name", "campaign_name")
    assert all(line[name] == f"'{getattr(row, name)}" for name in texts)
    counters = await stats.read(tenant, StatsQuery(today, today + DAY, "total", ("banner", "campaign"), zone="UTC"))
    (row,) = counters.rows
    assert (row.banner_name, row.placement_name, row.campaign_name, row.variant) == ("+1", None, "=C", None)


async def test_raw_impressions_have_their_variant(house: Loop, database: Database, tenant: int) -> None:
    numbers = await shop(house, tenant)
    banner, now = next(iter(numbers["banner"])), house.clock.now_ms()
    seen = [Impression(tenant, f"i{variant}", now, now, banner, variant=variant) for variant in ("a", None)]
    await count(house, seen)
    async with database.tenant(tenant) as tx:
        assert [row["variant"] for row in await tx.fetch(VARIANTS_SEEN, tenant)] == ["a", None]


OTHERS_DONE = Sql(
    "update events.ch_batches set done_at = now() where done_at is null and lane <> all ($1::text[])", "others_done"
)
RAW_GONE = Sql("delete from banners.banner_clicks where tenant_id = $1", "raw_gone", "tests")
VARIANTS_SEEN = Sql(
    "select variant from banners.banner_impressions where tenant_id = $1 order by correlation_id desc", "seen", "tests"
)
