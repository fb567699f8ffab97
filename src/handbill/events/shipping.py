"""Shipping: what is committed goes to ClickHouse, once. One shipper for each owned lane, beside its counting.

Batches wait until there are enough of them or the oldest has waited long enough; then they become a group, written
down before anything is sent. The group's id is the token of its insert: a repetition, by us or by whoever owns the lane
after us, is dropped by the engine. So nothing needs to be fenced here, and a dead shipper's group is simply sent again.
The token names the batches, too: a group that has lost one to a wiped journal is another insert.

A group is done when ClickHouse has counted its rows, not when it has taken them (`shipping_insert`).

ClickHouse away is busy: counting goes on, the journal keeps the entries, nothing is parked. Rows that the engine
refuses are found by halving (on a table that keeps nothing), parked, and left out of the same insert.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from math import inf
from uuid import UUID

import msgspec

from handbill.events.batch import Batch, Owned, Parked
from handbill.events.model import Row
from handbill.events.reasons import Reason
from handbill.events.shipping_insert import OF_DATA, Shipping
from handbill.events.shipping_store import Group, Load
from handbill.infra.clickhouse import ClickHouseError
from handbill.infra.postgres import PostgresError
from handbill.kit.errors import Broken, Busy
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry import logs, metrics

_log = logs.get("shipping")
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_LAST_TRY_S = 5.0
_BATCHES = 200
"""The most batches of one group, by the statement `waiting_batches`."""


class LaneShipper:
    def __init__(self, owned: Owned, shipping: Shipping, health: TaskHealth) -> None:
        self._lane = owned.lane
        self._shipping = shipping
        self._policy = shipping.policy
        self.health = health
        self._held: dict[UUID, Sequence[Row]] = {}  # what the counting still had in its hands: saves reading it again
        self._held_events = 0
        self._held_bytes = 0
        self._waiting = 0
        self._since: float | None = None
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._careful = True  # until whatever the last owner left is shipped: it may be there under other tokens
        self.shipped = asyncio.Event()
        """Set while nothing of this lane waits, as far as this process knows."""

    def stop(self) -> None:
        self._stopping.set()
        self._news.set()

    def offer(self, batch: Batch) -> None:
        """A batch was committed. Its rows are kept if there is room; if not, the journal has them."""
        if not batch.survivors or batch.id is None:
            return
        self.shipped.clear()
        events, size = len(batch.survivors), _size(batch.survivors)
        policy = self._policy
        if self._held_events + events <= policy.hold_events and self._held_bytes + size <= policy.hold_bytes:
            self._held[batch.id] = batch.survivors
            self._held_events += events
            self._held_bytes += size
        self._waiting += events
        if self._since is None:
            self._since = time.monotonic()
        if self._waiting >= self._policy.ship_events or self._waiting == events:
            self._news.set()

    async def run(self) -> None:
        wait = _FIRST_WAIT_S
        begun = False
        while True:
            try:
                if not begun:
                    await self._begin()
                    begun = True
                    self.health.succeeded()  # a lane without events comes to the end of its wait much later
                await self._due()
                last = self._stopping.is_set()
                async with asyncio.timeout(_LAST_TRY_S if last else None):
                    await self._ship()
                self.health.succeeded()
                wait = _FIRST_WAIT_S
            except Busy as error:
                begun = False  # a group may be written down and not sent
                self.health.failed(error)
                _log.warning("shipping-waits", lane=self._lane, reason=error.code)
                await self._pause(wait * (0.5 + random.random()))
                wait = min(wait * 2, _LONGEST_WAIT_S)
            except (Broken, ClickHouseError, PostgresError, TimeoutError) as error:
                begun = False
                self.health.failed(error)
                _log.error("shipping-broken", lane=self._lane, error=f"{type(error).__name__}: {error}")
                await self._pause(_LONGEST_WAIT_S)
            if self._stopping.is_set():
                return

    async def _begin(self) -> None:
        """What the last owner, or we, began and did not finish; then whatever waits ungrouped, at once."""
        shipping = self._shipping
        async with shipping.database.worker() as tx:
            groups = await shipping.store.open_groups(tx, self._lane)
        for group in groups:  # an earlier try may have stored some of their rows, under whatever token
            await self._send(group, await self._rows(group.loads), careful=True)
        await self._ship(everything=True)
        self._careful = False

    async def _due(self) -> None:
        """Until there are enough events, or the first of them has waited long enough, or we are told to stop."""
        while not self._stopping.is_set() and self._waiting < self._policy.ship_events:
            left = self._policy.look_every_s  # the auditor may have sent a batch back
            if self._since is not None:
                left = self._since + self._policy.ship_wait_s - time.monotonic()
                if left <= 0:
                    return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                return

    async def _ship(self, *, everything: bool = False) -> None:
        """What waits, group by group. Of what comes meanwhile, a few events wait for more unless `everything` is to go:
        under load something always comes, and each group is a part of a table that ClickHouse must merge."""
        shipping = self._shipping
        while True:
            self._waiting, self._since = 0, None
            async with shipping.database.worker() as tx:
                loads = await shipping.store.waiting(tx, self._lane, self._policy.most_events)
            if not loads:
                break
            self._since = time.monotonic()  # not empty-handed: whatever happens now, look again soon
            rows = await self._rows(loads, self._policy.most_bytes)
            if rows:
                tenants = {row.event.tenant for _, some in rows for row in some}
                group = Group(shipping.ids.new(), tuple(load for load, _ in rows), await shipping.classes(tenants))
                if await self._write(group):
                    await self._send(group, rows, careful=self._careful)
            is_whole = (
                len(rows) == len(loads) < _BATCHES and sum(load.events for load in loads) < self._policy.most_events
            )
            is_last = everything or self._stopping.is_set()
            if is_whole and not is_last and 0 < self._waiting < self._policy.ship_events:
                return  # `_since` is when this group began: they go when that is as long ago as a first event may wait
        if not self._waiting:
            self._held.clear()
            self._held_events = self._held_bytes = 0
            self.shipped.set()

    async def _write(self, group: Group) -> bool:
        """Before anything is sent. False: the lane's next owner was faster with one of the batches."""
        try:
            async with self._shipping.database.worker() as tx:
                if not await self._shipping.store.write_group(tx, group, self._lane):
                    raise _Taken  # noqa: TRY301 - the way out of the transaction that undoes it
        except _Taken:
            return False
        return True

    async def _send(self, group: Group, rows: Sequence[tuple[Load, Sequence[Row]]], *, careful: bool) -> None:
        started = time.perf_counter()
        # What was lost since may be there under another token; of what the auditor sent back most is there.
        careful = careful or len(rows) < len(group.loads) or any(load.requeued for load in group.loads)
        try:
            await self._shipping.insert(group, rows, careful=careful)
        except ClickHouseError as error:
            if error.code not in OF_DATA:
                raise
            rows = await self._set_aside(rows, error)
            group = Group(group.id, tuple(load for load, _ in rows), group.classes)
            await self._shipping.insert(group, rows, careful=careful)
        async with self._shipping.database.worker() as tx:
            await self._shipping.store.finish(tx, group.id)
        number = sum(len(some) for _, some in rows)
        for load, some in rows:
            if self._held.pop(load.id, None) is not None:
                self._held_events -= len(some)
                self._held_bytes -= _size(some)
        self.health.heartbeat()
        metrics.EVENTS_SHIPPED.inc(number)
        metrics.PIPELINE_SECONDS.labels("ship").observe(time.perf_counter() - started)

    async def _rows(self, loads: Sequence[Load], most: float = inf) -> list[tuple[Load, Sequence[Row]]]:
        """The survivors of each batch, in the order of their keys. What the journal has lost is told, and left out.

        After `most` bytes the rest is left for another group; a group that is written down already has them all.
        """
        found: list[tuple[Load, Sequence[Row]]] = []
        lost: list[Load] = []
        size = 0
        for load in loads:
            if size >= most:
                break
            rows = self._held.get(load.id)
            if rows is None:
                rows = await self._shipping.survivors(self._lane, load)
            if rows is None:
                lost.append(load)
            else:
                found.append((load, rows))
                size += _size(rows)
        if lost:
            await self._lose(lost)
        return found

    async def _lose(self, loads: Sequence[Load]) -> None:
        async with self._shipping.database.worker() as tx:
            events = await self._shipping.store.lose(tx, [load.id for load in loads])
        metrics.EVENTS_SHIPPING_LOST.inc(events)
        _log.error(
            "shipping-gap", lane=self._lane, events=events, start=loads[0].start, end=loads[-1].end,
            detail="the journal was lost before ClickHouse had these; PostgreSQL has counted them",
        )  # fmt: skip

    async def _set_aside(
        self, rows: Sequence[tuple[Load, Sequence[Row]]], error: ClickHouseError
    ) -> list[tuple[Load, Sequence[Row]]]:
        """Park the poison rows and write down that they are left out, so that a repetition leaves out the same."""
        flat = [(load, row) for load, some in rows for row in some if row.place not in load.refused]
        poison = await self._shipping.refusals([row for _, row in flat])
        if not poison:
            raise Broken(f"ClickHouse refused a group of rows and none of them alone: {error}", code="SHIPPING_REFUSED")
        by_load: dict[UUID, dict[int, tuple[Row, ClickHouseError]]] = {}
        for number, refused in poison.items():
            load, row = flat[number]
            by_load.setdefault(load.id, {})[row.place] = (row, refused)
        async with self._shipping.database.worker() as tx:
            for load, _ in rows:
                found = by_load.get(load.id)
                if found and await self._shipping.store.refuse(tx, load.id, sorted(load.refused | found.keys())):
                    parked = [_parked(row, refused) for row, refused in found.values()]
                    await self._shipping.events.park(tx, parked, self._lane, self._shipping.ids)
        metrics.EVENTS_PARKED.labels(Reason.UNSHIPPED).inc(len(poison))
        _log.warning("events-unshipped", lane=self._lane, events=len(poison), reason=Reason.UNSHIPPED)
        return [(_refusing(load, by_load.get(load.id, {})), some) for load, some in rows]

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


class _Taken(Exception):
    """One of the batches belongs to another group."""


def _size(rows: Sequence[Row]) -> int:
    return sum(len(row.body) for row in rows)


def _refusing(load: Load, found: Mapping[int, object]) -> Load:
    return msgspec.structs.replace(load, refused=load.refused | found.keys())


def _parked(row: Row, error: ClickHouseError) -> Parked:
    event = row.event
    return Parked(event.tenant, event.kind, event.id, Reason.UNSHIPPED, f"ClickHouse code {error.code}", row.body)
