"""How far the lanes are with what was accepted: counted in PostgreSQL, and exported to ClickHouse."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from handbill.events.shipping_store import ShippingStore
from handbill.events.store import EventStore
from handbill.infra.journal.lanes import Lanes, later
from handbill.infra.journal.port import START, Journal
from handbill.infra.postgres import Tx
from handbill.kit.read_waits import Lag

Ends = Mapping[str, str]
"""Lanes, and the cursor behind the last event of each that matters."""


class LaneCursors(msgspec.Struct, frozen=True):
    """Of each lane, up to where its events are counted, and where those begin that ClickHouse does not have."""

    counted: Mapping[str, str]
    unexported: Mapping[str, str]

    def uncounted(self, ends: Ends) -> dict[str, str]:
        """The lanes that are not counted so far."""
        return {lane: end for lane, end in ends.items() if later(end, self.counted.get(lane, START))}

    def missing(self, ends: Ends) -> dict[str, str]:
        """The lanes that are not exported so far."""
        behind = self.uncounted(ends)
        waiting = {lane: end for lane, end in ends.items() if later(end, self.unexported.get(lane, end))}
        return behind | waiting


class LaneProgress:
    def __init__(self, journal: Journal, lanes: Lanes) -> None:
        self._journal = journal
        self._lanes = lanes
        self._store = EventStore()
        self._shipping = ShippingStore()

    async def ends(self, tenant_id: int) -> dict[str, str]:
        """The ends of the lanes that may hold this tenant's events, as they are now."""
        own = self._lanes.overflow_for(tenant_id)
        lanes = [lane for lane, _ in self._lanes.all() if lane == own or not self._lanes.is_overflow(lane)]
        return dict(zip(lanes, await asyncio.gather(*map(self._journal.end, lanes)), strict=True))

    async def read(self, tx: Tx) -> LaneCursors:
        """In this order: a batch that is committed in between is seen as not exported."""
        counted = await self._store.cursors(tx)
        unexported = await self._shipping.unshipped_from(tx)
        return LaneCursors(counted, {lane: cursor for lane, (cursor, _) in unexported.items()})

    async def reachable(self, ends: Ends, cursors: LaneCursors) -> dict[str, str]:
        """The ends; of lanes with nothing behind it, the cursor. An end may be a mark that keeps ids growing."""
        behind = cursors.uncounted(ends)
        lags = await asyncio.gather(*(self._journal.lag(lane, _begin(cursors, lane)) for lane in behind))
        empty = {lane for lane, lag in zip(behind, lags, strict=True) if not lag.events}
        return {lane: _begin(cursors, lane) if lane in empty else end for lane, end in ends.items()}

    async def lag(self, ends: Ends, cursors: LaneCursors, *, exported: bool) -> Lag:
        """Events behind the cursors of these lanes, and the age of the oldest."""
        begins = [_begin(cursors, lane, exported=exported) for lane in ends]
        lags = await asyncio.gather(*map(self._journal.lag, ends, begins))
        seconds = max((lag.seconds for lag in lags if lag.events), default=0.0)
        return Lag(round(seconds, 3), sum(lag.events for lag in lags))


def _begin(cursors: LaneCursors, lane: str, *, exported: bool = False) -> str:
    counted = cursors.counted.get(lane, START)
    return cursors.unexported.get(lane, counted) if exported else counted
