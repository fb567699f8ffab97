"""Random banner events, and banner statistics counted from them the plain way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from handbill.banners.model import NewCampaign
from handbill.banners.stats_model import Dimension, Interval, StatsAnswer, StatsQuery, StatsRow
from handbill.banners.tally import FIGURES, figures_of
from handbill.events.model import BannerEvent, Click, Event, Impression, View
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.insights.store import Bounds, EventStoreReader
from tests.kit.loop import Loop, loop
from tests.kit.shipping import shipped, shipping

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


@asynccontextmanager
async def shipping_loop(database: Database, redis: Redis, clickhouse: ClickHouse) -> AsyncIterator[Loop]:
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
        return event.device.lower() if event.device else None
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
