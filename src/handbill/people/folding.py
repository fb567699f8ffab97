"""From what was said to who they are, in small transactions of their own behind the batches.

A folding may be repeated, delayed or done by anybody: it reads what is committed and writes what follows from it. There
are two sorts. *Refreshing* reads the books of people whose ids did not move: many lanes do it at once, each holding the
rows of its own people. *Regrouping* takes new edges in: one at a time for a tenant, since an edge may touch anybody.
An edge that is newer than every edge at its two people is appended; only a late one folds its component anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx, walk_within
from handbill.kit.clock import from_us, to_us
from handbill.kit.errors import NotFound
from handbill.kit.telemetry import metrics
from handbill.kit.turns import Turns
from handbill.people.gather import edge_key
from handbill.people.identity import Group, History, notices
from handbill.people.model import Edge, EdgeKind, EdgeName, Order, Outcome, person_id
from handbill.people.packed import Packed, unpack
from handbill.people.properties import Cell, as_json, merge

S = sqlfiles.load("handbill.people")
PORTION = 500
"""Marks that one transaction takes: a folding is short, and a batch that wants one of its rows waits little."""
_LAST = 2**63 - 1
_MERGED_AT_ONCE = 16
"""Books of one person that are merged before others have their turn. Merging some at a time gives the same book."""

Also = Callable[[Tx], Awaitable[None]]
"""What must stand in the same transaction, such as the audit row of an operator's word."""


class Folder:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.refolds = 0
        """Components that had to be folded anew; everything else was appended."""

    async def fold(self, tenant_id: int) -> int:
        """Fold everything that is marked now; how many marks were taken."""
        return await self._all_refreshed(tenant_id) + await self._all_regrouped(tenant_id)

    async def void(self, tenant_id: int, key: bytes, actor: str, also: Also | None = None) -> None:
        """People become what they would be if this edge had never been said."""
        await self._turn(tenant_id, key, S.void_edge, also, actor)

    async def restore(self, tenant_id: int, key: bytes, also: Also | None = None) -> None:
        await self._turn(tenant_id, key, S.restore_edge, also)

    async def erase(self, tenant_id: int, ids: list[str], first: Also | None = None) -> dict[str, int]:
        """Forget these ids and every word about them; those they were linked with become who they are without them.

        All of a person at once: one by one, the others would move, and be told to ClickHouse, each time. `first` is
        done while nobody tells ClickHouse about moves, and undoes the erasure if it fails.
        """
        async with self._database.worker() as tx:
            await tx.execute(S.lock_moves)
            if first is not None:
                await first(tx)
            await tx.execute(S.lock_tenant, tenant_id)
            members = await _reach(tx, tenant_id, ids)
            await tx.fetch(S.lock_edges, tenant_id, members, [])
            edges = [row[0] for row in await tx.fetch(S.erase_edges, tenant_id, ids)]
            cleared = {
                "people.person_edges": len(edges),
                "people.warnings": await tx.execute(S.drop_warnings, tenant_id, edges),
                "people.properties": await tx.execute(S.erase_books, tenant_id, ids),
                "people.distinct_ids": await tx.execute(S.erase_ids, tenant_id, ids),
                "people.squashing": await tx.execute(S.erase_plans, tenant_id, ids),
                "people.unfolded": await walk_within(tx, S.erase_marks, (tenant_id, ids), (False, 0)),
                "people.followups": await walk_within(tx, S.erase_followups, (tenant_id, ids), (0,)),
            }
            named = sorted(person_id(tenant_id, each) for each in ids)
            cleared["people.persons"] = await tx.execute(S.drop_people, tenant_id, named)
            rest = sorted(set(members) - set(ids))
            if rest:
                await self._anew(tx, tenant_id, rest)
        return cleared

    async def _all_refreshed(self, tenant_id: int) -> int:
        total = 0
        while True:
            async with self._database.worker() as tx:
                taken = await _taken(tx, tenant_id, False, _LAST)
                if taken:
                    await self._refresh(tx, tenant_id, sorted(set(taken)))
            total += len(taken)
            if len(taken) < PORTION:
                return total

    async def _all_regrouped(self, tenant_id: int) -> int:
        """Until no mark is left, also of those that others leave meanwhile.

        Ids that only an edge names are written first, and committed: nobody waits long for them.
        """
        total = 0
        while True:
            async with self._database.worker() as tx:
                marks = await tx.fetch(S.next_marks, tenant_id, PORTION)
                if not marks:
                    return total
                await tx.execute(S.lock_tenant, tenant_id)
                sources = await tx.fetch(S.sources_of, tenant_id, sorted({row["distinct_id"] for row in marks}))
                if sources:
                    rows = [(tenant_id, row[0], person_id(tenant_id, row[0]), row[1]) for row in sources]
                    await tx.execute(S.touch_ids, *_turned(rows))
            async with self._database.worker() as tx:
                await tx.execute(S.lock_tenant, tenant_id)
                taken = await _taken(tx, tenant_id, True, marks[-1]["mark_id"])
                if taken:
                    await self._regroup(tx, tenant_id, sorted(set(taken)))
            total += len(taken)

    async def _turn(self, tenant_id: int, key: bytes, statement: sqlfiles.Sql, also: Also | None, *more: str) -> None:
        async with self._database.worker() as tx:
            await tx.execute(S.lock_tenant, tenant_id)
            sides = await tx.fetchrow(S.sides_of_edge, tenant_id, key)
            members = await _reach(tx, tenant_id, [] if sides is None else list(sides))
            await tx.fetch(S.lock_edges, tenant_id, members, [])
            if await tx.fetchrow(statement, tenant_id, key, *more) is None:
                raise NotFound(
                    "There is no such edge, or it is like that already; nothing was changed.", code="EDGE_NOT_FOUND"
                )
            await self._anew(tx, tenant_id, members)
            if also is not None:
                await also(tx)

    async def _refresh(self, tx: Tx, tenant_id: int, ids: list[str]) -> None:
        """What the people of these ids are like now. Who is being moved is left to a regrouping: nobody waits here."""
        people = [row[0] for row in await tx.fetch(S.lock_free_people_of, tenant_id, ids)]
        known = _known(await tx.fetch(S.members_of, tenant_id, people)) if people else {}
        strays = sorted(set(ids) - known.keys())
        if strays:
            await _mark(tx, tenant_id, strays)
        members = _by_person(known)
        rows = []
        turns = Turns()
        for person, theirs in members.items():
            first = min(known[each].first_seen for each in theirs)
            rows.append((person, *await _contents((known[each].book for each in theirs), first, turns)))
        if rows:
            await tx.execute(S.refresh_people, tenant_id, *_turned(rows))

    async def _regroup(self, tx: Tx, tenant_id: int, ids: list[str]) -> None:
        """New edges, each appended where it is newer than all at its two people; the others fold their component."""
        news = {row["edge_key"]: _edge(row) for row in await tx.fetch(S.edges_unfolded, tenant_id, ids)}
        sides = sorted({*ids, *(side for edge in news.values() for side in (edge.source, edge.target))})
        people = {row[0]: row[1] for row in await tx.fetch(S.people_of_ids, tenant_id, sides)}
        groups = {row["person_id"]: _group(row) for row in await tx.fetch(S.lock_people_of, tenant_id, sides)}
        late = {side for edge in news.values() if _late(edge, people, groups) for side in (edge.source, edge.target)}
        members = set(await _reach(tx, tenant_id, sorted(late)))
        rows = await tx.fetch(S.lock_edges, tenant_id, sorted(members), list(news))
        done = await self._refolded(tx, tenant_id, members, rows)
        told, strays = [], set()
        for row in rows:
            edge = _edge(row)
            if row["edge_key"] not in news or (edge.source in members and edge.target in members):
                continue
            # Its source is not written yet, or it was just now seen to be late: it waits for its next mark.
            if edge.source not in people or edge.target in members or _late(edge, people, groups):
                strays.add(edge.target)
            else:
                told.append((edge, row["voided_at"] is not None))
        if strays:
            await _mark(tx, tenant_id, sorted(strays))
        others = {each: people[each] for each in people.keys() - members}
        appended = await _append(tx, tenant_id, sorted(told, key=lambda each: each[0].sort_key), others, groups)
        # All at once: whoever writes ids locks them in one order.
        await _write_people(
            tx, tenant_id, {**done[0], **appended[0]}, {**done[1], **appended[1]}, {**done[2], **appended[2]}
        )

    async def _anew(self, tx: Tx, tenant_id: int, members: Sequence[str]) -> None:
        rows = await tx.fetch(S.lock_edges, tenant_id, members, [])
        await _write_people(tx, tenant_id, *await self._refolded(tx, tenant_id, set(members), rows))

    async def _refolded(self, tx: Tx, tenant_id: int, members: set[str], found: Sequence[Any]) -> Grouping:
        """Whole components from their first edge on. An edge that leads out of them came after they were read."""
        if not members:
            return {}, {}, {}
        self.refolds += 1
        metrics.PEOPLE_REFOLDS.inc()
        known = _known(await tx.fetch(S.known_ids, tenant_id, sorted(members)))
        rows = [row for row in found if row["source_id"] in members and row["target_id"] in members]
        edges = [_edge(row) for row in rows]
        voided = [edge.name for edge, row in zip(edges, rows, strict=True) if row["voided_at"] is not None]
        history = History(edges, voided)
        stored = {row["edge_key"]: row["outcome"] for row in rows}
        await _write_outcomes(tx, tenant_id, edges, history.folding.outcomes, stored)
        return {each: history.group(each) for each in known}, known, _named_at(edges)


async def _reach(tx: Tx, tenant_id: int, ids: Sequence[str]) -> list[str]:
    """Every id that any edge connects with these, with their people held."""
    if not ids:
        return []
    members = [row[0] for row in await tx.fetch(S.component, tenant_id, ids)]
    await tx.fetch(S.lock_people_of, tenant_id, members)
    return members


async def _mark(tx: Tx, tenant_id: int, ids: Sequence[str]) -> None:
    await tx.execute(S.mark_unfolded, [tenant_id] * len(ids), ids, [True] * len(ids))


async def _taken(tx: Tx, tenant_id: int, regroup: bool, last: int) -> list[str]:
    taken = [row[0] for row in await tx.fetch(S.take_unfolded, tenant_id, regroup, PORTION, last)]
    metrics.PEOPLE_FOLDED.labels("regroup" if regroup else "refresh").inc(len(taken))
    return taken


class Known(msgspec.Struct, frozen=True):
    """One id, as it is stored."""

    person: UUID
    first_seen: int
    book: Packed | None


Grouping = tuple[dict[str, Group], dict[str, Known], dict[str, int]]
"""Ids with the groups they are in by now; as they are stored; and when edges first named them."""


async def _append(
    tx: Tx, tenant_id: int, told: Sequence[tuple[Edge, bool]], people: Mapping[str, UUID], groups: Mapping[UUID, Group]
) -> Grouping:
    """Take edges in that are newer than what their people knew, looking at their people alone."""
    known = _known(await tx.fetch(S.members_of, tenant_id, list(set(people.values())))) if people else {}
    if not known:
        return {}, {}, {}
    start = [(groups.get(person) or Group(theirs[0]), theirs) for person, theirs in _by_person(known).items()]
    history = History.resumed(start, [edge.name for edge, voided in told if voided])
    outcomes = {edge.name: history.append(edge) for edge, _ in told}
    edges = [edge for edge, _ in told]
    await _write_outcomes(tx, tenant_id, edges, outcomes, {edge_key(edge.name): "unfolded" for edge in edges})
    return {each: history.group(each) for each in known}, known, _named_at(edges)


async def _write_outcomes(
    tx: Tx, tenant_id: int, edges: Sequence[Edge], said: Mapping[EdgeName, Outcome], stored: Mapping[bytes, str]
) -> None:
    outcomes = {edge_key(edge.name): said[edge.name] for edge in edges}
    changed = sorted(key for key, outcome in outcomes.items() if stored[key] != outcome)
    if changed:
        await tx.execute(S.set_outcomes, tenant_id, changed, [outcomes[key].value for key in changed])
    warned = {edge_key(each.edge.name): each for each in notices(edges, said)}
    if warned:
        await tx.execute(
            S.set_warnings, tenant_id, list(warned), [each.code.value for each in warned.values()],
            [each.text for each in warned.values()], [from_us(each.edge.at) for each in warned.values()],
        )  # fmt: skip
    calm = [key for key in changed if not outcomes[key].refused]
    if calm:
        await tx.execute(S.drop_warnings, tenant_id, calm)


async def _write_people(
    tx: Tx, tenant_id: int, groups: Mapping[str, Group], known: Mapping[str, Known], named_at: Mapping[str, int]
) -> None:
    if not known:
        return
    seen = {each: min(one.first_seen, named_at.get(each, one.first_seen)) for each, one in known.items()}
    people = {group.name: person_id(tenant_id, group.name) for group in groups.values()}
    now = {each: people[group.name] for each, group in groups.items()}
    moved = sorted(each for each, person in now.items() if known[each].person != person)
    changed = sorted({*moved, *(each for each, one in known.items() if seen[each] < one.first_seen)})
    if changed:
        await tx.execute(S.lock_ids, tenant_id, changed)
        await tx.execute(
            S.move_ids, tenant_id, changed, [now[each] for each in changed], [from_us(seen[each]) for each in changed]
        )
    gone = {one.person for one in known.values()} - set(people.values())
    if gone:
        await tx.execute(S.drop_people, tenant_id, sorted(gone))
    members: dict[UUID, list[str]] = {}
    for each in sorted(known):
        members.setdefault(now[each], []).append(each)
    rows, turns = [], Turns()
    for person, ids in members.items():
        group = groups[ids[0]]
        contents = await _contents((known[each].book for each in ids), min(seen[each] for each in ids), turns)
        rows.append((person, group.name, len(ids), *_moment(group.since), *_moment(group.last), *contents))
    await tx.execute(S.set_people, tenant_id, *_turned(rows))
    if moved:
        gained, lost = {now[each] for each in moved}, {known[each].person for each in moved}
        joined = sorted(each for each in known if now[each] in gained or known[each].person in lost)
        await tx.execute(S.add_followup, tenant_id, joined)


def _late(edge: Edge, people: Mapping[str, UUID], groups: Mapping[UUID, Group]) -> bool:
    found = (groups.get(people[side]) for side in (edge.source, edge.target) if side in people)
    return any(group is not None and group.last is not None and edge.order <= group.last for group in found)


def _known(rows: Iterable[Any]) -> dict[str, Known]:
    return {row[0]: Known(row[1], to_us(row[2]), None if row[3] is None else Packed(row[3], row[4])) for row in rows}


def _by_person(known: Mapping[str, Known]) -> dict[UUID, list[str]]:
    members: dict[UUID, list[str]] = {}
    for each in sorted(known):
        members.setdefault(known[each].person, []).append(each)
    return members


async def _contents(books: Iterable[Packed | None], first_seen: int, turns: Turns) -> tuple[str, object]:
    """A person's properties as JSON, and since when it is known. Others have their turn: a person has many ids."""
    book: dict[str, Cell] = {}
    waiting: list[dict[str, Cell]] = []
    for each in books:
        if each is None:
            continue
        waiting.append(unpack(each))
        if len(waiting) == _MERGED_AT_ONCE:
            book, waiting = merge((book, *waiting)), []
        await turns.count(each.size)
    properties = as_json(merge((book, *waiting))).decode()
    await turns.count(len(properties))
    return properties, from_us(first_seen)


def _named_at(edges: Iterable[Edge]) -> dict[str, int]:
    """When edges first named an id that may not have sent anything itself."""
    found: dict[str, int] = {}
    for edge in edges:
        found[edge.source] = min(edge.at, found.get(edge.source, edge.at))
    return found


def _edge(row: Any) -> Edge:
    order = Order(to_us(row["first_at"]), row["first_sequence"], row["first_event"])
    return Edge(EdgeKind(row["kind"]), row["source_id"], row["target_id"], *order)


def _group(row: Any) -> Group:
    since = _order(row["identified_at"], row["identified_sequence"], row["identified_event"])
    last = _order(row["last_edge_at"], row["last_edge_sequence"], row["last_edge_event"])
    return Group(row["named_by"], row["ids"], since, last)


def _order(at: datetime | None, sequence: int, event: str) -> Order | None:
    return None if at is None else Order(to_us(at), sequence, event)


def _moment(order: Order | None) -> tuple[object, object, object]:
    return (None, 0, None) if order is None else (from_us(order.at), order.sequence, order.event)


def _turned(rows: Sequence[Sequence[object]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
