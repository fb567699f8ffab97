"""The stages of a sync: raw, daily with its ledger, sellpages. Each is one statement, each may be run again alone.

All of a sync is one transaction: what is seen is always a complete answer of the platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from uuid import UUID

import msgspec

from handbill.adstats import store
from handbill.adstats.model import ZERO, Entity, Kind, Mode, ProviderName, RawStatRow, Written
from handbill.adstats.store import Source
from handbill.infra.postgres import Tx

CHUNK = 5_000
"""Rows to a statement: a long backfill of a large account is several."""


def complete(
    rows: Sequence[RawStatRow], entities: Iterable[Entity], days: Sequence[date], *, silence_is_zero: bool
) -> list[RawStatRow]:
    """What was asked for, and with `silence_is_zero` what was left out. Of a row told twice the last counts."""
    known = {entity.entity_id: entity for entity in entities}
    wanted = set(days)
    told = {(row.entity_id, row.day): row for row in rows if row.entity_id in known and row.day in wanted}
    if not silence_is_zero:
        return list(told.values())
    missing = [
        RawStatRow(entity.entity_id, entity.external_id, day, ZERO)
        for entity in known.values()
        for day in days
        if (entity.entity_id, day) not in told
    ]
    return [*told.values(), *missing]


class DayRules(msgspec.Struct, frozen=True):
    """How days are made of answers: what an answer is, how answers make a day, and each provider's word for sellpages.

    A provider that is not in `ad_sources` stands in the days of sellpages by its own name.
    """

    kind: Kind
    mode: Mode
    ad_sources: Mapping[ProviderName, str] = {}

    @property
    def increments(self) -> bool:
        return self.kind == "DELTA"


async def write(tx: Tx, source: Source, rows: Sequence[RawStatRow], rules: DayRules) -> Written:
    """All stages of one answer. The seller's lock is held to the end of the transaction."""
    await store.lock_seller(tx, source.tenant)
    fresh: list[tuple[UUID, date]] = []
    for start in range(0, len(rows), CHUNK):
        fresh += await store.write_raw(tx, source, rows[start : start + CHUNK], increments=rules.increments)
    # Added up, a day grows with every answer; else only with one that told something new.
    moved = [(row.entity_id, row.day) for row in rows] if rules.mode == "sum" else fresh
    daily = await _daily(tx, source, moved, rules)
    sellpage = 0
    if daily and source.level == "CAMPAIGN":
        sellpage = await store.roll_sellpages(tx, source.tenant, sorted({day for _, day in moved}), rules.ad_sources)
    return Written(len(fresh), daily, sellpage)


async def rebuild(tx: Tx, source: Source, first: date, last: date, rules: DayRules) -> Written:
    """Stages 2 and 3 again from the raw rows that are there; days without any stay as they are."""
    await store.lock_seller(tx, source.tenant)
    days = await store.raw_days(tx, source.tenant, source.connection, source.level, first, last)
    daily = await _daily(tx, source, days, rules)
    dates = sorted({day for _, day in days})
    campaigns = source.level == "CAMPAIGN"
    sellpage = await store.roll_sellpages(tx, source.tenant, dates, rules.ad_sources) if campaigns else 0
    return Written(0, daily, sellpage)


async def _daily(tx: Tx, source: Source, days: Sequence[tuple[UUID, date]], rules: DayRules) -> int:
    add_up = rules.increments or rules.mode == "sum"
    written = 0
    for start in range(0, len(days), CHUNK):
        some = days[start : start + CHUNK]
        written += await store.write_daily(tx, source, some, add_up=add_up, increments=rules.increments)
    return written
