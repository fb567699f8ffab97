"""One tenant's segments on real engines, and what must hold of them when nothing is left to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.sqlfiles import Sql
from handbill.segments import store
from handbill.segments.model import NewSegment, SegmentPatch, SegmentView
from handbill.segments.projection import ProjectionKeys, needs_of, opened
from handbill.segments.rules import Person, read
from handbill.segments.service import SegmentsService
from handbill.segments.values import flat
from handbill.tenants.service import TenantService
from tests.kit.clocks import FakeClock
from tests.kit.crowd import settle

PEOPLE = Sql(
    "select p.person_id, p.named_by, p.properties::text, (extract(epoch from p.created_at) * 1000)::bigint,"
    " (select array_agg(d.distinct_id) from people.distinct_ids d where d.tenant_id = $1 and d.person_id = p.person_id)"
    " from people.persons p where p.tenant_id = $1",
    "crowd_all",
)


@dataclass
class Room:
    """One tenant's segments."""

    database: Database
    redis: Redis
    clock: FakeClock
    tenant: int
    segments: SegmentsService
    keys: ProjectionKeys

    async def make(self, name: str, rule: dict[str, Any]) -> SegmentView:
        return await self.segments.editor.create(self.tenant, NewSegment(name, rule), actor="test")

    async def change(self, segment: UUID, rule: dict[str, Any]) -> SegmentView:
        return await self.segments.editor.change(
            self.tenant, segment, SegmentPatch(rule=rule), version=None, actor="test"
        )

    async def people(self, people: dict[str, dict[str, Any]], **more: Any) -> None:
        await settle(self.database, self.tenant, people, created=more.pop("created", self.clock.now_ms()), **more)

    async def want(self, *needs: str, segments: tuple[UUID, ...] = ()) -> None:
        async with self.database.tenant(self.tenant) as tx:
            await self.segments.editor.want(tx, self.tenant, needs_of(needs, segments))

    async def kept(self) -> None:
        """Until nothing is left to do for this tenant."""
        for _ in range(1_000):
            async with self.database.worker() as tx:
                projects = bool(await store.needs(tx, self.tenant))
            lost = bool(await self.redis.call("EXISTS", self.keys.mark(self.tenant))) is False and projects
            if not await self.segments.keeper.step(self.tenant, lost=lost):
                return
        raise AssertionError("it never comes to rest")

    async def names(self, segment: UUID) -> list[str]:
        found = await self.segments.members(self.tenant, segment)
        view = await self.segments.editor.read(self.tenant, segment)
        assert (view.size, view.state) == (len(found), "ready")
        return sorted(each.named_by for each in found)

    async def projection(self, distinct_id: str, *needs: str) -> dict[str, Any]:
        return opened(await self.redis.call("GET", self.keys.value(self.tenant, distinct_id)), needs)


@asynccontextmanager
async def segments_room(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Room]:
    clock, keys = FakeClock(), Keys(f"seg{uuid4().hex[:12]}")
    tenants = TenantService(database, redis, seal_key=b"0" * 32, clock=clock)
    made = SegmentsService(database, redis, tenants, clock, keys=keys)
    try:
        yield Room(database, redis, clock, tenant, made, ProjectionKeys(keys))
    finally:
        await made.stop()
        await tenants.stop()


async def sound(room: Room) -> None:
    """By what is stored: members are those whom the rule takes, and every id's projection is its person's."""
    async with room.database.worker() as tx:
        rows = await tx.fetch(PEOPLE, room.tenant)
        needs = await store.needs(tx, room.tenant)
    people = {row[0]: (row[1], Person(json.loads(row[2]), row[3], frozenset(row[4]))) for row in rows}
    made = (await room.segments.editor.listed(room.tenant, None, 200, None)).items
    rules = {each.segment_id: each.rule for each in made}
    inside: dict[UUID, set[bytes]] = {person: set() for person in people}
    for each in made:
        node, reader = read(each.rule, rules)
        assert not reader.faults
        expected = {person for person, (_, known) in people.items() if node.holds(known, room.clock.now_ms())}
        found = {member.person_id for member in await room.segments.members(room.tenant, each.segment_id)}
        view = await room.segments.editor.read(room.tenant, each.segment_id)
        assert (found, view.size) == (expected, len(expected)), each.rule
        for person in expected if f"segment.{each.segment_id}" in needs else ():
            inside[person].add(each.segment_id.bytes)
    wanted = [need for need in needs if need.startswith("person.")]
    for person, (_, known) in people.items():
        held = {need: known.properties.get(need[7:]) for need in wanted}
        told = {need: flat(value) for need, value in held.items() if value is not None}
        for distinct_id in known.ids:
            found_too = await room.projection(distinct_id, *wanted)
            assert found_too.pop("segments", frozenset()) == inside[person]
            assert found_too == told
