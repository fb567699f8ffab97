"""Changes of segments: each one transaction with its audit row. The keeper does the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import UNSET, structs

from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.kit import etags
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, decode, page
from handbill.segments import store
from handbill.segments.audience import dependents, one
from handbill.segments.model import (
    NEEDS_MAX,
    SEGMENTS_MAX,
    Belongs,
    Member,
    NewSegment,
    Preview,
    Segment,
    SegmentPatch,
    SegmentView,
    note,
    view,
)
from handbill.segments.rules import Node, failed, read
from handbill.tenants.service import Audit

Users = Callable[[Tx, int, UUID], Awaitable[list[str]]]
"""Given a tenant and a segment: what of another room uses it, by name."""
LOOKED_AT = 100_000
"""People that a preview looks at; beyond them its size is in proportion."""


class Editor:
    def __init__(self, database: Database, audit: Audit, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._users: list[Users] = []

    def join(self, users: Users) -> None:
        """Called by the wiring for each room that uses segments: one that is used cannot be deleted."""
        self._users.append(users)

    async def create(self, tenant: int, new: NewSegment, *, actor: str) -> SegmentView:
        now = self._clock.now()
        try:
            async with self._database.tenant(tenant) as tx:
                await store.watch(tx, tenant)
                others = await store.everyone(tx, tenant)
                if len(others) >= SEGMENTS_MAX:
                    raise Conflict(
                        f"A tenant has at most {SEGMENTS_MAX} segments; nothing was changed. Delete one first.",
                        code="TOO_MANY_SEGMENTS",
                    )
                node = _read(new.rule, others)
                made = await store.create(tx, tenant, self._ids.new(), new.name, new.description, new.rule, now)
                await self._clocked(tx, made, node, now)
                await self._note(tx, actor, "segment.create", None, made)
        except UniqueViolation:
            raise _name_taken(new.name) from None
        return view(made)

    async def read(self, tenant: int, public_id: UUID) -> SegmentView:
        async with self._database.tenant(tenant) as tx:
            return view(_found(await store.find(tx, tenant, public_id)))

    async def listed(self, tenant: int, cursor: str | None, limit: int, search: str | None) -> Page[SegmentView]:
        after = 0 if cursor is None else int(decode(cursor, (int,))[0])
        async with self._database.tenant(tenant) as tx:
            rows = await store.listed(tx, tenant, min(max(after, 0), 2**31 - 1), limit + 1, search)
        found = page(rows, limit, lambda row: (row.id,))
        return Page([view(row) for row in found.items], found.next)

    async def change(
        self, tenant: int, public_id: UUID, patch: SegmentPatch, *, version: int | None, actor: str
    ) -> SegmentView:
        now = self._clock.now()
        given = {name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not UNSET}
        try:
            async with self._database.tenant(tenant) as tx:
                await store.watch(tx, tenant)
                before = _found(await store.find(tx, tenant, public_id, lock=True))
                etags.check(version, before.version)
                wanted: Segment = structs.replace(before, **given)
                everyone = await store.everyone(tx, tenant)
                node = _read(wanted.rule, everyone, own=public_id)
                after = await store.update(tx, wanted, now)
                if wanted.rule != before.rule:
                    await self._again(tx, after, everyone, node, now)
                    after = _found(await store.find(tx, tenant, public_id))
                await self._note(tx, actor, "segment.change", before, after)
        except UniqueViolation:
            raise _name_taken(str(given.get("name"))) from None
        return view(after)

    async def delete(self, tenant: int, public_id: UUID, *, version: int | None, actor: str) -> None:
        """It is gone at once for everybody; its members are forgotten in the background."""
        async with self._database.tenant(tenant) as tx:
            await store.watch(tx, tenant)
            segment = _found(await store.find(tx, tenant, public_id, lock=True))
            etags.check(version, segment.version)
            used = [each.name for each in _users_among(await store.everyone(tx, tenant), public_id)]
            for users in self._users:
                used += await users(tx, tenant, public_id)
            if used:
                raise Conflict(
                    f"It is used by {', '.join(sorted(used)[:5])}; nothing was changed. Take it out there first.",
                    code="SEGMENT_IN_USE",
                )
            await store.delete(tx, segment, self._clock.now())
            await self._note(tx, actor, "segment.delete", segment, None)

    # --- looking

    async def preview(self, tenant: int, rule: dict[str, Any]) -> Preview:
        """Size and some members of a rule that nobody has saved. It looks at a bounded number of people."""
        async with self._database.tenant(tenant) as tx:
            node = _read(rule, await store.everyone(tx, tenant))
            ready = one(0, UUID(int=0), node)
            return await store.preview(tx, tenant, ready.path, self._clock.now_ms(), LOOKED_AT, ids=ready.ids)

    async def members(self, tenant: int, public_id: UUID, after: UUID | None, limit: int) -> list[Member]:
        """One page of people, in the order of their ids. Busy until everybody was held against the rule once."""
        async with self._database.tenant(tenant) as tx:
            segment = _ready(_found(await store.find(tx, tenant, public_id)))
            return await store.members(tx, segment, after or store.FIRST, limit)

    async def inside(self, tenant: int, public_id: UUID, distinct_ids: Sequence[str]) -> set[str]:
        """Which of these ids are somebody's who belongs to it. Busy until everybody was held against the rule once."""
        async with self._database.tenant(tenant) as tx:
            segment = _ready(_found(await store.find(tx, tenant, public_id)))
            return await store.inside(tx, segment, distinct_ids)

    async def explain(self, tenant: int, public_id: UUID, distinct_id: str) -> Belongs:
        """Whether somebody belongs to it by what is known now, and if not, why."""
        async with self._database.tenant(tenant) as tx:
            segment = _found(await store.find(tx, tenant, public_id))
            node = _read(segment.rule, await store.everyone(tx, tenant), own=public_id)
            found = await store.person(tx, tenant, distinct_id)
        if found is None:
            return Belongs(False, None, "nobody has this id")
        person_id, person = found
        part = failed(node, person, self._clock.now_ms())
        return Belongs(part is None, person_id, None if part is None else part.text)

    # --- what banners ask for

    async def unknown(self, tx: Tx, tenant: int, segments: Iterable[UUID]) -> set[UUID]:
        """Those of these segments that the tenant does not have."""
        wanted = set(segments)
        return wanted - await store.known(tx, tenant, wanted) if wanted else set()

    async def hold(self, tx: Tx, tenant: int) -> None:
        """Nobody else changes the tenant's segments or needs until this transaction ends."""
        await store.watch(tx, tenant)

    async def want(self, tx: Tx, tenant: int, needs: frozenset[str]) -> None:
        """All that the tenant's banners ask of people. What is new is projected for everybody by the keeper."""
        if len(needs) > NEEDS_MAX:
            raise Conflict(
                f"The rules of all banners ask for {len(needs)} properties and segments of people, and {NEEDS_MAX} are"
                " possible; nothing was changed.",
                code="TOO_MANY_NEEDS",
            )
        await store.watch(tx, tenant)
        await store.set_needs(tx, tenant, needs)

    # --- parts

    async def _again(self, tx: Tx, changed: Segment, everyone: list[Segment], node: Node, now: datetime) -> None:
        """Everybody is looked at again, for this segment and for those whose rules lead to it."""
        now_are = [changed if each.id == changed.id else each for each in everyone]
        rules = {each.public_id: each.rule for each in now_are}
        await store.walk_again(tx, changed.tenant_id, [changed.id])
        await self._clocked(tx, changed, node, now)
        for each in dependents(now_are, changed.public_id):
            inner, reader = read(each.rule, rules, own=each.public_id)
            if reader.faults:
                raise Invalid(
                    f"With this rule the segment {each.name} could not be read: {reader.faults[0].reason}; nothing was"
                    " changed.",
                    faults=[Fault("rule", reader.faults[0].reason)],
                )
            await store.walk_again(tx, each.tenant_id, [each.id])
            await self._clocked(tx, each, inner, now)

    async def _clocked(self, tx: Tx, segment: Segment, node: Node, now: datetime) -> None:
        """Rules about age are swept by the clock from now on; others are not."""
        spans = one(segment.id, segment.public_id, node).spans
        await store.sweep_from(tx, segment.tenant_id, [segment.id], now if spans else None)

    async def _note(self, tx: Tx, actor: str, action: str, before: Segment | None, after: Segment | None) -> None:
        segment = after or before
        assert segment is not None
        await self._audit.write(
            tx, segment.tenant_id, actor=actor, action=action, object=str(segment.public_id),
            before=note(before) if before is not None else None, after=note(after) if after is not None else None,
        )  # fmt: skip


def _read(rule: dict[str, Any], others: Iterable[Segment], own: UUID | None = None) -> Node:
    rules = {each.public_id: each.rule for each in others}
    node, reader = read(rule, rules, own=own)
    if reader.faults:
        told = "Nothing was changed: " + "; ".join(f"{fault.field} {fault.reason}" for fault in reader.faults[:10])
        raise Invalid(told, code="SEGMENT_UNKNOWN" if reader.unknown else None, faults=reader.faults[:50])
    return node


def _users_among(segments: Iterable[Segment], public_id: UUID) -> list[Segment]:
    listed = list(segments)
    rules = {each.public_id: each.rule for each in listed}
    return [each for each in listed if public_id in read(each.rule, rules)[1].named]


def _ready(segment: Segment) -> Segment:
    if not segment.ready:
        raise Busy("The segment is still being evaluated; ask again shortly.", code="SEGMENT_EVALUATING", retry_after=2)
    return segment


def _found(segment: Segment | None) -> Segment:
    if segment is None:
        raise NotFound("There is no such segment.", code="SEGMENT_NOT_FOUND")
    return segment


def _name_taken(name: str) -> Conflict:
    return Conflict(f"Another segment has the name {name}; nothing was changed.", code="SEGMENT_NAME_TAKEN")
