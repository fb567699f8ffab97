"""What is asked about people: one method a statement, always behind the tenant's wall."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.people.model import Definition, EdgeKind, EdgeView, IdView, PersonView, WarningView
from handbill.people.packed import Packed, unpack
from handbill.people.properties import Word

S = sqlfiles.load("handbill.people")
LOOKED_AT = 20_000
"""People looked at for one page of a list that is narrowed by a property."""

After = tuple[datetime, UUID]


class PeopleReader:
    async def person(self, tx: Tx, tenant_id: int, person: UUID) -> PersonView | None:
        row = await tx.fetchrow(S.person, tenant_id, person)
        return None if row is None else _person(row)

    async def person_of(self, tx: Tx, tenant_id: int, distinct_id: str) -> UUID | None:
        found: UUID | None = await tx.fetchval(S.person_of_id, tenant_id, distinct_id)
        return found

    async def ids(self, tx: Tx, tenant_id: int, person: UUID) -> list[IdView]:
        return [IdView(row[0], row[1]) for row in await tx.fetch(S.ids_of_person, tenant_id, person)]

    async def edges(self, tx: Tx, tenant_id: int, person: UUID) -> list[EdgeView]:
        return [_edge(row) for row in await tx.fetch(S.edges_of_person, tenant_id, person)]

    async def edge(self, tx: Tx, tenant_id: int, key: bytes) -> EdgeView | None:
        row = await tx.fetchrow(S.edge, tenant_id, key)
        return None if row is None else _edge(row)

    async def page(
        self, tx: Tx, tenant_id: int, after: After | None, like: str | None, limit: int
    ) -> tuple[list[PersonView], After | None]:
        """People, newest first, and where the next page begins; with `like` those whose properties contain it."""
        at, person = after or (None, None)
        most = LOOKED_AT if like is not None else limit + 1
        rows = await tx.fetch(S.people_page, tenant_id, at, person, like, most, limit + 1)
        wanted = None if like is None else msgspec.json.decode(like)
        found = [each for each in map(_person, rows[:limit]) if wanted is None or _has(each.properties, wanted)]
        if not rows:
            return [], None
        last = rows[min(len(rows), limit) - 1]
        whole = len(rows) <= limit and last["looked"] < most
        return found, None if whole else (last["created_at"], last["person_id"])

    async def warnings(
        self, tx: Tx, tenant_id: int, after: tuple[datetime, bytes] | None, limit: int
    ) -> list[WarningView]:
        at, key = after or (None, None)
        return [
            WarningView(
                row["edge_key"].hex(), row["code"], row["detail"], row["at"], EdgeKind(row["kind"]), row["source_id"],
                row["target_id"],
            )
            for row in await tx.fetch(S.warnings_page, tenant_id, at, key, limit)
        ]  # fmt: skip

    async def events(self, tx: Tx, tenant_id: int, after: str, limit: int) -> list[Definition]:
        return _definitions(await tx.fetch(S.event_definitions, tenant_id, after, limit))

    async def properties(self, tx: Tx, tenant_id: int, kind: str, after: str, limit: int) -> list[Definition]:
        return _definitions(await tx.fetch(S.property_definitions, tenant_id, after, limit, kind))

    async def event_properties(self, tx: Tx, tenant_id: int, event: str, after: str, limit: int) -> list[Definition]:
        return _definitions(await tx.fetch(S.event_properties, tenant_id, after, limit, event))

    async def siblings(self, tx: Tx, tenant_id: int, ids: Sequence[str]) -> dict[str, list[str]]:
        """Of each id that is one of several of its person: all of them."""
        found: dict[str, list[str]] = {}
        for row in await tx.fetch(S.siblings, tenant_id, ids):
            found.setdefault(row["asked"], []).append(row["distinct_id"])
        return found

    async def said(self, tx: Tx, tenant_id: int, distinct_id: str) -> list[dict[str, Any]]:
        """What was said about one id, key by key, with the times."""
        row = await tx.fetchrow(S.book, tenant_id, distinct_id)
        if row is None:
            return []
        told = []
        for name, cell in unpack(Packed(row["words"], row["moments"])).items():
            told += [_property_write(name, "set", word) for word in cell.of_latest_time()]
            if cell.default is not None:
                told.append(_property_write(name, "set_once", cell.default))
        return told


def _person(row: Any) -> PersonView:
    return PersonView(
        row["person_id"], row["named_by"], row["ids"], row["identified_at"], msgspec.json.decode(row["properties"]),
        row["created_at"], row["updated_at"],
    )  # fmt: skip


def _property_write(name: str, kind: str, word: Word) -> dict[str, Any]:
    return {
        "property": name,
        "said": "unset" if word.unset else kind,
        "value": None if word.unset else msgspec.json.decode(word.value),
        "at_ms": word.at // 1000,
        "micros": word.at % 1000,
        "sequence": word.sequence,
        "event": word.event,
    }


def _has(properties: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(name in properties and properties[name] == value for name, value in wanted.items())


def _edge(row: Any) -> EdgeView:
    return EdgeView(
        row["edge_key"].hex(), EdgeKind(row["kind"]), row["source_id"], row["target_id"], row["first_at"],
        row["first_event"], row["outcome"], row["voided_at"], row["voided_by"],
    )  # fmt: skip


def _definitions(rows: Iterable[Any]) -> list[Definition]:
    return [Definition(row["name"], row["first_seen_at"], row["last_seen_at"], row.get("value_type")) for row in rows]
