"""What a batch writes about people, inside the pipeline's transaction. Who they are is worked out afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.clock import from_ms, from_us, to_us
from handbill.kit.turns import Turns
from handbill.people.corrections import correct_first_sighting
from handbill.people.definitions import Name, Of, Seen
from handbill.people.gather import Gathered, Owner, edge_key
from handbill.people.model import Edge, EdgeName, Order, person_id
from handbill.people.packed import Packed, pack, unpack
from handbill.people.properties import Book, as_json, merge

S = sqlfiles.load("handbill.people")
Edges = dict[tuple[int, EdgeName], Edge]


class Change(msgspec.Struct, frozen=True):
    """A stored book as it must be now. Without `words` only its moments moved, which may still change a value."""

    owner: Owner
    words: bytes | None
    moments: bytes
    changes_value: bool


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
    corrected = await _corrected_edges(tx, gathered)
    edges = _first_of([*await _new_edges(tx, gathered), *corrected])
    sides = {(tenant, side) for (tenant, name) in edges for side in (name.source, name.target)}
    ids = gathered.ids
    if asked is not None:
        telling = gathered.books.keys() | (sides & ids.keys())
        ids = {**asked, **{owner: ids[owner] for owner in telling}}
    books = await _write_books(tx, gathered, sides)
    absent, earlier = await _news_of_ids(tx, ids)
    if edges:
        edges = await _add_edges(tx, edges, {(tenant, edge.name) for tenant, edge in corrected}, gathered)
    born = await _touch_ids(tx, absent | earlier, ids)
    alone = {owner for owner in born - sides if owner not in gathered.books or owner in books.fresh}
    marks = dict.fromkeys((books.changed | absent | earlier) - alone, False)
    marks.update(dict.fromkeys(((tenant, name.target) for tenant, name in edges), True))
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
    await tx.execute(S.add_edges, *_columns([_edge_row(tenant_id, edge)], 8))


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


async def _write_books(tx: Tx, gathered: Gathered, sides: set[Owner]) -> Books:
    """New books first, then the stored ones, locked in order: two batches may wait here, but never in a circle.

    The sides of new edges are locked too. So of two batches, one that links an id and one that moves its moments, the
    later knows of the earlier, and marks the id.
    """
    books, fresh = gathered.books, set[Owner]()
    if books:
        turns = Turns()
        rows: list[tuple[object, ...]] = []
        for owner in sorted(books):
            packed = pack(books[owner])
            rows.append((*owner, packed.words, packed.moments))
            await turns.count(packed.size, len(books[owner]))
        fresh = {(row[0], row[1]) for row in await tx.fetch(S.insert_books, *_columns(rows, 4))}
    changes = await _changes(tx, sorted((books.keys() | gathered.corrections.keys() | sides) - fresh), gathered)
    if not changes:
        return Books(fresh, fresh)
    rows = [(*change.owner, change.words, change.moments) for change in changes]
    await tx.execute(S.update_books, *_columns(rows, 4))
    # Alone, a person is changed by its values only. Together, a newer moment can make one id's word win.
    quiet = sorted(change.owner for change in changes if not change.changes_value)
    linked = {(row[0], row[1]) for row in await tx.fetch(S.linked_ids, *_columns(quiet, 2))} if quiet else set()
    return Books(fresh, fresh | linked | {change.owner for change in changes if change.changes_value})


async def _changes(tx: Tx, owners: Sequence[Owner], gathered: Gathered) -> list[Change]:
    """Which stored books say something else now. All of them stay locked until the batch commits."""
    changes, turns = [], Turns()
    for row in await tx.fetch(S.lock_books, *_columns(owners, 2)) if owners else ():
        owner, stored = owners[row["place"] - 1], Packed(row["words"], row["moments"])
        if owner not in gathered.books and owner not in gathered.corrections:
            continue
        before = unpack(stored)
        after = gathered.corrections[owner].apply(before) if owner in gathered.corrections else before
        if owner in gathered.books:
            after = merge((after, gathered.books[owner]))
        await turns.count(stored.size, len(after))
        if after != before:
            changes.append(_change(owner, stored, before, after))
    return changes


def _change(owner: Owner, stored: Packed, before: Book, after: Book) -> Change:
    now = pack(after)
    if now.words != stored.words:
        return Change(owner, now.words, now.moments, True)
    # The words are the same, but a default may have come to stand before an unset, or behind it.
    unset = [name for name, cell in after.items() if cell.latest is not None and cell.latest.unset]
    return Change(owner, None, now.moments, any(after[name].value != before[name].value for name in unset))


async def _news_of_ids(tx: Tx, ids: Mapping[Owner, int]) -> tuple[set[Owner], set[Owner]]:
    """Ids that are not stored, and stored ones that were seen earlier than that."""
    absent: set[Owner] = set()
    earlier: set[Owner] = set()
    if ids:
        owners = list(ids)
        rows = [(*owner, from_us(ids[owner])) for owner in owners]
        for row in await tx.fetch(S.news_of_ids, *_columns(rows, 3)):
            (earlier if row["known"] else absent).add(owners[row["place"] - 1])
    return absent, earlier


async def _touch_ids(tx: Tx, owners: set[Owner], ids: Mapping[Owner, int]) -> set[Owner]:
    """Those that came into the world with this batch; another may have been quicker with some of them."""
    if not owners:
        return set()
    rows = [(*owner, person_id(*owner), from_us(ids[owner])) for owner in sorted(owners)]
    return {(row[0], row[1]) for row in await tx.fetch(S.touch_ids, *_columns(rows, 4)) if row["born"]}


async def _write_alone(tx: Tx, alone: Sequence[Owner], gathered: Gathered, ids: Mapping[Owner, int]) -> None:
    rows, turns = [], Turns()
    for owner in alone:
        properties = as_json(gathered.books.get(owner, {})).decode()
        rows.append((owner[0], person_id(*owner), owner[1], properties, from_us(ids[owner])))
        await turns.count(len(properties))
    await tx.execute(S.insert_alone, *_columns(rows, 5))


async def _new_edges(tx: Tx, gathered: Gathered) -> list[tuple[int, Edge]]:
    """Edges never seen, or seen earlier than known. What browsers repeat on every page ends here."""
    told = [(tenant, edge) for (tenant, _), edge in gathered.edges.items()]
    if not told:
        return []
    rows = [(tenant, edge_key(edge.name), from_us(edge.at), edge.sequence, edge.event) for tenant, edge in told]
    return [told[row["place"] - 1] for row in await tx.fetch(S.new_edges, *_columns(rows, 5))]


async def _corrected_edges(tx: Tx, gathered: Gathered) -> list[tuple[int, Edge]]:
    """Stored edges whose first sighting comes earlier by a copy's smaller sequence."""
    names = list(gathered.corrected_edges)
    if not names:
        return []
    corrected = []
    for row in await tx.fetch(S.first_sightings, *_columns([(tenant, edge_key(name)) for tenant, name in names], 2)):
        tenant, name = names[row["place"] - 1]
        stored = Order(to_us(row["first_at"]), row["first_sequence"], row["first_event"])
        first = correct_first_sighting(stored, gathered.corrected_edges[tenant, name])
        if first != stored:
            corrected.append((tenant, Edge(name.kind, name.source, name.target, *first)))
    return corrected


def _first_of(edges: Iterable[tuple[int, Edge]]) -> Edges:
    """The first sighting of each edge."""
    first: Edges = {}
    for tenant, edge in edges:
        before = first.get((tenant, edge.name), edge)
        first[tenant, edge.name] = min(before, edge, key=lambda each: each.order)
    return first


async def _add_edges(tx: Tx, edges: Edges, corrected: Set[tuple[int, EdgeName]], gathered: Gathered) -> Edges:
    """Write edges, all in one statement and one order; those that are written.

    An edge that was stored when its correction was worked out, and is inserted now, was erased in between. It goes
    again, so that a copy brings nobody back; if the batch says it itself, it is that new edge.
    """
    rows = await tx.fetch(S.add_edges, *_columns([_edge_row(tenant, edge) for (tenant, _), edge in edges.items()], 8))
    born = {(row["tenant_id"], row["edge_key"]) for row in rows if row["born"]}
    erased = [(tenant, name) for tenant, name in corrected if (tenant, edge_key(name)) in born]
    if not erased:
        return edges
    await tx.execute(S.drop_edges, *_columns([(tenant, edge_key(name)) for tenant, name in erased], 2))
    again = {each: gathered.edges[each] for each in erased if each in gathered.edges}
    if again:
        await tx.execute(S.add_edges, *_columns([_edge_row(tenant, edge) for (tenant, _), edge in again.items()], 8))
    return {**{each: edge for each, edge in edges.items() if each not in erased}, **again}


def _edge_row(tenant_id: int, edge: Edge) -> tuple[object, ...]:
    return (
        tenant_id, edge_key(edge.name), edge.kind.value, edge.source, edge.target, from_us(edge.at), edge.sequence,
        edge.event,
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
