"""Statistics by variant, country, device and page: every combination equals the counters and a plain count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from random import Random
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest

from handbill.banners.stats_model import Dimension, StatsAnswer, StatsQuery
from handbill.banners.tally import figures_of
from handbill.events.model import Impression
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.clock import to_ms
from tests.conftest import MakeTenant
from tests.kit.banner_stats import (
    DAY,
    DIMENSIONS,
    INTERVALS,
    ZONES,
    cells_of,
    count,
    figures,
    plain,
    random_events,
    shipping_loop,
    shop,
    summed,
)  # fmt: skip
from tests.kit.loop import Loop


@pytest.fixture
async def house(database: Database, redis: Redis, clickhouse: ClickHouse) -> AsyncIterator[Loop]:
    async with shipping_loop(database, redis, clickhouse) as made:
        yield made


async def test_every_combination_equals_the_counters_and_a_plain_count(
    house: Loop, tenant: int, make_tenant: MakeTenant
) -> None:
    rng = Random(tenant)
    numbers = await shop(house, tenant)
    events = random_events(rng, tenant, numbers, house.clock.now_ms(), 300)
    await count(house, [*events, *rng.sample(events, 60)])
    await count(
        house, random_events(rng, await make_tenant(), numbers, house.clock.now_ms(), 50)
    )  # of the same numbers
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
        hours = StatsQuery(date(2025, 10, 26), date(2025, 10, 27), "hour", by, zone="Europe/Paris")
        rows = (await house.banners.stats.read(tenant, hours)).rows
        assert [(row.at, row.impressions) for row in rows] == [
            (paris[0] - timedelta(minutes=30), 1), (paris[1] - timedelta(minutes=30), 2),
        ]  # fmt: skip
        days = StatsQuery(date(2025, 11, 2), date(2025, 11, 3), "day", by, zone="America/Havana")
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
            asked: dict[str, Any] = {name: filters[name] for name in names}
            query = StatsQuery(today - 4 * DAY, today + DAY, "day", ("device", "page"), zone="UTC", **asked)
            answer = await house.banners.stats.read(tenant, query)
            assert cells_of(answer, query.by) == plain(events, query, ZoneInfo("UTC"), numbers), names
    nothing = await house.banners.stats.read(tenant, StatsQuery(today - DAY, today + DAY, variants=("none",)))
    assert (nothing.rows, nothing.source, nothing.totals.ctr_low) == ([], "events", None)
    unknown = await house.banners.stats.read(
        tenant, StatsQuery(today - DAY, today + DAY, by=("page",), banners=(uuid4(),))
    )
    assert (unknown.rows, unknown.missing) == ([], [])
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
