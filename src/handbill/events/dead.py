"""Parked events and their ways back: sent again, at full speed or up to the first that is still bad; dropped in sight
of the audit log; or healed by the clock.

A replayed event takes the road of every other one, in its sender's lane and behind what was parked before it, with the
times it was given at the edge. What it says about people does not depend on when it arrives, so its place in their
history is the one it always had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec

from handbill.events.edge import Edge
from handbill.events.model import HORIZON_DAYS, Dropped, Event, decode, key
from handbill.events.parked_bodies import describe, is_about
from handbill.events.parked_model import (
    NIL,
    Chosen,
    DropReport,
    OnFailure,
    Portion,
    Replayed,
    ReplayOptions,
    Reshipped,
    added,
    check_drop,
)
from handbill.events.reader import EventReader, ParkedBody
from handbill.events.reasons import Reason
from handbill.events.store import storable
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Invalid
from handbill.kit.telemetry import logs
from handbill.tenants.service import Audit

_log = logs.get("parked")
FULL_SPEED = 500
"""Events of one portion when nobody waits for their fate."""
CAREFUL = 20
"""Events of one portion when the next one waits for it."""
ERASED_AT_ONCE = 100
DROPPED_AT_ONCE = 5_000
"""Parked events of one transaction that drops them."""
HEALED_TRIES = 3
HEAL_AFTER = timedelta(minutes=5)
HEAL_MOST = 200
"""Events of one tenant that one healing sends at most."""
_LOOK_EVERY_S = 0.05


def portion_size(options: ReplayOptions) -> int:
    return CAREFUL if options.is_careful else FULL_SPEED


def circuit_of(tenant_id: int | None) -> str:
    """The name of a tenant's circuit: one tenant's bad events never stop another's replay."""
    return "parked-replay" if tenant_id is None else f"parked-replay:{tenant_id}"


class Guard(Protocol):
    """The breaker that all processes share; handed in by the wiring."""

    def guard(self, name: str) -> AbstractAsyncContextManager[None]: ...


Reship = Callable[[Sequence[UUID]], Awaitable[Reshipped]]
"""Sends parked rows to ClickHouse alone, and marks those that it took; handed in by the wiring."""
Reread = Callable[[ParkedBody], Awaitable[Event | None]]
"""The event of a parked entry of the compatibility stream, if it is one by now; handed in by the wiring."""


class StillBad(Exception):
    """Events that were sent again came back to be parked, or were never taken up."""

    def __init__(self, events: int) -> None:
        super().__init__(f"{events} events that were sent again are not counted")
        self.events = events


class DeadLetters:
    def __init__(
        self, database: Database, edge: Edge, clock: Clock, audit: Audit,
        breaker: Guard | None = None, *, patience_s: float = 60.0,
    ) -> None:  # fmt: skip
        self._database = database
        self._edge = edge
        self._clock = clock
        self._audit = audit
        self._breaker = breaker
        self._reader = EventReader()
        self._patience_s = patience_s
        self.reship: Reship | None = None
        self.reread: Reread | None = None

    async def replay(
        self, chosen: Chosen, *, on_failure: OnFailure = OnFailure.PARK, dry_run: bool = False,
        force: bool = False, actor: str = "operator",
    ) -> Replayed:  # fmt: skip
        """Through the whole pipeline again. Raises Busy while the circuit is open or the journal cannot be written."""
        done = await self._replay(chosen, ReplayOptions(on_failure, dry_run, force))
        await self._note(chosen, actor, done)
        return done

    async def _replay(self, chosen: Chosen, options: ReplayOptions) -> Replayed:
        done, after = Replayed(0, 0, 0, options.dry_run), NIL
        some, ships = portion_size(options), True
        async with self._database.worker() as tx:
            last = await self._reader.last_parked(tx) or NIL  # what is parked again meanwhile waits for the next time
        is_last = False
        while not (is_last or done.stopped):
            async with self._database.worker() as tx:
                rows = await self._reader.bodies(tx, chosen.tenant, chosen.reason, chosen.ids, after, last, some)
            if not rows:
                break
            after, is_last = rows[-1].id, len(rows) < some
            portion = await self.replay_portion(chosen.tenant, rows, options, ships=ships)
            done, ships = added(done, portion.counts), ships and not portion.waits
        return done

    async def replay_portion(
        self, tenant_id: int | None, rows: Sequence[ParkedBody], options: ReplayOptions, *,
        since: datetime | None = None, ships: bool = True,
    ) -> Portion:  # fmt: skip
        """Replay these rows. Safe to repeat with the same rows and `since`, a moment of the database's clock before
        the first try: what was sent by then is counted and watched, and not sent again.

        Raises Busy while the circuit is open or an engine is away, Throttled while the journal is full.
        """
        lacking = [row for row in rows if row.reason == Reason.UNSHIPPED]
        ready, unreadable, old = await self._readable(rows, options.force)
        counts = Replayed(len(rows), 0, unreadable, options.dry_run, too_old=old, unshipped=len(lacking))
        if options.dry_run:
            return Portion(counts)
        shipped = await self._ship(lacking, ships=ships)
        failed = shipped.refused if options.is_careful else 0
        if ready:
            failed += await self._send(tenant_id, ready, options.is_careful, since)
        counts = msgspec.structs.replace(
            counts, sent=len(ready), shipped=shipped.shipped, unshipped=len(lacking) - shipped.shipped,
            failed=failed, stopped=failed > 0,
        )  # fmt: skip
        return Portion(counts, shipped.waits)

    async def _ship(self, rows: Sequence[ParkedBody], *, ships: bool) -> Reshipped:
        """Send what only ClickHouse lacks there. Rows that it took in an earlier try count as shipped."""
        waiting = [row.id for row in rows if row.replayed_at is None]
        before = len(rows) - len(waiting)
        if not waiting or not ships or self.reship is None:
            return Reshipped(before, 0)
        done = await self.reship(waiting)
        return msgspec.structs.replace(done, shipped=before + done.shipped)

    async def drop(self, chosen: Chosen, *, actor: str) -> DropReport:
        """For good, in portions, each with its line in the audit log. The caller names a reason or ids, or both."""
        check_drop(chosen)
        if chosen.tenant is None:
            raise Invalid("Say whose parked events. Nothing was dropped.", code="DROP_WHAT")
        dropped, some = 0, DROPPED_AT_ONCE
        async with self._database.worker() as tx:
            last = await self._reader.last_parked(tx) or NIL
        while some == DROPPED_AT_ONCE:
            some = await self._drop_portion(chosen.tenant, chosen, last, actor)
            dropped += some
        _log.info("parked-dropped", tenant=chosen.tenant, events=dropped)
        return DropReport(dropped)

    async def _drop_portion(self, tenant_id: int, chosen: Chosen, last: UUID, actor: str) -> int:
        async with self._database.worker() as tx:
            dropped = await self._reader.drop_parked(tx, tenant_id, chosen.reason, chosen.ids, last, DROPPED_AT_ONCE)
            if dropped:
                detail = {"reason": chosen.reason, "events": dropped}
                await self._audit.write(
                    tx, tenant_id, actor=actor, action="parked.drop", object="parked events", before=detail
                )
        return dropped

    async def heal(self) -> int:
        """By the clock: what the database refused may pass since somebody mended the cause. Three tries, then a person.

        Returns how many were sent again.
        """
        async with self._database.worker() as tx:
            tenants = await self._reader.healable_tenants(tx, HEAL_AFTER)
        return await self.heal_tenants(tenants)

    async def heal_tenants(self, tenants: Sequence[int]) -> int:
        """A careful portion of each tenant in turn. Events that are still bad, or an open circuit, end the turns of
        their own tenant only."""
        waiting: dict[int, list[UUID]] = {}
        for tenant_id in tenants:
            async with self._database.worker() as tx:
                waiting[tenant_id] = await self._reader.healable(tx, tenant_id, HEAL_AFTER, HEALED_TRIES, HEAL_MOST)
        sent = 0
        while waiting := {tenant_id: ids for tenant_id, ids in waiting.items() if ids}:
            for tenant_id, ids in waiting.items():
                portion = tuple(ids[:CAREFUL])
                try:
                    done = await self._replay(Chosen(tenant_id, ids=portion), ReplayOptions(OnFailure.STOP))
                except Busy as error:
                    if error.code != "CIRCUIT_OPEN":
                        raise
                    waiting[tenant_id] = []
                    continue
                sent += done.sent
                waiting[tenant_id] = [] if done.stopped else ids[CAREFUL:]
        if sent:
            _log.info("parked.healed", events=sent, tenants=len(tenants))
        return sent

    async def erase(self, tenant_id: int, subjects: list[str]) -> Mapping[str, int]:
        """For the erasure registry: the parked events of a person go, also those that were sent again since."""
        names = frozenset(subjects)
        cleared, after = 0, NIL
        while True:
            async with self._database.worker() as tx:
                rows = await self._reader.all_bodies(tx, tenant_id, after, ERASED_AT_ONCE)
                theirs = [row.id for row in rows if is_about(row.body, names)]
                if theirs:
                    cleared += await self._reader.erase_parked(tx, tenant_id, theirs)
            if len(rows) < ERASED_AT_ONCE:
                return {"events.parked": cleared}
            after = rows[-1].id

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """For the export registry: what of theirs is parked, or was."""
        found: list[dict[str, Any]] = []
        after = NIL
        while True:
            async with self._database.worker() as tx:
                rows = await self._reader.all_bodies(tx, tenant_id, after, ERASED_AT_ONCE)
            found += [describe(row) for row in rows if is_about(row.body, frozenset({subject}))]
            if len(rows) < ERASED_AT_ONCE or len(found) >= most:
                return {"events.parked": found[:most]}
            after = rows[-1].id

    async def _readable(
        self, rows: Sequence[ParkedBody], force: bool
    ) -> tuple[list[tuple[ParkedBody, Event]], int, int]:  # fmt: skip
        """What can go into the journal, or has gone; how many are no events; how many are too old."""
        ready: list[tuple[ParkedBody, Event]] = []
        unreadable = old = 0
        oldest = self._clock.now() - timedelta(days=HORIZON_DAYS)
        for row in rows:
            if row.reason == Reason.UNSHIPPED:
                continue
            event = await self._event(row)
            if event is None:
                unreadable += 1
            elif not force and row.replayed_at is None and row.parked_at < oldest:
                old += 1
            else:
                ready.append((row, event))
        return ready, unreadable, old

    async def _event(self, row: ParkedBody) -> Event | None:
        try:
            return decode(row.body)
        except msgspec.DecodeError:
            return await self.reread(row) if self.reread else None

    async def _send(
        self, tenant_id: int | None, ready: Sequence[tuple[ParkedBody, Event]], careful: bool, since: datetime | None
    ) -> int:
        """Send what was not sent yet, and with care see what becomes of all; how many were parked again."""
        unsent = [(row.id, event) for row, event in ready if row.replayed_at is None]
        try:
            async with self._breaker.guard(circuit_of(tenant_id)) if self._breaker else nullcontext():
                if since is None:
                    async with self._database.worker() as tx:
                        since = await self._reader.now(tx)
                if unsent:
                    await self._edge.accept([event for _, event in unsent])
                    async with self._database.worker() as tx:
                        await self._reader.mark_replayed(tx, [parked_id for parked_id, _ in unsent])
                if careful:
                    await self._settled([event for _, event in ready], since)
        except StillBad as error:
            return error.events
        return 0

    async def _settled(self, events: Sequence[Event], since: datetime) -> None:
        """Until each is counted or parked again. Raises StillBad for the latter, and for those nobody takes up."""
        open_ = {
            (event.tenant, event.kind, storable(event.id)): key(event.kind, event.id)
            for event in events
            if type(event) is not Dropped
        }
        again = 0
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while open_ and asyncio.get_running_loop().time() < deadline:
            names = sorted(open_)
            async with self._database.worker() as tx:
                counted = await self._reader.counted(tx, [(name[0], open_[name]) for name in names])
                parked = await self._reader.parked_since(tx, names, since)
            again += len(parked)
            open_ = {
                name: each for name, each in open_.items() if name not in parked and (name[0], each) not in counted
            }
            if open_:
                await asyncio.sleep(_LOOK_EVERY_S)
        if again or open_:
            raise StillBad(again + len(open_))

    async def _note(self, chosen: Chosen, actor: str, done: Replayed) -> None:
        if not done.sent and not done.shipped:
            return
        _log.info("parked-replayed", events=done.sent, shipped=done.shipped, failed=done.failed, stopped=done.stopped)
        if chosen.tenant is None:
            return
        async with self._database.worker() as tx:
            await self._audit.write(
                tx, chosen.tenant, actor=actor, action="parked.replay", object="parked events", after=done
            )
