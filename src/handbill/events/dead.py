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
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from handbill.events.edge import Edge
from handbill.events.model import HORIZON_DAYS, CapturedEvent, Dropped, Event, View, decode, key
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
_flat = msgspec.json.Decoder(dict[str, str])


def circuit_of(tenant_id: int | None) -> str:
    """The name of a tenant's circuit: one tenant's bad events never stop another's replay."""
    return "parked-replay" if tenant_id is None else f"parked-replay:{tenant_id}"


class OnFailure(StrEnum):
    """What a replay does about events that are still bad: `park` them again and go on, or `stop` behind them."""

    PARK = "park"
    STOP = "stop"


class Guard(Protocol):
    """The breaker that all processes share; handed in by the wiring."""

    def guard(self, name: str) -> AbstractAsyncContextManager[None]: ...


class Chosen(msgspec.Struct, frozen=True):
    """Which parked events: all of a tenant's (none: everybody's), of one reason, or those with these ids."""

    tenant: int | None
    reason: str | None = None
    ids: tuple[UUID, ...] = ()


class Replayed(msgspec.Struct, frozen=True):
    """`matched` parked events fit the filter; `sent` of them went back into the journal; a dry run sends none.

    `too_old` were parked so long ago that a copy of them may have been counted and forgotten: they need `force`.
    Of those that were counted before and that only ClickHouse lacks, `shipped` were taken there now and `unshipped`
    still wait: in the journal they would be copies.
    With `next` the time of one request was over before the end: ask again with it as `after`.
    `failed` were parked again while we watched, and `stopped` says that the rest was left alone for that.
    """

    matched: int
    sent: int
    unreadable: int
    dry_run: bool
    too_old: int = 0
    failed: int = 0
    stopped: bool = False
    unshipped: int = 0
    shipped: int = 0
    next: UUID | None = None


class Reshipped(msgspec.Struct, frozen=True):
    """`waits`: ClickHouse takes nothing now, whatever it is; the rest was left alone."""

    shipped: int
    refused: int
    waits: bool = False


Reship = Callable[[Sequence[UUID]], Awaitable[Reshipped]]
"""Sends parked rows to ClickHouse alone, and marks those that it took; handed in by the wiring."""
Reread = Callable[[ParkedBody], Awaitable[Event | None]]
"""The event of a parked entry of the compatibility stream, if it is one by now; handed in by the wiring."""


class DropReport(msgspec.Struct, frozen=True):
    """How many parked events were dropped for good. They stay in the drop counts, under the reason of their parking.

    `more`: the time of one request was over before the end; ask again.
    """

    dropped: int
    more: bool = False


class StillBad(Exception):
    """Events that were sent again came back to be parked, or were never taken up."""

    def __init__(self, events: int) -> None:
        super().__init__(f"{events} events that were sent again are not counted")
        self.events = events


class DeadLetters:
    def __init__(
        self, database: Database, edge: Edge, clock: Clock, audit: Audit | None = None,
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
        force: bool = False, actor: str = "operator", after: UUID | None = None,
        max_seconds: float | None = None,
    ) -> Replayed:  # fmt: skip
        """Through the whole pipeline again, from behind `after`. Only the first portion begins after `max_seconds`: the
        report then has `next`. Raises Busy while the circuit is open or the journal cannot be written."""
        done = await self._replay(
            chosen, on_failure, dry_run=dry_run, force=force, after=after, max_seconds=max_seconds
        )  # fmt: skip
        await self._note(chosen, actor, done)
        return done

    async def _replay(
        self, chosen: Chosen, on_failure: OnFailure, *, dry_run: bool = False, force: bool = False,
        after: UUID | None = None, max_seconds: float | None = None,
    ) -> Replayed:  # fmt: skip
        done = Replayed(0, 0, 0, dry_run)
        careful = on_failure is OnFailure.STOP
        after = after or UUID(int=0)
        reship, began = self.reship, self._clock.monotonic()
        async with self._database.worker() as tx:
            last = await self._reader.last_parked(tx) or after  # what is parked again meanwhile waits for the next time
        ended = False
        while not ended:
            if done.matched and _is_over(max_seconds, self._clock.monotonic() - began):
                done = msgspec.structs.replace(done, next=after)
                break
            async with self._database.worker() as tx:
                some = CAREFUL if careful else FULL_SPEED
                rows = await self._reader.bodies(tx, chosen.tenant, chosen.reason, chosen.ids, after, last, some)
            if not rows:
                break
            after, ended = rows[-1].id, len(rows) < some
            lacking = [row.id for row in rows if row.reason == Reason.UNSHIPPED]
            ready, unreadable, old = await self._readable(rows, force)
            done = _plus(done, matched=len(rows), unreadable=unreadable, too_old=old, unshipped=len(lacking))
            if dry_run:
                continue
            failed = 0
            if lacking and reship is not None:
                again = await reship(lacking)
                done = _plus(done, shipped=again.shipped, unshipped=-again.shipped)
                failed = again.refused if careful else 0
                reship = None if again.waits else reship
            if ready:
                failed += await self._portion(chosen.tenant, ready, careful)
            done = _plus(done, sent=len(ready), failed=failed)
            if failed:
                done = msgspec.structs.replace(done, stopped=True)
                break
        return done

    async def drop(self, chosen: Chosen, *, actor: str, max_seconds: float | None = None) -> DropReport:
        """For good, in portions, each with its line in the audit log. The caller names a reason or ids, or both."""
        if chosen.tenant is None or (chosen.reason is None and not chosen.ids):
            raise Invalid("Say which parked events: a reason or their ids. Nothing was dropped.", code="DROP_WHAT")
        began, dropped, more = self._clock.monotonic(), 0, True
        while more:
            some = await self._drop_portion(chosen.tenant, chosen, actor)
            dropped, more = dropped + some, some == DROPPED_AT_ONCE
            if _is_over(max_seconds, self._clock.monotonic() - began):
                break
        _log.info("parked-dropped", tenant=chosen.tenant, events=dropped)
        return DropReport(dropped, more)

    async def _drop_portion(self, tenant_id: int, chosen: Chosen, actor: str) -> int:
        async with self._database.worker() as tx:
            dropped = await self._reader.drop_parked(tx, tenant_id, chosen.reason, chosen.ids, DROPPED_AT_ONCE)
            if self._audit is not None and dropped:
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
                    done = await self._replay(Chosen(tenant_id, ids=portion), OnFailure.STOP)
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
        cleared, after = 0, UUID(int=0)
        while True:
            async with self._database.worker() as tx:
                rows = await self._reader.all_bodies(tx, tenant_id, after, ERASED_AT_ONCE)
                theirs = [row.id for row in rows if _tells_of(row.body, names)]
                if theirs:
                    cleared += await self._reader.erase_parked(tx, tenant_id, theirs)
            if len(rows) < ERASED_AT_ONCE:
                return {"events.parked": cleared}
            after = rows[-1].id

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """For the export registry: what of theirs is parked, or was."""
        found: list[dict[str, Any]] = []
        after = UUID(int=0)
        while True:
            async with self._database.worker() as tx:
                rows = await self._reader.all_bodies(tx, tenant_id, after, ERASED_AT_ONCE)
            found += [_told(row) for row in rows if _tells_of(row.body, frozenset({subject}))]
            if len(rows) < ERASED_AT_ONCE or len(found) >= most:
                return {"events.parked": found[:most]}
            after = rows[-1].id

    async def _readable(
        self, rows: Sequence[ParkedBody], force: bool
    ) -> tuple[list[tuple[UUID, Event]], int, int]:  # fmt: skip
        """What can go into the journal; how many are no events; how many are too old."""
        ready: list[tuple[UUID, Event]] = []
        unreadable = old = 0
        oldest = self._clock.now() - timedelta(days=HORIZON_DAYS)
        for row in rows:
            if row.reason == Reason.UNSHIPPED:
                continue
            event = await self._event(row)
            if event is None:
                unreadable += 1
            elif not force and row.parked_at < oldest:
                old += 1
            else:
                ready.append((row.id, event))
        return ready, unreadable, old

    async def _event(self, row: ParkedBody) -> Event | None:
        try:
            return decode(row.body)
        except msgspec.DecodeError:
            return await self.reread(row) if self.reread else None

    async def _portion(self, tenant_id: int | None, ready: Sequence[tuple[UUID, Event]], careful: bool) -> int:
        """Send one portion, and with care see what becomes of it; how many were parked again."""
        try:
            async with self._breaker.guard(circuit_of(tenant_id)) if self._breaker else nullcontext():
                async with self._database.worker() as tx:
                    since = await self._reader.now(tx)
                await self._edge.accept([event for _, event in ready])
                async with self._database.worker() as tx:
                    await self._reader.mark_replayed(tx, [parked_id for parked_id, _ in ready])
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
        if self._audit is None or chosen.tenant is None:
            return
        async with self._database.worker() as tx:
            await self._audit.write(
                tx, chosen.tenant, actor=actor, action="parked.replay", object="parked events", after=done
            )


def _is_over(max_seconds: float | None, seconds: float) -> bool:
    return max_seconds is not None and seconds >= max_seconds


def _tells_of(body: bytes, names: frozenset[str]) -> bool:
    """Is this somebody's event, or does it say that somebody is them? By whole ids: "7" is not in "1978"."""
    try:
        event = decode(body)
    except msgspec.DecodeError:
        return _flat_tells_of(body, names)
    if type(event) is Dropped:
        return False
    if type(event) is CapturedEvent:
        return not names.isdisjoint((event.distinct_id, event.session, event.edge.other if event.edge else None))
    return not names.isdisjoint((event.user, event.session, event.device_id if type(event) is View else None))


def _told(row: ParkedBody) -> dict[str, Any]:
    """As it was taken; the bytes as text where nobody can read them."""
    about: dict[str, Any] = {"id": str(row.id), "parked_at": row.parked_at}
    try:
        event = decode(row.body)
    except msgspec.DecodeError:
        return {**about, "body": row.body.decode("utf-8", "replace")}
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {**about, "kind": event.kind, **{name: _plain(value) for name, value in fields.items() if value}}


def _plain(value: Any) -> Any:
    """Properties are kept as the JSON they were sent in."""
    return value.decode() if isinstance(value, bytes) else msgspec.to_builtins(value)


def _flat_tells_of(body: bytes, names: frozenset[str]) -> bool:
    """An entry of the compatibility stream, or bytes that nobody can read: those go if the name is in them at all."""
    try:
        return not names.isdisjoint(_flat.decode(body).values())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return any(name.encode("utf-8", "surrogatepass") in body for name in names)


def _plus(done: Replayed, **more: int) -> Replayed:
    return msgspec.structs.replace(done, **{name: getattr(done, name) + count for name, count in more.items()})
