"""Keeps members and projections as people and rules change: by marks, by walks, and by the clock.

A changed person leaves a mark in the transaction that changed it. A changed rule asks for a walk over everybody, page
by page, from a place that is kept in the row: whoever comes next goes on there. One at a time works on a tenant, in
short transactions; what it tells Redis is told before the commit, so that a mark goes only when all is done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from handbill.active_hours.service import (
    SETTLE_AFTER,
    drop,
    first_week_kept,
    take_changed,
    tenants_with_activity,
)
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.telemetry import logs, metrics
from handbill.kit.tenant_rounds import TenantRounds
from handbill.segments import store
from handbill.segments.audience import Audience, Compiled, Compiler
from handbill.segments.projection import ACTIVE_HOURS, SEGMENT
from handbill.segments.projector import Projector
from handbill.segments.store import FIRST, S

_log = logs.get("segments")
PORTION = 500
"""Changed people that one transaction looks at."""
PAGE = 2_000
"""People of one step of a walk."""
SWEEP_EVERY = timedelta(seconds=10)
_AFTER_ALL_WEEKS = 2**31 - 1


class Keeper:
    """`token` draws a new word for each walk. `poke` wakes it: the pipeline does after each batch."""

    def __init__(self, database: Database, projector: Projector, clock: Clock, token: Callable[[], str]) -> None:
        self._database = database
        self._projector = projector
        self._clock = clock
        self._token = token
        self._compiler = Compiler()
        self._woken = asyncio.Event()
        self._rounds: TenantRounds[int] = TenantRounds("segments", clock=clock)

    def poke(self) -> None:
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Until poked, or for so long."""
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return

    async def turn(self) -> int:
        """One step for each tenant that has something to do. How much was done."""
        self._woken.clear()
        async with self._database.worker() as tx:
            now = self._clock.now()
            rows = await tx.fetch(S.busy_tenants, now - SWEEP_EVERY, now - SETTLE_AFTER)
        lost = set(await self._projector.unmarked([row["tenant_id"] for row in rows if row["projects"]]))
        tenants = [row["tenant_id"] for row in rows if row["busy"] or row["tenant_id"] in lost]
        done = await self._rounds.for_each_tenant(
            tenants, lambda tenant_id: self.step(tenant_id, lost=tenant_id in lost)
        )
        return sum(done.values())

    async def step(self, tenant_id: int, *, lost: bool = False) -> int:
        """Changed people first, then one page of what is left to walk. Nothing where somebody else is at it."""
        done = await self._held(tenant_id, (self._refresh, self._gone, self._learn))
        if done >= PORTION:
            return done
        return done + await self._held(tenant_id, (self._forget, self._sweep, self._walk, partial(self._project, lost)))

    async def _held(self, tenant_id: int, works: Sequence[Callable[[Tx, Audience], Awaitable[int]]]) -> int:
        """One short transaction. Before anything else it holds what whoever changes rules holds: no circle of waits."""
        async with self._database.worker() as tx:
            if not await tx.fetchval(S.try_tenant, tenant_id):
                return 0
            await tx.fetchval(S.lock_rules, tenant_id)
            segments = await store.everyone(tx, tenant_id)
            audience = Audience(tenant_id, self._compiler.of(tenant_id, segments), await store.needs(tx, tenant_id))
            return sum([await work(tx, audience) for work in works])

    # --- people who changed

    async def _refresh(self, tx: Tx, audience: Audience) -> int:
        people = [row[0] for row in await tx.fetch(S.take_stale, audience.tenant_id, PORTION)]
        if people:
            await self._judge(tx, audience, people, audience.segments)
            if audience.needs:
                await self._projector.project(tx, audience.tenant_id, people, audience.needs)
            metrics.SEGMENTS_REFRESHED.inc(len(people))
        return len(people)

    async def _judge(
        self, tx: Tx, audience: Audience, people: Sequence[UUID], segments: Sequence[Compiled]
    ) -> set[UUID]:
        """Hold these rules against these people. Who came or went."""
        if not segments:
            return set()
        tenant_id, ids = audience.tenant_id, [segment.id for segment in segments]
        paths = [segment.path for segment in segments]
        asks_ids = any(segment.ids for segment in segments)
        told = store.vars_of(self._clock.now_ms())
        rows = await tx.fetch(S.matching, tenant_id, list(people), ids, paths, told, asks_ids)
        pairs = [row[0] for row in rows], [row[1] for row in rows]
        gone = await tx.fetch(S.drop_members, tenant_id, list(people), ids, *pairs)
        come = await tx.fetch(S.add_members, tenant_id, *pairs)
        sizes = Counter(row[0] for row in come)
        sizes.subtract(Counter(row[0] for row in gone))
        moved = sorted(each for each, by in sizes.items() if by)
        if moved:
            await tx.execute(S.add_sizes, tenant_id, moved, [sizes[each] for each in moved])
        return {row[1] for row in (*come, *gone)}

    async def _gone(self, tx: Tx, audience: Audience) -> int:
        """Ids that were erased: nothing may be known of them any more."""
        rows = await tx.fetch(S.take_gone, audience.tenant_id, PORTION)
        await self._projector.drop(audience.tenant_id, [row[0] for row in rows if not row[1]])
        return len(rows)

    # --- hours that were learnt

    async def _learn(self, tx: Tx, audience: Audience) -> int:
        """The profiles of people who did something, some minutes after the first of it."""
        tenant_id, before = audience.tenant_id, self._clock.now() - SETTLE_AFTER
        ids = await take_changed(tx, tenant_id, before, PORTION)
        if ids and ACTIVE_HOURS in audience.needs:
            people = [row[0] for row in await tx.fetch(S.people_behind, tenant_id, ids)]
            await self._projector.project(tx, tenant_id, people, audience.needs)
        return len(ids)

    async def prune_active_hours(self) -> int:
        """Drop weeks that no profile reads any more, and everything of tenants who do not learn. How many rows."""
        async with self._database.worker() as tx:
            tenants = await tenants_with_activity(tx)
        dropped = await self._rounds.for_each_tenant(tenants, self._prune_active_hours)
        return sum(dropped.values())

    async def _prune_active_hours(self, tenant_id: int) -> int:
        total = 0
        while True:
            async with self._database.worker() as tx:
                await tx.execute(S.lock_tenant, tenant_id)
                await tx.fetchval(S.lock_rules, tenant_id)
                needs = await store.needs(tx, tenant_id)
                learns = ACTIVE_HOURS in needs
                before = first_week_kept(self._clock.now_ms()) if learns else _AFTER_ALL_WEEKS
                ids = await drop(tx, tenant_id, before, PAGE)
                people = [row[0] for row in await tx.fetch(S.people_behind, tenant_id, sorted(set(ids)))] if ids else []
                if people and learns:
                    await tx.execute(S.mark_stale, tenant_id, people)
                elif people:  # who is marked is not written anew where no rule asks for anything
                    await self._projector.project(tx, tenant_id, people, needs)
            total += len(ids)
            if len(ids) < PAGE:
                return total

    # --- rules that changed

    async def _walk(self, tx: Tx, audience: Audience) -> int:
        """One page of one segment that must look at everybody."""
        tenant_id = audience.tenant_id
        state = await tx.fetchrow(S.walk_state, tenant_id)
        if state is None:
            return 0
        segment = next(each for each in audience.segments if each.id == state["id"])
        began = state["walking"] == state["walk"]
        place = state["place"] if began and state["place"] is not None else FIRST
        people = [row[0] for row in await tx.fetch(S.walk_page, tenant_id, place, PAGE)]
        if people:
            moved = await self._judge(tx, audience, people, [segment])
            wanted = [need for need in audience.needs if need == SEGMENT + str(segment.public_id)]
            if moved and wanted:
                await self._projector.project(tx, tenant_id, sorted(moved), audience.needs)
        ended = len(people) < PAGE
        last = None if ended else people[-1]
        await tx.execute(S.move_walk, tenant_id, segment.id, state["walk"], last, ended, self._clock.now())
        if ended:
            _log.info("segment-evaluated", tenant=tenant_id, segment=str(segment.public_id))
        return len(people) + 1

    async def _forget(self, tx: Tx, audience: Audience) -> int:
        """The members of a deleted segment, some at a time; then the segment."""
        row = await tx.fetchrow(S.deleted_segments, audience.tenant_id)
        if row is None:
            return 0
        dropped = await tx.execute(S.drop_some_members, audience.tenant_id, row[0], PAGE)
        if dropped < PAGE:
            await tx.execute(S.forget_segment, audience.tenant_id, row[0])
        return dropped + 1

    # --- the clock

    async def _sweep(self, tx: Tx, audience: Audience) -> int:
        """Mark the people whose age passed a rule's limit since the last sweep: few, found by an index."""
        now, marked = self._clock.now(), 0
        by_id = {segment.id: segment for segment in audience.segments}
        for row in await tx.fetch(S.swept, audience.tenant_id, now - SWEEP_EVERY):
            spans = by_id[row[0]].spans if row[0] in by_id else ()
            until = now
            for age in (timedelta(milliseconds=span) for span in spans):
                until = min(until, await self._crossed(tx, audience.tenant_id, age, row[1], now))
                marked += 1
            await store.sweep_from(tx, audience.tenant_id, [row[0]], until)
        return marked

    async def _crossed(self, tx: Tx, tenant_id: int, age: timedelta, since: datetime, now: datetime) -> datetime:
        """Until when the sweep came: where very many passed at once, the rest follows in the next turn."""
        rows = await tx.fetch(S.crossed, tenant_id, since - age, now - age, PAGE)
        if rows:
            await tx.execute(S.mark_stale, tenant_id, [row[1] for row in rows])
        moment: datetime = rows[-1][0] + age if len(rows) >= PAGE else now
        return moment

    # --- projections

    async def _project(self, lost: bool, tx: Tx, audience: Audience) -> int:
        """One page of a walk that writes everybody's value; its end sets the mark.

        It waits until every segment was looked at whole: a projection made before would have to be made again.
        """
        tenant_id = audience.tenant_id
        if not audience.needs or await tx.fetchrow(S.walk_state, tenant_id) is not None:
            return 0
        state = await tx.fetchrow(S.projection_state, tenant_id)
        assert state is not None
        token, place, needs = state["token"], state["place"] or FIRST, state["needs"]
        if token is None:
            if not lost and all(audience.needs.values()):
                return 0
            token, place, needs = self._token(), FIRST, sorted(audience.needs)
            await self._projector.begin(tenant_id, token)
        people = [row[0] for row in await tx.fetch(S.walk_page, tenant_id, place, PAGE)]
        written = await self._projector.project(tx, tenant_id, people, audience.needs) if people else 0
        if len(people) == PAGE:
            await tx.execute(S.move_projection, tenant_id, token, people[-1], needs)
            return written + 1
        if await self._projector.end(tenant_id, token, needs):
            await tx.execute(S.settle_needs, tenant_id, needs)
            metrics.PROJECTION_WALKS.labels("lost" if lost else "grown").inc()
            _log.info("projection-whole", tenant=tenant_id, needs=len(needs))
        await tx.execute(S.move_projection, tenant_id, None, None, [])
        return written + 1
