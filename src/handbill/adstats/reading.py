"""Reading: any range, level, entity and sellpage; now or as it was believed on a day. Sums and ratios agree everywhere.

Days are those of the ad accounts: a platform's daily figure cannot be cut at another zone's midnight, and the answer
says when that matters. Currencies are never added together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import structs

from handbill.adstats import cadence, rounding, store
from handbill.adstats.funnel import FIGURES
from handbill.adstats.model import Level
from handbill.infra.postgres import Database, Tx
from handbill.kit.errors import Fault, Invalid

MOST_ROWS = 10_000
MOST_DAYS = 800
Dimension = Literal["day", "entity", "sellpage"]
S = store.S


class StatsQuery(msgspec.Struct, frozen=True):
    """`start` and `end` are days of the accounts, half-open. `entities` match themselves and all that is below them."""

    start: date
    end: date
    level: Level = "CAMPAIGN"
    by: tuple[Dimension, ...] = ("day",)
    entities: tuple[UUID, ...] = ()
    sellpages: tuple[UUID, ...] = ()
    connection: UUID | None = None
    zone: str | None = None
    as_of: date | None = None


class StatsRow(msgspec.Struct, frozen=True):
    """One point. Ratios are of this row's own sums, six places, half up; `ctr` is a fraction, not a percent."""

    currency: str
    spend: Decimal
    impressions: int
    link_clicks: int
    content_views: int
    add_to_cart: int
    checkout_initiated: int
    purchases: int
    purchase_value: Decimal
    cpm: Decimal
    ctr: Decimal
    cpc: Decimal
    cost_per_purchase: Decimal
    roas: Decimal
    day: date | None = None
    """The day, in the time zone of the account; null where days were not asked for."""
    entity_id: UUID | None = None
    """The id of the ad campaign, ad set or ad; null where it was not asked for."""
    entity_name: str | None = None
    """What the ad campaign, ad set or ad is called; null where it was not asked for."""
    sellpage_id: UUID | None = None
    """The id of the sellpage; null where it was not asked for, or there is none."""
    sellpage_name: str | None = None
    """The name of the sellpage; null where it was not asked for, or there is none."""
    factor: Decimal = Decimal(1)
    fetched_at: datetime | None = None


class SellpageRow(StatsRow, frozen=True, kw_only=True):
    """A sellpage's point, with how many came from one step to the next; 0 where there was nobody to come."""

    ad_source: str | None = None
    """META for Meta and the mock, its own word for every other platform; null in a total."""
    cr1: Decimal
    """Clicks on links divided by impressions; 0 without impressions."""
    cr2: Decimal
    """Purchases divided by clicks on links; 0 without clicks."""
    cr3: Decimal
    """Purchases divided by content views; 0 without content views."""


class StatsAnswer(msgspec.Struct, frozen=True):
    """`totals` has one row for each currency. `exact_zone`: whether the zone asked for is that of all accounts."""

    rows: list[StatsRow]
    totals: list[StatsRow]
    zones: list[str]
    exact_zone: bool
    mode: str
    as_of: date | None = None
    """The UTC day at whose end the figures stood so; null: as they stand now."""


class SellpageAnswer(msgspec.Struct, frozen=True):
    """As a StatsAnswer; `exact_zone`: whether all accounts keep the same days."""

    rows: list[SellpageRow]
    totals: list[SellpageRow]
    zones: list[str]
    exact_zone: bool
    """Whether all accounts keep the same days."""
    mode: str


class Drift(msgspec.Struct, frozen=True):
    """A day as it was believed when it was over and as it stands, and on how many UTC days that changed."""

    day: date
    currency: str
    first_spend: Decimal
    """The spend as it stood at the end of the day."""
    spend: Decimal
    """The spend as it stands now, as a decimal string."""
    first_purchases: int
    """The purchases as they stood at the end of the day."""
    purchases: int
    """The purchases as they stand now."""
    first_purchase_value: Decimal
    """The value of purchases as it stood at the end of the day."""
    purchase_value: Decimal
    """The value of purchases as it stands now, as a decimal string."""
    beliefs: int
    """On how many UTC days the figures changed, the first one included."""
    first_on: date
    """The first of these UTC days."""
    last_on: date
    """The last of these UTC days."""


class Belief(msgspec.Struct, frozen=True):
    believed_on: date
    """The UTC day at whose end the figures stood so."""
    believed_at: datetime
    """When they last changed on that day."""
    currency: str
    spend: Decimal
    impressions: int
    link_clicks: int
    content_views: int
    add_to_cart: int
    checkout_initiated: int
    purchases: int
    purchase_value: Decimal


class Told(msgspec.Struct, frozen=True):
    """An answer of the platform: first and last time it said so, and how often."""

    sync_id: UUID
    """The id of the sync that first had this answer."""
    fetched_at: datetime
    """When the platform first answered so."""
    last_seen_at: datetime
    """When the platform last answered so."""
    seen: int
    """How often the platform answered so."""
    spend: Decimal
    impressions: int
    link_clicks: int
    content_views: int
    add_to_cart: int
    checkout_initiated: int
    purchases: int
    purchase_value: Decimal


class Explained(msgspec.Struct, frozen=True):
    """Why a day's figure is what it is: what the platform told, what we made of it, what we believed before."""

    entity_id: UUID
    entity_name: str
    level: Level
    day: date
    mode: str
    now: StatsRow | None
    """The figures as they stand; null where there are none."""
    told: list[Told]
    """Every answer of the platform that differed."""
    beliefs: list[Belief]
    """The figures as they stood at the end of each day on which they changed."""
    literal_spend: Decimal
    """What adding up every answer would claim."""
    literal_factor: Decimal
    """How many times that sum is the spend of the newest answer."""


class Reading:
    def __init__(self, database: Database, mode: str) -> None:
        self._database = database
        self._mode = mode

    async def stats(self, tenant: int, query: StatsQuery) -> StatsAnswer:
        check_range(query.start, query.end)
        if query.zone is not None:
            cadence.check_zone(query.zone, "zone")
        args: list[Any] = [
            tenant, query.start, query.end, query.level, list(query.entities) or None, "day" in query.by,
            "entity" in query.by, "sellpage" in query.by, list(query.sellpages) or None, query.connection,
            MOST_ROWS + 1,
        ]  # fmt: skip
        async with self._database.tenant(tenant) as tx:
            if query.as_of is None:
                found = await tx.fetch(S.series, *args)
            else:
                found = await tx.fetch(S.series_as_of, *args, query.as_of)
            too_many(found)
            names = await self._names(tx, tenant, found)
            zones = [row["time_zone"] for row in await tx.fetch(S.zones, tenant, query.connection)]
        rows = [point(row, names) for row in found]
        exact = query.zone is None or all(zone == query.zone for zone in zones)
        return StatsAnswer(rows, totals(rows), zones, exact, self._mode, query.as_of)

    async def sellpages(
        self, tenant: int, start: date, end: date, by_day: bool, sellpages: Sequence[UUID]
    ) -> SellpageAnswer:
        check_range(start, end)
        async with self._database.tenant(tenant) as tx:
            found = await tx.fetch(
                S.sellpage_series, tenant, start, end, by_day, list(sellpages) or None, MOST_ROWS + 1
            )
            too_many(found)
            names = await self._names(tx, tenant, found)
            zones = [row["time_zone"] for row in await tx.fetch(S.zones, tenant, None)]
        rows = [_converted(point(row, names), row["ad_source"]) for row in found]
        sums = [_converted(row) for row in totals(rows)]
        return SellpageAnswer(rows, sums, zones, len(zones) < 2, self._mode)

    async def drift(self, tenant: int, start: date, end: date, level: Level) -> list[Drift]:
        check_range(start, end)
        async with self._database.tenant(tenant) as tx:
            accounts = await store.list_connections(tx, tenant, store.FIRST, MOST_ROWS)
            zones = {one.time_zone for one in accounts}
            late = {zone: cadence.late_spans(start, end, zone) for zone in zones}
            spans = [(one.connection_id, *span) for one in accounts for span in late[one.time_zone]]
            columns = [list(column) for column in zip(*spans, strict=True)] or [[], [], []]
            found = await tx.fetch(S.drift, tenant, start, end, level, *columns)
        return [msgspec.convert(dict(row), Drift) for row in found]

    async def explain(self, tenant: int, entity: UUID, name: str, level: Level, day: date) -> Explained:
        if day == date.max:
            raise Invalid("That day is too late.", faults=[Fault("day", "a day that has a next one")])
        async with self._database.tenant(tenant) as tx:
            told = [msgspec.convert(dict(row), Told) for row in await tx.fetch(S.answers, tenant, entity, day)]
            beliefs = [msgspec.convert(dict(row), Belief) for row in await tx.fetch(S.beliefs, tenant, entity, day)]
        end = date.fromordinal(day.toordinal() + 1)
        now = await self.stats(tenant, StatsQuery(day, end, level, ("day", "entity"), (entity,)))
        row = next((one for one in now.rows if one.entity_id == entity), None)
        literal = sum((one.spend * one.seen for one in told), Decimal(0))
        newest = max(told, key=lambda one: (one.last_seen_at, one.fetched_at, one.sync_id), default=None)
        factor = rounding.ratio(literal, newest.spend) if newest is not None and newest.spend else Decimal(1)
        return Explained(entity, name, level, day, self._mode, row, told, beliefs, literal, factor)

    async def campaigns(self, tenant: int, ids: Sequence[UUID]) -> list[Any]:
        async with self._database.tenant(tenant) as tx:
            return await tx.fetch(S.campaigns_for_reports, tenant, list(ids))

    async def _names(self, tx: Tx, tenant: int, rows: Sequence[Any]) -> dict[UUID, str]:
        wanted = {row["entity_id"] for row in rows if row.get("entity_id")} if rows else set()
        pages = {row["sellpage_id"] for row in rows if row["sellpage_id"]} if rows else set()
        names = dict(await tx.fetch(S.names_of, tenant, list(wanted))) if wanted else {}
        return {**names, **(dict(await tx.fetch(S.sellpage_names, tenant, list(pages))) if pages else {})}


def point(row: Mapping[str, Any], names: Mapping[UUID, str]) -> StatsRow:
    entity, page = row.get("entity_id"), row.get("sellpage_id")
    return derived(
        {name: row[name] for name in FIGURES},
        row["currency"],
        day=row["day"],
        entity_id=entity,
        entity_name=names.get(entity) if entity else None,
        sellpage_id=page,
        sellpage_name=names.get(page) if page else None,
        factor=row.get("factor") or Decimal(1),
        fetched_at=row.get("fetched_at"),
    )


def derived(sums: Mapping[str, Any], currency: str, **rest: Any) -> StatsRow:
    """A row with its ratios, from sums alone."""
    spend, impressions, clicks = sums["spend"], sums["impressions"], sums["link_clicks"]
    return StatsRow(
        currency=currency,
        **sums,
        cpm=rounding.ratio(spend * 1000, impressions),
        ctr=rounding.ratio(clicks, impressions),
        cpc=rounding.ratio(spend, clicks),
        cost_per_purchase=rounding.ratio(spend, sums["purchases"]),
        roas=rounding.ratio(sums["purchase_value"], spend),
        **rest,
    )


def _converted(row: StatsRow, ad_source: str | None = None) -> SellpageRow:
    return SellpageRow(
        **structs.asdict(row),
        ad_source=ad_source,
        cr1=rounding.ratio(row.link_clicks, row.impressions),
        cr2=rounding.ratio(row.purchases, row.link_clicks),
        cr3=rounding.ratio(row.purchases, row.content_views),
    )


def totals(rows: Sequence[StatsRow]) -> list[StatsRow]:
    """One sum for each currency, its ratios of the sums."""
    groups: dict[str, list[StatsRow]] = defaultdict(list)
    for row in rows:
        groups[row.currency].append(row)
    return [
        derived(
            {name: sum(getattr(row, name) for row in group) for name in FIGURES},
            currency,
            factor=max(row.factor for row in group),
            fetched_at=max((row.fetched_at for row in group if row.fetched_at), default=None),
        )
        for currency, group in sorted(groups.items())
    ]


def check_range(start: date, end: date) -> None:
    if start >= end or (end - start).days > MOST_DAYS:
        raise Invalid(
            "The range is empty or too long.",
            faults=[Fault("to", f"must be later than from, by at most {MOST_DAYS} days")],
        )


def too_many(rows: Sequence[Any]) -> None:
    if len(rows) > MOST_ROWS:
        raise Invalid(
            f"More than {MOST_ROWS} rows; ask for a shorter range, fewer entities or fewer dimensions.",
            code="TOO_MANY_ROWS",
        )
