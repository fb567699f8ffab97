"""What a batch writes about people, inside the pipeline's transaction. Who they are is worked out afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.clock import from_ms
from handbill.people.definitions import Name, Of, Seen
from handbill.people.gather import Gathered, Owner, edge_key
from handbill.people.model import Edge, person_id
from handbill.people.packed import Packed, pack, unpack
from handbill.people.properties import Cell, merge

S = sqlfiles.load("handbill.people")


class Change(msgspec.Struct, frozen=True):
    """A stored book as it must be now. Without `words` only its moments moved."""

    owner: Owner
    words: bytes | None
    moments: bytes


async def write(tx: Tx, gathered: Gathered) -> None:
    """Everything the batch says, and a mark on every id whose person may be another now."""
    edges = await _new_edges(tx, gathered)
    sides = {(tenant, side) for tenant, edge in edges for side in (edge.source, edge.target)}
    unfolded = await _write_books(tx, gathered.books, sides)
    ids = await _new_ids(tx, gathered)
    unfolded |= ids | {(tenant, edge.target) for tenant, edge in edges}
    if unfolded:
        await tx.execute(S.mark_unfolded, *_columns(sorted(unfolded), 2))
    if edges:
        await tx.execute(S.add_edges, *_columns([_edge_row(tenant, edge) for tenant, edge in edges], 7))
    if ids:
        rows = [(*owner, person_id(*owner), from_ms(gathered.ids[owner])) for owner in sorted(ids)]
        await tx.execute(S.touch_ids, *_columns(rows, 4))


async def write_definitions(tx: Tx, seen: Mapping[Name, Seen]) -> None:
    """Last of all in a batch: the rows that many lanes want are held for the shortest time."""
    rows: dict[Of, list[tuple[object, ...]]] = {of: [] for of in Of}
    for name, each in seen.items():
        rows[name.of].append(_definition(name, each))
    if rows[Of.EVENT]:
        await tx.execute(S.add_event_definitions, *_columns(rows[Of.EVENT], 4))
    properties = rows[Of.PROPERTY] + rows[Of.PERSON_PROPERTY]
    if properties:
        await tx.execute(S.add_property_definitions, *_columns(properties, 6))
    if rows[Of.EVENT_PROPERTY]:
        await tx.execute(S.add_event_properties, *_columns(rows[Of.EVENT_PROPERTY], 6))


async def _write_books(tx: Tx, books: Mapping[Owner, Mapping[str, Cell]], sides: set[Owner]) -> set[Owner]:
    """New books first, then the stored ones, locked in order: two batches may wait here, but never in a circle.

    The sides of new edges are locked too. So of two batches, one that links an id and one that moves its moments, the
    later knows of the earlier, and marks the id.
    """
    fresh: set[Owner] = set()
    if books:
        packed = [(owner, pack(books[owner])) for owner in sorted(books)]
        rows: list[tuple[object, ...]] = [(*owner, each.words, each.moments) for owner, each in packed]
        fresh = {(row[0], row[1]) for row in await tx.fetch(S.insert_books, *_columns(rows, 4))}
    changes = await _changes(tx, sorted((books.keys() | sides) - fresh), books)
    if not changes:
        return fresh
    rows = [(*change.owner, change.words, change.moments) for change in changes]
    await tx.execute(S.update_books, *_columns(rows, 4))
    # Alone, a person is changed by words only. Together, a newer moment can make one id's word win.
    quiet = sorted(change.owner for change in changes if change.words is None)
    linked = {(row[0], row[1]) for row in await tx.fetch(S.linked_ids, *_columns(quiet, 2))} if quiet else set()
    return fresh | linked | {change.owner for change in changes if change.words is not None}


async def _changes(tx: Tx, owners: Sequence[Owner], books: Mapping[Owner, Mapping[str, Cell]]) -> list[Change]:
    """Which stored books say something else now. All of them stay locked until the batch commits."""
    changes = []
    for row in await tx.fetch(S.lock_books, *_columns(owners, 2)) if owners else ():
        owner, known = owners[row["place"] - 1], Packed(row["words"], row["moments"])
        if owner not in books:
            continue
        now = pack(merge((unpack(known), books[owner])))
        if now != known:
            changes.append(Change(owner, None if now.words == known.words else now.words, now.moments))
    return changes


async def _new_ids(tx: Tx, gathered: Gathered) -> set[Owner]:
    if not gathered.ids:
        return set()
    rows = [(*owner, from_ms(at)) for owner, at in gathered.ids.items()]
    return {(row[0], row[1]) for row in await tx.fetch(S.new_ids, *_columns(rows, 3))}


async def _new_edges(tx: Tx, gathered: Gathered) -> list[tuple[int, Edge]]:
    """Edges never seen, or seen earlier than known. What browsers repeat on every page ends here."""
    told = [(tenant, edge) for (tenant, _), edge in gathered.edges.items()]
    if not told:
        return []
    rows = [(tenant, edge_key(edge.name), from_ms(edge.at), edge.event) for tenant, edge in told]
    return [told[row["place"] - 1] for row in await tx.fetch(S.new_edges, *_columns(rows, 4))]


def _edge_row(tenant_id: int, edge: Edge) -> tuple[object, ...]:
    return (
        tenant_id, edge_key(edge.name), edge.kind.value, edge.source, edge.target, from_ms(edge.at), edge.event,
    )  # fmt: skip


def _definition(name: Name, seen: Seen) -> tuple[object, ...]:
    times = (from_ms(seen.first), from_ms(seen.last))
    if name.of is Of.EVENT:
        return (name.tenant_id, name.event, *times)
    if name.of is Of.EVENT_PROPERTY:
        return (name.tenant_id, name.event, name.property, seen.type.value, *times)
    kind = "person" if name.of is Of.PERSON_PROPERTY else "event"
    return (name.tenant_id, kind, name.property, seen.type.value, *times)


def _columns(rows: Iterable[Sequence[object]], width: int) -> list[list[object]]:
    """Rows turned into one array for each column, as unnest takes them."""
    columns: list[list[object]] = [[] for _ in range(width)]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns
