"""People's place in the pipeline's transaction; the folding follows the commit."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from handbill.events.model import CapturedEvent, Row
from handbill.infra.postgres import Tx
from handbill.kit.clock import Clock
from handbill.people import store
from handbill.people.definitions import Name, Remembered, Seen
from handbill.people.gather import Gathered, Owner
from handbill.people.keeper import Keeper
from handbill.people.known import KnownIds

_PENDING = 64
"""Batches between their transaction and their projection: as many as there can be lanes, and some that failed."""

NewNames = Callable[[int], Awaitable[None]]
"""Told the tenant whose definitions have a name they did not have."""


class Pending(msgspec.Struct, frozen=True, eq=False):
    """A batch as it was written: what may be remembered once its commit stands."""

    rows: Sequence[Row]
    ids: Mapping[Owner, int]
    seen: Mapping[Name, Seen]
    folds: set[int]
    named: set[int]


class PeopleSink:
    def __init__(self, keeper: Keeper, clock: Clock, new_names: NewNames | None = None) -> None:
        self._keeper = keeper
        self._clock = clock
        self._new_names = new_names
        self._remembered = Remembered(random.random)
        self._known = KnownIds(random.random)
        self._pending: list[Pending] = []

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Nothing must exist before the transaction."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        gathered = await Gathered.in_turns(_captured(rows), _captured(lowered))
        now_ms = self._clock.now_ms()
        folds = await store.write(tx, gathered, self._known.news(gathered.ids, now_ms))
        seen = gathered.seen.seen()
        named = await store.write_definitions(tx, self._remembered.news(seen, now_ms))
        self._pending.append(Pending(rows, gathered.ids, seen, folds, named))
        del self._pending[:-_PENDING]  # trials and commits that failed are never projected

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        """Who they are now, for everybody about whom the batch said something new."""
        pending = next((each for each in self._pending if each.rows is survivors), None)
        if pending is None:  # another process wrote it and died
            for tenant_id in sorted({event.tenant for event in _captured([*survivors, *refused])}):
                await self._keeper.settle(tenant_id)  # of the refused, too: a copy may have corrected the order
                await self._named(tenant_id)
            return
        for tenant_id in sorted(pending.folds):
            await self._keeper.settle(tenant_id)
        for tenant_id in sorted(pending.named):
            await self._named(tenant_id)
        self._pending = [each for each in self._pending if each is not pending]
        now_ms = self._clock.now_ms()
        self._known.learn(pending.ids, now_ms)
        self._remembered.learn(pending.seen.items(), now_ms)

    async def _named(self, tenant_id: int) -> None:
        if self._new_names is not None:
            await self._new_names(tenant_id)


def _captured(rows: Iterable[Row]) -> Iterable[CapturedEvent]:
    return (row.event for row in rows if type(row.event) is CapturedEvent)
