"""What a batch writes about people, inside the pipeline's transaction. Who they are is worked out afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.clock import from_ms
from handbill.kit.turns import Turns
from handbill.people.definitions import Name, Of, Seen
from handbill.people.gather import Gathered, Owner, edge_key
from handbill.people.model import Edge, person_id
from handbill.people.packed import Packed, pack, unpack
from handbill.people.properties import Cell, as_json, merge

S = sqlfiles.load("handbill.people")


class Change(msgspec.Struct, frozen=True):
    """A stored book as it must be now. Without `words` only its moments moved."""

    owner: Owner
    words: bytes | None
    moments: bytes


class Books(msgspec.Struct, frozen=True):
    """Ids whose book was written: those that had none, and those whose person may be another now."""

    fresh: set[Owner]
    changed: set[Owner]


async def write(tx: Tx, gathered: Gathered, asked: Mapping[Owner, int] | None = None) -> set[int]:
    """Everything the batch says, and a mark on every id whose person may be another now.

    `asked` are the ids that may be new; without it all of them. Whoever says something is asked about in any case: an
    id that was erased and is back must not have a book or an edge without being there itself. The books come before
    the question: an erasure that is about to take one is waited for. The answer is the tenants with something to fold.
    """
    edges = await _new_edges(tx, gathered)
    sides = {(tenant, side) for tenant, edge in edges for side in (edge.source, edge.target)}
    ids = gathered.ids
    if asked is not None:
        telling = gathered.books.keys() | (sides & ids.keys())
        ids = {**asked, **{owner: ids[owner] for owner in telling}}
    books = await _write_books(tx, gathered.books, sides)
    absent, earlier = await _news_of_ids(tx, ids)
    if edges:
        await tx.execute(S.add_edges, *_columns([_edge_row(tenant, edge) for tenant, edge in edges], 7))
    born = await _touch_ids(tx, absent | earlier, ids)
    alone = {owner for owner in born - sides if owner not in gathered.books or owner in books.fresh}
    marks = dict.fromkeys((books.changed | absent | earlier) - alone, False)
    marks.update(dict.fromkeys(((tenant, edge.target) for tenant, edge in edges), True))
    marks.update(dict.fromkeys(born & sides, True))
    if marks:
        await tx.execute(S.mark_unfolded, *_columns([(*owner, marks[owner]) for owner in sorted(marks)], 3))
    if alone:
        await _write_alone(tx, sorted(alone), gathered, ids)
    return {tenant for tenant, _ in marks}


async def known_among(tx: Tx, tenant_id: int, ids: Sequence[str]) -> set[str]:
    return {row[0] for row in await tx.fetch(S.known_among, tenant_id, ids)}


async def add_edge(tx: Tx, tenant_id: int, edge: Edge) -> None:
    """One edge between ids that are known, with its marks, in the order in which a batch writes them."""
    sides = sorted({edge.source, edge.target})
    await tx.fetch(S.lock_books, [tenant_id] * len(sides), sides)
    await tx.execute(S.mark_unfolded, *_columns([(tenant_id, side, True) for side in sides], 3))
    await tx.execute(S.add_edges, *_columns([_edge_row(tenant_id, edge)], 7))


async def write_definitions(tx: Tx, seen: Mapping[Name, Seen]) -> set[int]:
    """Last of all in a batch: the rows that many lanes want are held for the shortest time.

    The answer is the tenants for whom a name is new.
    """
    rows: dict[Of, list[tuple[object, ...]]] = {of: [] for of in Of}
    for name, each in seen.items():
        rows[name.of].append(_definition(name, each))
    told = (
        (S.add_event_definitions, rows[Of.EVENT], 4),
        (S.add_property_definitions, rows[Of.PROPERTY] + rows[Of.PERSON_PROPERTY], 6),
        (S.add_event_properties, rows[Of.EVENT_PROPERTY], 6),
    )
    fresh: set[int] = set()
    for statement, each_rows, width in told:
        if each_rows:
            found = await tx.fetch(statement, *_columns(each_rows, width))
            fresh.update(row["tenant_id"] for row in found if row["fresh"])
    return fresh


async def _write_books(tx: Tx, books: Mapping[Owner, Mapping[str, Cell]], sides: set[Owner]) -> Books:
    """New books first, then the stored ones, locked in order: two batches may wait here, but never in a circle.

    The sides of new edges are locked too. So of two batches, one that links an id and one that moves its moments, the
    later knows of the earlier, and marks the id.
    """
    fresh: set[Owner] = set()
    if books:
        turns = Turns()
        rows: list[tuple[object, ...]] = []
        for owner in sorted(books):
            packed = pack(books[owner])
            rows.append((*owner, packed.words, packed.moments))
            await turns.count(packed.size, len(books[owner]))
        fresh = {(row[0], row[1]) for row in await tx.fetch(S.insert_books, *_columns(rows, 4))}
    changes = await _changes(tx, sorted((books.keys() | sides) - fresh), books)
    if not changes:
        return Books(fresh, fresh)
    rows = [(*change.owner, change.words, change.moments) for change in changes]
    await tx.execute(S.update_books, *_columns(rows, 4))
    # Alone, a person is changed by words only. Together, a newer moment can make one id's word win.
    quiet = sorted(change.owner for change in changes if change.words is None)
    linked = {(row[0], row[1]) for row in await tx.fetch(S.linked_ids, *_columns(quiet, 2))} if quiet else set()
    return Books(fresh, fresh | linked | {change.owner for change in changes if change.words is not None})


async def _changes(tx: Tx, owners: Sequence[Owner], books: Mapping[Owner, Mapping[str, Cell]]) -> list[Change]:
    """Which stored books say something else now. All of them stay locked until the batch commits."""
    changes, turns = [], Turns()
    for row in await tx.fetch(S.lock_books, *_columns(owners, 2)) if owners else ():
        owner, known = owners[row["place"] - 1], Packed(row["words"], row["moments"])
        if owner not in books:
            continue
        now = pack(merge((unpack(known), books[owner])))
        await turns.count(now.size, len(books[owner]))
        if now != known:
            changes.append(Change(owner, None if now.words == known.words else now.words, now.moments))
    return changes


async def _news_of_ids(tx: Tx, ids: Mapping[Owner, int]) -> tuple[set[Owner], set[Owner]]:
    """Ids that are not stored, and stored ones that were seen earlier than that."""
    absent: set[Owner] = set()
    earlier: set[Owner] = set()
    if ids:
        owners = list(ids)
        rows = [(*owner, from_ms(ids[owner])) for owner in owners]
        for row in await tx.fetch(S.news_of_ids, *_columns(rows, 3)):
            (earlier if row["known"] else absent).add(owners[row["place"] - 1])
    return absent, earlier


async def _touch_ids(tx: Tx, owners: set[Owner], ids: Mapping[Owner, int]) -> set[Owner]:
    """Those that came into the world with this batch; another may have been quicker with some of them."""
    if not owners:
        return set()
    rows = [(*owner, person_id(*owner), from_ms(ids[owner])) for owner in sorted(owners)]
    return {(row[0], row[1]) for row in await tx.fetch(S.touch_ids, *_columns(rows, 4)) if row["born"]}


async def _write_alone(tx: Tx, alone: Sequence[Owner], gathered: Gathered, ids: Mapping[Owner, int]) -> None:
    rows, turns = [], Turns()
    for owner in alone:
        properties = as_json(gathered.books.get(owner, {})).decode()
        rows.append((owner[0], person_id(*owner), owner[1], properties, from_ms(ids[owner])))
        await turns.count(len(properties))
    await tx.execute(S.insert_alone, *_columns(rows, 5))


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
