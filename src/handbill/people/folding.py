"""From what was said to who they are: the marked ids' components are folded, in small transactions of their own.

A folding may be repeated, delayed or done by anybody: it reads what is committed and writes what follows from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import from_ms, to_ms
from handbill.kit.errors import NotFound
from handbill.people.gather import edge_key
from handbill.people.identity import Group, History, notices
from handbill.people.model import Edge, EdgeKind, EdgeName, Order, person_id
from handbill.people.packed import Packed, unpack
from handbill.people.properties import as_json, merge

S = sqlfiles.load("handbill.people")
PORTION = 500
"""Marked ids that one transaction takes: a folding is short, and a batch that wants one of its rows waits little."""


class Folder:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def fold(self, tenant_id: int) -> int:
        """Fold everything that is marked now; how many marks were taken."""
        total = 0
        while True:
            async with self._database.worker() as tx:
                await tx.execute(S.lock_tenant, tenant_id)
                taken = [row[0] for row in await tx.fetch(S.take_unfolded, tenant_id, PORTION)]
                if taken:
                    await _fold(tx, tenant_id, taken)
            total += len(taken)
            if len(taken) < PORTION:
                return total

    async def void(self, tenant_id: int, name: EdgeName, actor: str) -> None:
        """People become what they would be if this edge had never been said."""
        await self._turn(tenant_id, name, S.void_edge, actor)

    async def restore(self, tenant_id: int, name: EdgeName) -> None:
        await self._turn(tenant_id, name, S.restore_edge)

    async def _turn(self, tenant_id: int, name: EdgeName, statement: sqlfiles.Sql, *more: str) -> None:
        async with self._database.worker() as tx:
            await tx.execute(S.lock_tenant, tenant_id)
            row = await tx.fetchrow(statement, tenant_id, edge_key(name), *more)
            if row is None:
                raise NotFound("There is no such edge, or it is like that already; nothing was changed.")
            await _fold(tx, tenant_id, [row[0], row[1]])


class Known(msgspec.Struct, frozen=True):
    """One id of the components, as it is stored."""

    person: Any
    first_seen: int
    book: Packed | None


async def _fold(tx: Tx, tenant_id: int, ids: Sequence[str]) -> None:
    known = {
        row[0]: Known(row[1], to_ms(row[2]), None if row[3] is None else Packed(row[3], row[4]))
        for row in await tx.fetch(S.component, tenant_id, ids)
    }
    rows = await tx.fetch(S.edges_of, tenant_id, list(known))
    edges = [Edge(EdgeKind(row["kind"]), row["source_id"], row["target_id"], to_ms(row["first_at"]), row["first_event"])
             for row in rows]  # fmt: skip
    voided = [edge.name for edge, row in zip(edges, rows, strict=True) if row["voided_at"] is not None]
    history = History(edges, voided)
    await _write_outcomes(tx, tenant_id, history, {row["edge_key"]: row["outcome"] for row in rows})
    await _write_people(tx, tenant_id, history, known)


async def _write_outcomes(tx: Tx, tenant_id: int, history: History, stored: Mapping[bytes, str]) -> None:
    folding = history.folding
    outcomes = {edge_key(name): outcome for name, outcome in folding.outcomes.items()}
    changed = sorted(key for key, outcome in outcomes.items() if stored[key] != outcome)
    if changed:
        await tx.execute(S.set_outcomes, tenant_id, changed, [outcomes[key].value for key in changed])
    warned = {edge_key(each.edge.name): each for each in notices(history.edges, folding)}
    if warned:
        await tx.execute(
            S.set_warnings, tenant_id, list(warned), [each.code.value for each in warned.values()],
            [each.text for each in warned.values()], [from_ms(each.edge.at) for each in warned.values()],
        )  # fmt: skip
    calm = [key for key in changed if not outcomes[key].refused and stored[key].startswith("refused")]
    if calm:
        await tx.execute(S.drop_warnings, tenant_id, calm)


async def _write_people(tx: Tx, tenant_id: int, history: History, known: Mapping[str, Known]) -> None:
    members: dict[str, list[str]] = defaultdict(list)
    for distinct_id in sorted(known):
        members[history.group(distinct_id).name].append(distinct_id)
    people = {name: person_id(tenant_id, name) for name in members}
    now = {each: people[name] for name, ids in members.items() for each in ids}
    moved = sorted(each for each, person in now.items() if known[each].person != person)
    if moved:
        await tx.execute(S.lock_ids, tenant_id, moved)
        await tx.execute(S.move_ids, tenant_id, moved, [now[each] for each in moved])
    gone = {person_id(tenant_id, each) for each in known} - set(people.values())
    if gone:
        await tx.execute(S.drop_people, tenant_id, sorted(gone))
    rows = [
        _person_row(people[name], history.group(name), [known[each] for each in ids]) for name, ids in members.items()
    ]
    await tx.execute(S.set_people, tenant_id, *map(list, zip(*rows, strict=True)))


def _person_row(person: object, group: Group, ids: Sequence[Known]) -> tuple[object, ...]:
    book = merge(unpack(each.book) for each in ids if each.book is not None)
    created = from_ms(min(each.first_seen for each in ids))
    return (person, group.name, len(ids), *_moment(group.since), *_moment(group.last), as_json(book).decode(), created)


def _moment(order: Order | None) -> tuple[object, object]:
    return (None, None) if order is None else (from_ms(order.at), order.event)
