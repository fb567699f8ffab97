"""The load generator's own ledger: what it sent, counted by its own hand, and the same figures as PostgreSQL has them.

Nothing of the product's counting is used here: buckets, figures and the meaning of a copy are worked out again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from handbill.events.model import BannerEvent, Click, Event, Impression, View
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql

Cell = tuple[int, int, int | None, int | None, datetime, str]
"""(tenant, banner, placement, campaign, quarter of an hour, figure)"""

FIGURES = ("impressions", "clicks", "views", "dismissals", "marked_impressions", "marked_clicks", "marked_views")


def quarter(ms: int) -> datetime:
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return when.replace(minute=when.minute // 15 * 15, second=0, microsecond=0)


@dataclass
class Ledger:
    """`note` every event that was sent, copies too; the first of a (tenant, kind, id) is the one that counts."""

    cells: Counter[Cell] = field(default_factory=Counter)
    rows: Counter[tuple[int, str]] = field(default_factory=Counter)
    copies: Counter[int] = field(default_factory=Counter)
    seen: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    _known: set[tuple[int, str, str]] = field(default_factory=set)

    def note(self, events: Iterable[Event]) -> None:
        for event in events:
            assert isinstance(event, BannerEvent)
            name = (event.tenant, event.kind, event.id)
            if name in self._known:
                self.copies[event.tenant] += 1
                continue
            self._known.add(name)
            self.rows[event.tenant, event.kind] += 1
            for figure in _figures(event):
                self.cells[_cell(event, figure)] += 1
            if isinstance(event, View) and event.counted and event.user:
                self.seen[event.tenant, event.user, event.banner] += 1

    def tenants(self) -> list[int]:
        return sorted({tenant for tenant, _ in self.rows})


def _cell(event: BannerEvent, figure: str) -> Cell:
    return (event.tenant, event.banner, event.placement, event.campaign, quarter(event.at), figure)


def _figures(event: BannerEvent) -> list[str]:
    mark = "marked_" if "bot" in event.marks else ""
    match event:
        case Impression():
            return [f"{mark}impressions"]
        case Click():
            return [f"{mark}clicks"]
        case View(counted=False):
            return []
        case View(dismissed=True) if not mark:
            return ["views", "dismissals"]
    return [f"{mark}views"]


# --- the same, as PostgreSQL has it
STATS = Sql(
    "select tenant_id, banner_id, placement_id, campaign_id, bucket,"
    f" {', '.join(f'sum({name})::int as {name}' for name in FIGURES)}"
    " from banners.banner_stats where tenant_id = any ($1::int[]) group by 1, 2, 3, 4, 5",
    "ledger_stats",
)
ROWS = Sql(
    "select tenant_id, 'impression' as kind, count(*)::int as n from banners.banner_impressions"
    " where tenant_id = any ($1::int[]) group by 1 union all"
    " select tenant_id, 'click', count(*)::int from banners.banner_clicks where tenant_id = any ($1::int[]) group by 1"
    " union all"
    " select tenant_id, 'view', count(*)::int from caps.user_views where tenant_id = any ($1::int[]) group by 1",
    "ledger_rows",
)
TOTALS = Sql(
    "select tenant_id, user_id, banner_id, total::int from caps.cap_totals where tenant_id = any ($1::int[])",
    "ledger_totals",
)
DROPS = Sql(
    "select tenant_id, reason, sum(events)::int as n from events.drops where tenant_id = any ($1::int[]) group by 1, 2",
    "ledger_drops",
)
KEYS = Sql("select count(*)::int from events.event_keys where tenant_id = any ($1::int[])", "ledger_keys")


async def counted(database: Database, tenants: Sequence[int]) -> Counter[Cell]:
    """Every figure of these tenants' stats that is not zero."""
    async with database.worker() as tx:
        rows = await tx.fetch(STATS, list(tenants))
    cells: Counter[Cell] = Counter()
    for row in rows:
        for name in FIGURES:
            if row[name]:
                cells[(*tuple(row)[:5], name)] += row[name]
    return cells


async def dropped(database: Database, tenants: Sequence[int]) -> dict[tuple[int, str], int]:
    async with database.worker() as tx:
        return {(row["tenant_id"], row["reason"]): row["n"] for row in await tx.fetch(DROPS, list(tenants))}


async def check(database: Database, ledger: Ledger, *, copies: bool = True) -> None:
    """The ledger and PostgreSQL agree by banner, bucket and figure; rows, keys, caps' totals and drops, too."""
    tenants = ledger.tenants()
    found = await counted(database, tenants)
    assert found == ledger.cells, _differences(found, ledger.cells)
    async with database.worker() as tx:
        rows = {(row["tenant_id"], row["kind"]): row["n"] for row in await tx.fetch(ROWS, tenants)}
        totals = {tuple(row)[:3]: row["total"] for row in await tx.fetch(TOTALS, tenants)}
        keys = await tx.fetchval(KEYS, tenants)
    assert rows == dict(ledger.rows)
    assert totals == dict(ledger.seen)
    assert keys == sum(ledger.rows.values())
    if copies:
        drops = await dropped(database, tenants)
        by_tenant: Counter[int] = Counter()
        for (tenant, reason), number in drops.items():
            assert reason in ("DUPLICATE", "DUPLICATE_DIFFERENT"), drops
            by_tenant[tenant] += number
        assert by_tenant == ledger.copies


def _differences(found: Counter[Cell], wanted: Counter[Cell]) -> str:
    wrong = {cell: (found[cell], wanted[cell]) for cell in found.keys() | wanted.keys() if found[cell] != wanted[cell]}
    return f"{len(wrong)} cells differ (found, sent): {dict(list(wrong.items())[:10])}"


# --- events to send
@dataclass(frozen=True)
class Shop:
    """One tenant with what it shows, by internal number."""

    tenant: int
    banners: tuple[int, ...]
    placements: tuple[int | None, ...] = (None,)


def events(
    dice: random.Random, shops: Sequence[Shop], number: int, now_ms: int, *, days: int = 2, word: str = "e"
) -> list[BannerEvent]:
    """`number` different events over the last `days`: all kinds, some marked, some views that do not count."""
    made: list[BannerEvent] = []
    for n in range(number):
        shop = dice.choice(shops)
        at = now_ms - dice.randrange(days * 86_400_000)
        head = (shop.tenant, f"{word}{n}", at, now_ms, dice.choice(shop.banners), dice.choice(shop.placements))
        user = dice.choice((None, *(f"u{k}" for k in range(12))))
        session = dice.choice((None, f"s{dice.randrange(9)}"))
        marks = ("bot",) if dice.random() < 0.1 else ()
        kind = dice.random()
        if kind < 0.5:
            made.append(Impression(*head, user=user, session=session, marks=marks, page="/p", referrer="/r"))
        elif kind < 0.7:
            made.append(Click(*head, user=user, session=session, marks=marks, destination="/d"))
        else:
            watched = dice.randrange(9_000)
            away = dice.random() < 0.2
            made.append(
                View(*head, user=user or "somebody", session=session, marks=marks, device_id=f"d{dice.randrange(3)}",
                     duration_ms=watched, dismissed=away, counted=away or watched >= 3_000)
            )  # fmt: skip
    return made
