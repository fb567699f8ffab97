"""Reads that wait: until what was accepted before them is counted, its people are worked out, and ClickHouse has it.

Nothing is held while a read waits. One look at PostgreSQL answers all that wait in this process, at most every 50 ms,
and what it saw stays true: lanes only go forward, and a mark that is gone does not come back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from handbill.events.service import LaneCursors, LaneProgress
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database
from handbill.kit.errors import Busy
from handbill.kit.read_waits import Completeness, Lag, Until
from handbill.kit.telemetry import metrics

S = sqlfiles.load("handbill.people")
_EVERY_S = 0.05
_LOOK_S = 1.0
"""How long one look may take beyond the time that a read has left."""
_MOVES = 1_000
"""Ids that are looked at for one tenant. With more, it is not said which of them a read waits for."""
_ROUNDS = 2
"""A folding that needs what another one writes leaves its mark again, once."""


class WaitLimits(msgspec.Struct, frozen=True):
    """Reads that wait at once. Those beyond are answered at once, as complete as they are."""

    of_tenant: int = 20
    of_process: int = 200


class Progress(msgspec.Struct, frozen=True):
    """What one look saw: the lanes, and of each tenant the oldest and newest mark, and what is not exported yet: the
    oldest and newest change of properties, and some moves."""

    at: float
    lanes: LaneCursors
    marks: Mapping[int, tuple[int, int] | None]
    changes: Mapping[int, tuple[int, int] | None]
    moves: Mapping[int, frozenset[str]]


class ReadWaits:
    def __init__(self, database: Database, lanes: LaneProgress, limits: WaitLimits | None = None) -> None:
        self._database = database
        self._lanes = lanes
        self._limits = limits or WaitLimits()
        self._waiting: Counter[int] = Counter()
        self._looking = asyncio.Lock()
        self._seen: Progress | None = None

    def waiting(self) -> int:
        """How many reads wait now."""
        return self._waiting.total()

    async def wait(self, tenant_id: int, seconds: float, until: Until) -> Completeness:
        """Return when all that was accepted for the tenant before the call is there, or after so many seconds."""
        with self._place(tenant_id) as is_free:
            state = await self._wait(tenant_id, seconds if is_free else 0.0, until)
        outcome = "complete" if state.complete else "incomplete" if is_free else "full"
        metrics.READS_WAITED.labels(until, outcome).inc()
        return state

    @contextmanager
    def _place(self, tenant_id: int) -> Iterator[bool]:
        """Whether the read may wait."""
        limits = self._limits
        is_free = self._waiting[tenant_id] < limits.of_tenant and self._waiting.total() < limits.of_process
        self._waiting[tenant_id] += 1
        try:
            yield is_free
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id]

    async def _wait(self, tenant_id: int, seconds: float, until: Until) -> Completeness:
        deadline = _now() + seconds
        read: _Read | None = None
        try:
            async with asyncio.timeout_at(deadline + _LOOK_S):
                read = _Read(tenant_id, await self._lanes.ends(tenant_id), until)
                while not await self._is_there(read):
                    left = deadline - _now()
                    if left <= 0:
                        break
                    await asyncio.sleep(min(_EVERY_S, left))
                else:
                    return Completeness(complete=True)
        except (Busy, TimeoutError):
            pass
        return Completeness(complete=False, lag=await self._lag(read))

    async def _is_there(self, read: _Read) -> bool:
        try:
            # The first look begins after the request came: what was merged by an operator is in no lane.
            seen = await self._look(read.tenant_id, _now() - (0 if read.is_new else _EVERY_S / 2))
            if read.is_new:
                read.ends = await self._lanes.reachable(read.ends, seen.lanes)
        except Busy:
            return False
        read.is_new = False
        return read.is_there(seen)

    async def _look(self, tenant_id: int, since: float) -> Progress:
        """What a look saw that began then or later: one of another read, or one now."""
        async with self._looking:
            seen = self._seen
            if seen is None or seen.at < since or tenant_id not in seen.marks:
                seen = self._seen = await self._read()
            return seen

    async def _read(self) -> Progress:
        at, tenants = _now(), list(self._waiting)
        async with self._database.worker() as tx:
            lanes = await self._lanes.read(tx)
            marks = await tx.fetch(S.unfolded_range, tenants)
            changes = await tx.fetch(S.property_changes_range, tenants)
            moves: dict[int, set[str]] = {}
            for row in await tx.fetch(S.unshipped_moves, tenants, _MOVES):
                moves.setdefault(row["tenant_id"], set()).add(row["distinct_id"])
        return Progress(
            at, lanes, _ranges(marks), _ranges(changes),
            {tenant: frozenset(ids) for tenant, ids in moves.items()},
        )  # fmt: skip

    async def _lag(self, read: _Read | None) -> Lag | None:
        """Null where an engine does not say it within a moment."""
        seen = self._seen
        if read is None or seen is None:
            return None
        try:
            async with asyncio.timeout(_LOOK_S):
                return await self._lanes.lag(read.ends, seen.lanes, exported=read.until == "exported")
        except (Busy, TimeoutError):
            return None


class _Read:
    """One read, and what it still waits for."""

    def __init__(self, tenant_id: int, ends: Mapping[str, str], until: Until) -> None:
        self.tenant_id = tenant_id
        self.until = until
        self.ends = ends
        self.is_new = True
        self._mark: int | None = None
        self._rounds = 0
        self._moves: frozenset[str] | None = None
        self._change: int | None = None

    def is_there(self, seen: Progress) -> bool:
        if seen.lanes.uncounted(self.ends):
            return False
        if self.until == "counted":
            return True
        if not self._is_folded(seen):
            return False
        if self.until == "people":
            return True
        are_people_exported = self._is_moved(seen) & self._is_described(seen)
        return are_people_exported and not seen.lanes.missing(self.ends)

    def _is_folded(self, seen: Progress) -> bool:
        """Every mark that was there when the events were counted is gone, and then those that were left meanwhile."""
        marks = seen.marks[self.tenant_id]
        if marks is None:
            self._rounds = _ROUNDS
        elif self._rounds < _ROUNDS and (self._mark is None or marks[0] > self._mark):
            self._rounds += self._mark is not None
            self._mark = marks[1]
        return self._rounds >= _ROUNDS

    def _is_moved(self, seen: Progress) -> bool:
        """ClickHouse knows of each move that it did not know of when the people were worked out."""
        moves = seen.moves.get(self.tenant_id, frozenset())
        if self._moves is None:
            self._moves = None if len(moves) >= _MOVES else moves
        else:
            self._moves &= moves
        return self._moves is not None and not self._moves

    def _is_described(self, seen: Progress) -> bool:
        """ClickHouse has every change of properties that it did not have when the people were worked out."""
        changes = seen.changes[self.tenant_id]
        if self._change is None:
            self._change = 0 if changes is None else changes[1]
        return changes is None or changes[0] > self._change


def _ranges(rows: Iterable[Any]) -> dict[int, tuple[int, int] | None]:
    return {row["tenant_id"]: None if row["oldest"] is None else (row["oldest"], row["newest"]) for row in rows}


def _now() -> float:
    return asyncio.get_running_loop().time()
