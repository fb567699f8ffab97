"""One method a statement: segments, their needs, their members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.segments.model import Member, Preview, Segment
from handbill.segments.rules import Person

S = sqlfiles.load("handbill.segments")
FIRST = UUID(int=0)
_json = msgspec.json.Encoder(decimal_format="number")


async def create(
    tx: Tx, tenant_id: int, public_id: UUID, name: str, description: str, rule: dict[str, Any], at: datetime
) -> Segment:
    row = await tx.fetchrow(S.create_segment, tenant_id, public_id, name, description, _text(rule), at)
    return _segment(row)


async def count(tx: Tx, tenant_id: int) -> int:
    return int(await tx.fetchval(S.count_segments, tenant_id))


async def find(tx: Tx, tenant_id: int, public_id: UUID, *, lock: bool = False) -> Segment | None:
    row = await tx.fetchrow(S.lock_segment if lock else S.find_segment, tenant_id, public_id)
    return None if row is None else _segment(row)


async def listed(tx: Tx, tenant_id: int, after: int, limit: int, search: str | None) -> list[Segment]:
    return [_segment(row) for row in await tx.fetch(S.list_segments, tenant_id, after, limit, search)]


async def everyone(tx: Tx, tenant_id: int) -> list[Segment]:
    """All of a tenant's segments."""
    return [_segment(row) for row in await tx.fetch(S.all_segments, tenant_id)]


async def update(tx: Tx, segment: Segment, at: datetime) -> Segment:
    row = await tx.fetchrow(
        S.update_segment, segment.tenant_id, segment.id, segment.name, segment.description, _text(segment.rule), at
    )
    return _segment(row)


async def delete(tx: Tx, segment: Segment, at: datetime) -> None:
    await tx.execute(S.delete_segment, segment.tenant_id, segment.id, at)


async def walk_again(tx: Tx, tenant_id: int, ids: Sequence[int]) -> None:
    await tx.execute(S.walk_again, tenant_id, list(ids))


async def sweep_from(tx: Tx, tenant_id: int, ids: Sequence[int], at: datetime | None) -> None:
    await tx.execute(S.set_swept, tenant_id, list(ids), at)


async def watch(tx: Tx, tenant_id: int) -> None:
    """From now on changes of this tenant's people leave marks; and nobody else changes its rules meanwhile."""
    await tx.execute(S.watch_tenant, tenant_id)
    await tx.fetchval(S.lock_rules, tenant_id)


async def known(tx: Tx, tenant_id: int, publics: Iterable[UUID]) -> set[UUID]:
    return {row[0] for row in await tx.fetch(S.known_segments, tenant_id, list(publics))}


async def needs(tx: Tx, tenant_id: int) -> dict[str, bool]:
    """What banners ask for, and whether every person's value has it."""
    return {row[0]: row[1] for row in await tx.fetch(S.read_needs, tenant_id)}


async def set_needs(tx: Tx, tenant_id: int, wanted: Iterable[str]) -> None:
    listed = sorted(wanted)
    await tx.execute(S.drop_needs, tenant_id, listed)
    await tx.execute(S.add_needs, tenant_id, listed)


async def members(tx: Tx, segment: Segment, after: UUID, limit: int) -> list[Member]:
    rows = await tx.fetch(S.members, segment.tenant_id, segment.id, after, limit)
    return [Member(row[0], row[1], msgspec.json.decode(row[2]), row[3]) for row in rows]


async def inside(tx: Tx, segment: Segment, distinct_ids: Sequence[str]) -> set[str]:
    rows = await tx.fetch(S.those_inside, segment.tenant_id, segment.id, list(distinct_ids))
    return {row[0] for row in rows}


async def person(tx: Tx, tenant_id: int, distinct_id: str) -> tuple[UUID, Person] | None:
    row = await tx.fetchrow(S.person_of, tenant_id, distinct_id)
    if row is None:
        return None
    return row["person_id"], Person(msgspec.json.decode(row["properties"]), row["created"], frozenset(row["ids"]))


async def preview(tx: Tx, tenant_id: int, path: str, now_ms: int, limit: int, *, ids: bool) -> Preview:
    """The rule held against up to `limit` people; where there are more, the size is in proportion."""
    row = await tx.fetchrow(S.preview, tenant_id, limit, path, vars_of(now_ms), ids)
    assert row is not None
    sample = msgspec.json.decode(row["sample"] or "[]", type=list[Member])
    looked, size = row["looked_at"], row["size"]
    if looked < limit:
        return Preview(size, True, looked, sample)
    share = row["last"].int / (1 << 128)  # of all possible ids, how many were passed
    return Preview(round(size / share) if share else size, False, looked, sample)


def vars_of(now_ms: int) -> str:
    """What a jsonpath finds under `$now`."""
    return f'{{"now": {now_ms}}}'


def _text(rule: dict[str, Any]) -> str:
    return _json.encode(rule).decode()


def _segment(row: Any) -> Segment:
    return Segment(
        row["id"], row["tenant_id"], row["public_id"], row["name"], row["description"],
        msgspec.json.decode(row["rule"]), row["size"], row["walk"], row["walked"], row["version"], row["created_at"],
        row["updated_at"], row["evaluated_at"],
    )  # fmt: skip
