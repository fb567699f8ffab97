"""The face of this room: who a person is, what an operator may change about it, and what a tenant sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Keys, Redis, RedisError
from handbill.infra.state import StateTable
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.people import store
from handbill.people.asking import (
    after_name,
    after_person,
    bad_cursor,
    check_sides,
    edge_key_of,
    like,
    micros,
    moment,
    named,
    no_edge,
    nobody,
    storable,
)
from handbill.people.gather import edge_key
from handbill.people.keeper import Follower, Keeper
from handbill.people.model import (
    Definition,
    Edge,
    EdgeKind,
    EdgeView,
    Names,
    Order,
    Outcome,
    PersonPage,
    PersonView,
    WarningView,
)
from handbill.people.overrides import Overrides
from handbill.people.property_export import PropertyExport
from handbill.people.read_waits import ReadWaits
from handbill.people.reader import PeopleReader
from handbill.tenants.service import Audit

__all__ = ["STATE", "PeopleService", "ReadWaits"]

_NAMES_S = 300
"""A list of names is read again after this at the latest; a new name takes the old list away at once."""
_MOST_NAMES = 10_000

STATE = (
    StateTable("people.persons", ("tenant_id", "person_id"), frozenset({"updated_at"})),
    StateTable("people.distinct_ids", ("tenant_id", "distinct_id"), frozenset({"version", "shipped", "squashed"})),
    StateTable("people.properties", ("tenant_id", "distinct_id")),
    StateTable("people.person_edges", ("tenant_id", "edge_key"), frozenset({"voided_at"})),
    StateTable("people.warnings", ("tenant_id", "edge_key")),
    StateTable("people.unfolded", ("tenant_id", "distinct_id"), frozenset({"marked_at", "mark_id"})),
    StateTable("people.event_definitions", ("tenant_id", "event_name")),
    StateTable("people.property_definitions", ("tenant_id", "property_type", "property_name")),
    StateTable("people.event_properties", ("tenant_id", "event_name", "property_name")),
)


class PeopleService:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        audit: Audit,
        clock: Clock,
        *,
        followers: Sequence[Follower] = (),
        keys: Keys | None = None,
        ids: Ids | None = None,
        overrides: Overrides | None = None,
        property_export: PropertyExport | None = None,
    ) -> None:
        self._database = database
        self._redis = redis
        self._audit = audit
        self._clock = clock
        self._keys = keys or Keys()
        self._ids = ids or Ids()
        self._reader = PeopleReader()
        self.keeper = Keeper(database, followers)
        self.overrides = overrides
        """Where ClickHouse was told of moves, if there is one."""
        self.property_export = property_export
        """The same for their properties."""

    # --- who they are
    async def person(self, tenant_id: int, person_id: UUID) -> PersonPage:
        async with self._database.tenant(tenant_id) as tx:
            return await self._page(tx, tenant_id, person_id)

    async def find(self, tenant_id: int, distinct_id: str) -> PersonPage:
        """The person who has this distinct id."""
        async with self._database.tenant(tenant_id) as tx:
            found = await self._reader.person_of(tx, tenant_id, distinct_id) if storable(distinct_id) else None
            if found is None:
                raise nobody()
            return await self._page(tx, tenant_id, found)

    async def person_of(self, tenant_id: int, distinct_id: str) -> UUID | None:
        """The id of the person who has this distinct id; none when nobody has it."""
        if not storable(distinct_id):
            return None
        async with self._database.tenant(tenant_id) as tx:
            return await self._reader.person_of(tx, tenant_id, distinct_id)

    async def people(
        self, tenant_id: int, cursor: str | None, limit: int, *, name: str | None = None, value: str | None = None
    ) -> Page[PersonView]:
        """People, newest first; with a property's name and value those who have it just so.

        A narrowed page looks at a bounded number of people: it may be short, or empty, and still have a next one.
        """
        narrowed = like(name, value)
        async with self._database.tenant(tenant_id) as tx:
            found, after = await self._reader.page(tx, tenant_id, after_person(cursor), narrowed, limit)
        return Page(found, None if after is None else pages.encode(micros(after[0]), after[1].hex))

    async def siblings(self, tenant_id: int, distinct_id: str) -> list[str]:
        """Every id of the person who has this one, itself included."""
        if not storable(distinct_id):
            return [distinct_id]
        return (await self.groups(tenant_id, [distinct_id])).get(distinct_id, [distinct_id])

    async def groups(self, tenant_id: int, distinct_ids: Sequence[str]) -> dict[str, list[str]]:
        """Of each of these ids that is one of several of its person: all of that person's ids."""
        async with self._database.worker() as tx:
            return await self._reader.siblings(tx, tenant_id, list(filter(storable, distinct_ids)))

    # --- an operator's word
    async def merge(self, tenant_id: int, source: str, target: str, *, actor: str) -> PersonPage:
        """Somebody decided that both are one person: an edge like those that clients send, with an id of our own."""
        check_sides(source, target)
        order = Order(self._clock.now_ms() * 1000, 0, f"operator:{self._ids.new().hex}")
        edge = Edge(EdgeKind.MERGE, source, target, *order)
        async with self._database.worker() as tx:
            if await self._said_already(tx, tenant_id, edge):
                return await self._page_of(tx, tenant_id, target)
            await store.add_edge(tx, tenant_id, edge)
            about = {"source": source, "target": target}
            await self._audit.write(
                tx,
                tenant_id,
                actor=actor,
                action="person.merge",
                object=f"edge {edge_key(edge.name).hex()}",
                after=about,
            )
        await self.keeper.settle(tenant_id)
        return await self.find(tenant_id, target)

    async def void(self, tenant_id: int, edge_id: str, *, actor: str) -> EdgeView:
        """Take an edge back: people become who they would be if nobody had ever said it."""
        return await self._turn(tenant_id, edge_id, actor, void=True)

    async def restore(self, tenant_id: int, edge_id: str, *, actor: str) -> EdgeView:
        return await self._turn(tenant_id, edge_id, actor, void=False)

    async def warnings(self, tenant_id: int, cursor: str | None, limit: int) -> Page[WarningView]:
        """Merges that were refused, newest first."""
        after = None
        if cursor is not None:
            at, edge_id = pages.decode(cursor, (int, str))
            after = (moment(at), edge_key_of(edge_id, bad_cursor))
        async with self._database.tenant(tenant_id) as tx:
            rows = await self._reader.warnings(tx, tenant_id, after, limit + 1)
        return pages.page(rows, limit, lambda row: (micros(row.at), row.edge_id))

    # --- what is sent
    async def events(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Definition]:
        async with self._database.tenant(tenant_id) as tx:
            return named(await self._reader.events(tx, tenant_id, after_name(cursor), limit + 1), limit)

    async def properties(self, tenant_id: int, kind: str, cursor: str | None, limit: int) -> Page[Definition]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await self._reader.properties(tx, tenant_id, kind, after_name(cursor), limit + 1)
        return named(rows, limit)

    async def event_properties(self, tenant_id: int, event: str, cursor: str | None, limit: int) -> Page[Definition]:
        if not storable(event):
            return Page([])
        async with self._database.tenant(tenant_id) as tx:
            rows = await self._reader.event_properties(tx, tenant_id, event, after_name(cursor), limit + 1)
        return named(rows, limit)

    async def names(self, tenant_id: int) -> Names:
        """All names, from Redis where it has them. Away or wiped, PostgreSQL answers."""
        keys = self._name_keys(tenant_id)
        try:
            kept = await self._redis.call("MGET", *keys)
            if all(kept):
                events, properties = (msgspec.json.decode(each, type=list[str]) for each in kept)
                return Names(events, properties)
        except (Busy, RedisError, msgspec.DecodeError):
            return await self._read_names(tenant_id)
        names = await self._read_names(tenant_id)
        told = zip(keys, (names.events, names.properties), strict=True)
        try:
            await self._redis.many([("SET", key, msgspec.json.encode(each), "EX", _NAMES_S) for key, each in told])
        except (Busy, RedisError):
            return names  # it is a cache: whoever asks next fills it
        return names

    async def new_names(self, tenant_id: int) -> None:
        """A name was seen for the first time: the kept lists are old."""
        await self._redis.call("DEL", *self._name_keys(tenant_id))

    async def rebuild_properties(self) -> None:
        """Send what everybody is like to ClickHouse again, of all tenants: its copy was lost."""
        if self.property_export is not None:
            await self.property_export.rebuild()

    # --- privacy
    async def erase(self, tenant_id: int, distinct_ids: list[str]) -> Mapping[str, int]:
        """Forget these ids and all that was said about them, here and among ClickHouse's moves. Safe to repeat."""
        ids = sorted(set(filter(storable, distinct_ids)))
        overrides, export = self.overrides, self.property_export

        async def in_clickhouse(tx: Tx) -> None:
            if overrides is not None:
                await overrides.forget(tenant_id, ids)
            if export is not None:
                await export.forget(tx, tenant_id, ids)

        cleared = await self.keeper.folder.erase(tenant_id, ids, in_clickhouse) if ids else {}
        await self.keeper.follow(tenant_id)
        return cleared

    async def export(self, tenant_id: int, distinct_id: str, limit: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Everything kept here about one id: what was said, who it belongs to, and by which edges."""
        if not storable(distinct_id):
            return {}
        async with self._database.tenant(tenant_id) as tx:
            person = await self._reader.person_of(tx, tenant_id, distinct_id)
            if person is None:
                return {}
            whole = await self._page(tx, tenant_id, person)
            said = await self._reader.said(tx, tenant_id, distinct_id)
        mine = [edge for edge in whole.edges if distinct_id in (edge.source, edge.target)]
        first = [each for each in whole.distinct_ids if each.distinct_id == distinct_id]
        return {
            "people.persons": [msgspec.to_builtins(whole.person)] if whole.person.named_by == distinct_id else [],
            "people.distinct_ids": [{**msgspec.to_builtins(each), "person_id": str(person)} for each in first],
            "people.properties": said[:limit],
            "people.person_edges": [msgspec.to_builtins(edge) for edge in mine[:limit]],
        }

    # --- after a crash
    async def mend(self, older_s: float = 10) -> int:
        """Fold what a dead process had left unfolded, and tell those who follow; for how many tenants."""
        return await self.keeper.mend(timedelta(seconds=older_s))

    async def _page(self, tx: Tx, tenant_id: int, person_id: UUID) -> PersonPage:
        person = await self._reader.person(tx, tenant_id, person_id)
        if person is None:
            raise nobody()
        ids = await self._reader.ids(tx, tenant_id, person_id)
        return PersonPage(person, ids, await self._reader.edges(tx, tenant_id, person_id))

    async def _page_of(self, tx: Tx, tenant_id: int, distinct_id: str) -> PersonPage:
        found = await self._reader.person_of(tx, tenant_id, distinct_id)
        if found is None:
            raise nobody()
        return await self._page(tx, tenant_id, found)

    async def _said_already(self, tx: Tx, tenant_id: int, edge: Edge) -> bool:
        if await store.known_among(tx, tenant_id, [edge.source, edge.target]) != {edge.source, edge.target}:
            raise nobody()
        known = await self._reader.edge(tx, tenant_id, edge_key(edge.name))
        if known is not None and known.outcome == Outcome.VOIDED:
            raise Conflict(
                f"This merge was taken back before; nothing was changed. Restore the edge {known.edge_id} instead.",
                code="EDGE_VOIDED",
            )
        return known is not None

    async def _turn(self, tenant_id: int, edge_id: str, actor: str, *, void: bool) -> EdgeView:
        key = edge_key_of(edge_id, no_edge)

        async def audit(tx: Tx) -> None:
            verb = "void" if void else "restore"
            await self._audit.write(tx, tenant_id, actor=actor, action=f"edge.{verb}", object=f"edge {edge_id}")

        if void:
            await self.keeper.void(tenant_id, key, actor, audit)
        else:
            await self.keeper.restore(tenant_id, key, audit)
        async with self._database.tenant(tenant_id) as tx:
            edge = await self._reader.edge(tx, tenant_id, key)
        if edge is None:
            raise no_edge()
        return edge

    def _name_keys(self, tenant_id: int) -> tuple[str, str]:
        return self._keys.tagged("event_names", tenant_id), self._keys.tagged("event_property_names", tenant_id)

    async def _read_names(self, tenant_id: int) -> Names:
        async with self._database.tenant(tenant_id) as tx:
            events = await self._reader.events(tx, tenant_id, "", _MOST_NAMES)
            properties = await self._reader.properties(tx, tenant_id, "event", "", _MOST_NAMES)
        return Names([each.name for each in events], [each.name for each in properties])
