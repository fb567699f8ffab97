"""Statistics by variant, country, device and page: every combination equals the counters and a plain count."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from random import Random
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from handbill.banners.event_filters import Chosen
from handbill.banners.event_stats import EventStats
from handbill.banners.model import NewCampaign
from handbill.banners.stats import as_csv
from handbill.banners.stats_model import Dimension, Interval, MissingEvents, StatsAnswer, StatsQuery, StatsRow
from handbill.banners.suspicion import Suspected, counted
from handbill.banners.tally import FIGURES, figures_of
from handbill.banners.uniques import Unidentified
from handbill.events.forgetting import Forgetting
from handbill.events.model import BannerEvent, CapturedEvent, Click, Event, Impression, View
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.insights.query_limiter import QueryLimits
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.clock import from_ms, to_ms
from handbill.kit.errors import Busy, Invalid, Throttled
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.shipping import hasty, shipped, shipping
from tests.kit.waiting import eventually

DAY = timedelta(days=1)
DIMENSIONS: tuple[Dimension, ...] = ("banner", "placement", "campaign", "variant", "country", "device", "page")
INTERVALS: tuple[Interval, ...] = ("bucket", "hour", "day", "total")
ZONES = ("Europe/Paris", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC")
PAGES = (
    None, "", "?only=query", "https://shop.example/", "https://shop.example/?utm=1#top", "https://shop.example/#a?b",
    "https://shop.example/ünï 日本?x", "=cmd()|'/c calc'!A0", "/path", "https://shop.example/" + "é" * 700 + "?q",
)  # fmt: skip
VARIANTS = (None, "a", "b", "B.2_x-1")
COUNTRIES = (None, "FR", "fr", "NP")
DEVICES = (None, "mobile", "Mobile", "DESKTOP", "smart TV")
MARKS = ((), (), (), ("bot",), ("unverified",), ("bot", "historical"))


@pytest.fixture
async def house(database: Database, redis: Redis, clickhouse: ClickHouse) -> AsyncIterator[Loop]:
    """A loop that ships to ClickHouse, and whose statistics read from there."""
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis, event_store=EventStoreReader(clickhouse, Bounds())) as made:
        await made.consumer(shipping=shipping(database, clickhouse, made.journal))
        yield made


async def count(house: Loop, events: Sequence[Event]) -> None:
    for begin in range(0, len(events), 200):
        await house.events.accept(events[begin : begin + 200])
    await house.drained()
    await shipped(house)


async def shop(house: Loop, tenant: int) -> dict[str, dict[int, UUID]]:
    """Banners, placements and campaigns: public ids by number."""
    for name in ("=C", "D"):
        await house.banners.editor.create_campaign(tenant, NewCampaign(name=name), actor="t")
    for name in ("+1", "Two"):
        await house.banner(tenant, name=name)
        await house.placement(tenant)
    found = house.catalogue.tenant(tenant)
    return {
        "banner": {each.id: each.public_id for each in found.banners},
        "placement": {number: each.public_id for number, each in found.placements.items()},
        "campaign": {number: each.public_id for number, each in found.campaigns.items()},
    }


def random_events(rng: Random, tenant: int, numbers: dict[str, dict[int, UUID]], now: int, n: int) -> list[BannerEvent]:
    made: list[BannerEvent] = []
    for place in range(n):
        head: dict[str, Any] = {
            "tenant": tenant,
            "id": f"e{place}",
            "at": now - rng.randrange(3 * 86_400_000),
            "received": now,
            "banner": rng.choice(list(numbers["banner"])),
            "placement": rng.choice([None, *numbers["placement"]]),
            "campaign": rng.choice([None, *numbers["campaign"]]),
            "user": rng.choice([None, "ann", "bob"]),
            "country": rng.choice(COUNTRIES),
            "device": rng.choice(DEVICES),
            "page": rng.choice(PAGES),
            "marks": rng.choice(MARKS),
            "variant": rng.choice(VARIANTS),
        }
        kind = rng.randrange(3)
        if kind == 0:
            made.append(Impression(**head))
        elif kind == 1:
            made.append(Click(**head, destination="/"))
        else:
            head["user"] = head["user"] or "cyd"
            made.append(View(**head, dismissed=rng.random() < 0.3, counted=rng.random() < 0.8))
    return made


def said(event: BannerEvent, name: Dimension, numbers: dict[str, dict[int, UUID]]) -> Any:
    """What a row says of this event, worked out the plain way."""
    if name in numbers:
        number = getattr(event, name)
        return None if number is None else numbers[name][number]
    if name == "page":
        return (event.page or "").partition("?")[0].partition("#")[0][:500] or None
    if name == "country":
        return event.country.upper() if event.country else None
    if name == "device":
        return event.device.capitalize() if event.device else None
    return event.variant


def beginning(at_ms: int, interval: Interval, zone: ZoneInfo) -> datetime | None:
    bucket = datetime.fromtimestamp(at_ms // 900_000 * 900, UTC)
    if interval == "total":
        return None
    if interval == "bucket":
        return bucket
    there = bucket.astimezone(zone)
    if interval == "hour":
        return bucket - timedelta(minutes=there.minute)
    return datetime(there.year, there.month, there.day, tzinfo=zone).astimezone(UTC)


Cells = dict[tuple[Any, ...], tuple[int, ...]]


def plain(
    events: Sequence[BannerEvent], query: StatsQuery, zone: ZoneInfo, numbers: dict[str, dict[int, UUID]]
) -> Cells:
    cells: dict[tuple[Any, ...], dict[str, int]] = {}
    wanted: dict[Dimension, set[Any]] = {
        "banner": set(query.banners),
        "variant": set(query.variants),
        "country": {each.upper() for each in query.countries},
        "device": {each.lower() for each in query.devices},
        "page": {each.partition("?")[0].partition("#")[0][:500] for each in query.pages},
    }
    for event in {event.id: event for event in events}.values():
        day = datetime.fromtimestamp(event.at // 900_000 * 900, UTC).astimezone(zone).date()
        values = {name: said(event, name, numbers) for name in DIMENSIONS}
        spelled = {**values, "device": values["device"] and values["device"].lower()}
        if not query.start <= day < query.end or any(
            some and spelled[name] not in some for name, some in wanted.items()
        ):
            continue
        for figure in figures_of(event):
            key = (beginning(event.at, query.interval, zone), *(values[name] for name in query.by))
            cell = cells.setdefault(key, dict.fromkeys(FIGURES, 0))
            cell[figure] += 1
    return {key: tuple(cell.values()) for key, cell in cells.items()}


def cells_of(answer: StatsAnswer, by: Sequence[Dimension]) -> Cells:
    rows = {(row.at, *(value_of(row, name) for name in by)): figures(row) for row in answer.rows}
    assert len(rows) == len(answer.rows), "a combination came twice"
    return rows


def value_of(row: StatsRow, name: Dimension) -> Any:
    return getattr(row, f"{name}_id" if name in ("banner", "placement", "campaign") else name)


def figures(row: StatsRow) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in FIGURES)


def summed(cells: Cells, width: int) -> Cells:
    """The cells with only the first so many parts of their keys."""
    sums: Cells = {}
    for key, values in cells.items():
        known = sums.get(key[:width], (0,) * len(values))
        sums[key[:width]] = tuple(map(sum, zip(known, values, strict=True)))
    return sums


async def test_every_combination_equals_the_counters_and_a_plain_count(house: Loop, tenant: int) -> None:
    rng = Random(tenant)
    numbers = await shop(house, tenant)
    events = random_events(rng, tenant, numbers, house.clock.now_ms(), 300)
    await count(house, [*events, *rng.sample(events, 60)])
    zone = ZoneInfo(rng.choice(ZONES))
    today = house.clock.now().astimezone(zone).date()
    numbered = DIMENSIONS[:3]

    async def check(by: tuple[Dimension, ...], counters: StatsAnswer, first: StatsQuery) -> None:
        query = msgspec.structs.replace(first, by=by)
        answer = await house.banners.stats.read(tenant, query)
        found = cells_of(answer, by)
        assert found == plain(events, query, zone, numbers), query
        assert (answer.source, answer.missing, answer.complete_from) == ("events", [], None)
        assert summed(found, 1 + len(first.by)) == cells_of(counters, first.by), query
        assert figures(answer.totals) == figures(counters.totals)

    for size in range(len(numbered) + 1):
        for first_by in combinations(numbered, size):
            query = StatsQuery(today - 3 * DAY, today + DAY, rng.choice(INTERVALS), first_by, zone=str(zone))
            counters = await house.banners.stats.read(tenant, query)
            assert counters.source == "counters"
            assert cells_of(counters, first_by) == plain(events, query, zone, numbers)
            more = [some for width in range(1, 5) for some in combinations(DIMENSIONS[3:], width)]
            for begin in range(0, len(more), 4):
                await asyncio.gather(
                    *(check((*first_by, *some), counters, query) for some in more[begin : begin + 4])
                )  # fmt: skip


async def test_an_hour_that_comes_twice_is_two_and_a_day_begins_with_its_first_midnight(
    house: Loop, tenant: int
) -> None:
    numbers = await shop(house, tenant)
    banner, now = next(iter(numbers["banner"])), house.clock.now_ms()
    paris = [datetime(2025, 10, 26, hour, 30, tzinfo=UTC) for hour in (0, 1, 1)]  # 02:30 summer time, and 02:30 again
    havana = [datetime(2025, 11, 2, hour, 30, tzinfo=UTC) for hour in (4, 5)]  # 00:30, and 00:30 again
    await count(
        house,
        [
            Impression(tenant, f"i{n}", to_ms(at), now, banner, marks=("historical",), country="FR")
            for n, at in enumerate((*paris, *havana))
        ],
    )
    for by in ((), ("country",)):
        hours = StatsQuery(date(2025, 10, 26), date(2025, 10, 27), "hour", by, zone="Europe/Paris")  # type: ignore[arg-type] # a literal
        rows = (await house.banners.stats.read(tenant, hours)).rows
        assert [(row.at, row.impressions) for row in rows] == [
            (paris[0] - timedelta(minutes=30), 1), (paris[1] - timedelta(minutes=30), 2),
        ]  # fmt: skip
        days = StatsQuery(date(2025, 11, 2), date(2025, 11, 3), "day", by, zone="America/Havana")  # type: ignore[arg-type] # as above
        rows = (await house.banners.stats.read(tenant, days)).rows
        assert [(row.at, row.impressions) for row in rows] == [(datetime(2025, 11, 2, 4, tzinfo=UTC), 2)]


async def test_filters_compare_in_one_spelling(house: Loop, tenant: int) -> None:
    rng = Random(7)
    numbers = await shop(house, tenant)
    events = random_events(rng, tenant, numbers, house.clock.now_ms(), 400)
    await count(house, events)
    today = house.clock.now().date()
    filters: dict[str, tuple[Any, ...]] = {
        "banners": (next(iter(numbers["banner"].values())),),
        "variants": ("a", "B.2_x-1"),
        "countries": ("fr",),
        "devices": ("MOBILE", "Smart tv"),
        "pages": ("https://shop.example/?other=2", "https://shop.example/" + "é" * 600, "/path#x"),
    }
    for size in range(1, 4):
        for names in combinations(filters, size):
            asked = {name: filters[name] for name in names}
            query = StatsQuery(today - 4 * DAY, today + DAY, "day", ("device", "page"), zone="UTC", **asked)
            answer = await house.banners.stats.read(tenant, query)
            assert cells_of(answer, query.by) == plain(events, query, ZoneInfo("UTC"), numbers), names
    nothing = await house.banners.stats.read(tenant, StatsQuery(today - DAY, today + DAY, variants=("none",)))
    assert (nothing.rows, nothing.source, nothing.totals.ctr_low) == ([], "events", None)
    narrow = StatsQuery(today - 4 * DAY, today + DAY, variants=("a",), uniques=True)
    people = (await house.banners.stats.read(tenant, narrow)).uniques
    assert people is not None
    theirs = [
        event for event in events
        if event.variant == "a" and figures_of(event) and "bot" not in event.marks and type(event) is Impression
    ]  # fmt: skip
    assert people.impressions == len({event.user for event in theirs} - {None})
    assert people.unidentified is not None
    assert people.unidentified.impressions == sum(event.user is None for event in theirs) > 0


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
    narrow = msgspec.structs.replace(query, banners=(numbers["banner"][second],))
    assert (await house.banners.stats.read(tenant, narrow)).missing == []


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
