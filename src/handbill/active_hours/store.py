"""One method a statement: what each id did, week by week."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from handbill.active_hours.gather import Key
from handbill.active_hours.model import Activity, Profile, profile_of
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.clock import from_ms, to_ms
from handbill.kit.turns import Turns

S = sqlfiles.load("handbill.active_hours")
ROWS_OF_PERSON = 1_000
"""Rows of one person that are read: ten weeks of a hundred ids that are all active."""


async def add(tx: Tx, activities: Mapping[Key, Activity], now: datetime) -> None:
    """`activities` stand in the order of their keys, so that two batches never wait for each other in a circle."""
    rows = [(*key, *_columns(activity)) for key, activity in activities.items()]
    await tx.execute(S.add_activity, *map(list, zip(*rows, strict=True)), now)


async def profiles(tx: Tx, tenant_id: int, people: Sequence[UUID]) -> dict[UUID, Profile]:
    """Of those of these people of whom anything is counted."""
    found: dict[UUID, list[Activity]] = {}
    zone, turns = "", Turns()
    for row in await tx.fetch(S.activity_of_people, tenant_id, list(people), ROWS_OF_PERSON):
        zone = row["tenant_zone"]
        found.setdefault(row["person_id"], []).append(_activity(row))
    made = {}
    for person, rows in found.items():
        if (profile := profile_of(rows, zone)) is not None:
            made[person] = profile
        await turns.count(0, len(rows))
    return made


async def take_changed(tx: Tx, tenant_id: int, before: datetime, limit: int) -> list[str]:
    """Ids that did something, and have been waiting since before that moment."""
    return [row[0] for row in await tx.fetch(S.take_changed, tenant_id, before, limit)]


async def tenants_with_activity(tx: Tx) -> list[int]:
    return [row[0] for row in await tx.fetch(S.tenants_with_activity)]


async def drop(tx: Tx, tenant_id: int, before_week: int, limit: int) -> list[str]:
    """The ids of the dropped rows, one for each row."""
    return [row[0] for row in await tx.fetch(S.drop_activity, tenant_id, before_week, limit)]


async def erase(tx: Tx, tenant_id: int, ids: Sequence[str]) -> int:
    return await tx.execute(S.erase_activity, tenant_id, list(ids))


async def export(tx: Tx, tenant_id: int, distinct_id: str, limit: int) -> list[dict[str, Any]]:
    return [dict(row) for row in await tx.fetch(S.export_activity, tenant_id, distinct_id, limit)]


def _columns(each: Activity) -> tuple[object, ...]:
    counts = "{" + ",".join(map(str, each.counts)) + "}"
    zone_at = from_ms(each.zone_ms) if each.zone is not None else None
    zone_key = each.zone_key if each.zone is not None else None
    return (counts, from_ms(each.first_ms), from_ms(each.last_ms), each.zone, zone_at, zone_key)


def _activity(row: Any) -> Activity:
    first_ms, last_ms = to_ms(row["first_at"]), to_ms(row["last_at"])
    if row["zone"] is None:
        return Activity(row["week"], row["counts"], first_ms, last_ms)
    return Activity(
        row["week"], row["counts"], first_ms, last_ms, row["zone"], to_ms(row["zone_at"]), bytes(row["zone_key"])
    )
