"""Shipping: what is committed goes to ClickHouse, once. One shipper for each owned lane, beside its counting.

Batches wait until there are enough of them or the oldest has waited long enough; then they become a group, written
down before anything is sent. The group's id is the token of its insert: a repetition, by us or by whoever owns the lane
after us, is dropped by the engine. So nothing needs to be fenced here, and a dead shipper's group is simply sent again.
The token names the batches, too: a group that has lost one to a wiped journal is another insert.

ClickHouse away is busy: counting goes on, the journal keeps the entries, nothing is parked. Rows that the engine
refuses are found by halving (on a table that keeps nothing), parked, and left out of the same insert.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import inf
from uuid import UUID

from handbill.events.batch import Batch, Owned, Parked
from handbill.events.model import Row
from handbill.events.pipeline.steps import order, read
from handbill.events.policy import ShippingPolicy
from handbill.events.reasons import Reason
from handbill.events.shipping_present import present
from handbill.events.shipping_rows import COLUMNS, Record, RowMaker, distinct_id_of, inserts
from handbill.events.shipping_store import Group, Load, ShippingStore
from handbill.events.store import EventStore
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.infra.journal.lanes import later
from handbill.infra.journal.port import Journal
from handbill.infra.postgres import Database, PostgresError
from handbill.kit.errors import Broken, Busy
from handbill.kit.ids import Ids
from handbill.kit.pulse import Pulse
from handbill.kit.telemetry import logs, metrics

_log = logs.get("shipping")
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_LAST_TRY_S = 5.0
_FLOOD_FROM = 20
# Engine codes that are about values: a text, a number, a date, a size, a constraint; 0: the driver could not write it.
OF_DATA = frozenset({0, 6, 27, 32, 33, 38, 41, 53, 69, 70, 72, 117, 128, 131, 321, 349, 469})
_NO_TABLE = frozenset({60, 81})

Owner = tuple[int, str]
Squashed = Callable[[Sequence[Owner]], Awaitable[Mapping[Owner, UUID]]]
"""The persons of those ids whose override is over; handed in by the wiring."""
Classes = Callable[[Iterable[int]], Awaitable[Mapping[int, int]]]
"""The retention class of each of these tenants; one that is kept for ever may be left out."""


class Shipping:
    """What the shippers of one process share: the engine, how rows are made, and who may say something about them."""

    def __init__(
        self,
        database: Database,
        clickhouse: ClickHouse,
        journal: Journal,
        maker: RowMaker,
        *,
        squashed: Squashed,
        classes: Classes,
        migrate: Callable[[], Awaitable[object]],
        policy: ShippingPolicy | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.database = database
        self.journal = journal
        self.store = ShippingStore()
        self.events = EventStore()
        self.policy = policy or ShippingPolicy()
        self.ids = ids or Ids()
        self.classes = classes
        self._clickhouse = clickhouse
        self._maker = maker
        self._squashed = squashed
        self._migrate = migrate

    async def insert(self, group: Group, rows: Sequence[tuple[Load, Sequence[Row]]], *, careful: bool) -> None:
        """All rows of the group, cut into inserts by size. The persons are asked for now, after the group was written:
        a squash that begins later waits until this group is done. `careful`: rows that are there are left out."""
        flat = [(load, row) for load, some in rows for row in some]
        people = await self._squashed(sorted({(row.event.tenant, distinct_id_of(row)) for _, row in flat}))
        left_out = {id(row) for load, row in flat if row.place in load.refused}
        token = _token(group, [load for load, _ in rows])
        for number, some in enumerate(inserts([row for _, row in flat])):
            kept = [row for row in some if id(row) not in left_out]
            if careful:
                there = await self._present(kept)
                kept = [row for row in kept if (row.event.tenant, row.key) not in there]
            await self._send("events", self._maker.records(kept, people, group.classes), f"{token}-{number}")

    async def refusals(self, rows: Sequence[Row]) -> dict[int, ClickHouseError]:
        """The rows that the engine refuses by themselves, by their place in the sequence."""
        most = max(_FLOOD_FROM, len(rows) // 2)
        found: dict[int, ClickHouseError] = {}
        suspects = [range(len(rows))]
        while suspects:
            some = suspects.pop()
            try:
                await self._send("events_trial", self._maker.records([rows[n] for n in some], {}, {}), None)
            except ClickHouseError as error:
                if error.code not in OF_DATA:
                    raise
                if len(some) == 1:
                    found[some[0]] = error
                else:
                    middle = len(some) // 2
                    suspects += [some[middle:], some[:middle]]
            if len(found) > most:
                raise Broken(
                    f"ClickHouse refuses more than {most} of {len(rows)} rows; nothing was parked and shipping waits:"
                    " this is a fault of the installation, not of the events.",
                    code="SHIPPING_FLOOD",
                )
        return found

    async def _present(self, rows: Sequence[Row]) -> set[tuple[int, bytes]]:
        try:
            return await present(self._clickhouse, rows)
        except ClickHouseError as error:
            if error.code not in _NO_TABLE:
                raise
            return set()

    async def _send(self, table: str, records: Sequence[Record], token: str | None) -> None:
        if not records:
            return
        columns = list(zip(*records, strict=True))
        try:
            await self._clickhouse.insert_columns(table, COLUMNS, columns, token)
        except ClickHouseError as error:
            if error.code not in _NO_TABLE:
                raise
            await self._migrate()  # ClickHouse came, or came back empty, after the house was started
            await self._clickhouse.insert_columns(table, COLUMNS, columns, token)


class LaneShipper:
    def __init__(self, owned: Owned, shipping: Shipping, pulse: Pulse) -> None:
        self._lane = owned.lane
        self._owned = owned
        self._shipping = shipping
        self._policy = shipping.policy
        self._pulse = pulse
        self._held: dict[UUID, Sequence[Row]] = {}  # what the counting still had in its hands: saves reading it again
        self._held_events = 0
        self._held_bytes = 0
        self._waiting = 0
        self._since: float | None = None
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._careful = True  # until whatever the last owner left is shipped
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
                await self._due()
                last = self._stopping.is_set()
                async with asyncio.timeout(_LAST_TRY_S if last else None):
                    await self._ship()
                wait = _FIRST_WAIT_S
            except Busy as error:
                begun = False  # a group may be written down and not sent
                self._pulse.failed(error)
                _log.warning("shipping-waits", lane=self._lane, reason=error.code)
                await self._pause(wait * (0.5 + random.random()))
                wait = min(wait * 2, _LONGEST_WAIT_S)
            except (Broken, ClickHouseError, PostgresError, TimeoutError) as error:
                begun = False
                self._pulse.failed(error)
                _log.error("shipping-broken", lane=self._lane, error=f"{type(error).__name__}: {error}")
                await self._pause(_LONGEST_WAIT_S)
            if self._stopping.is_set():
                return

    async def _begin(self) -> None:
        """What the last owner, or we, began and did not finish; then whatever waits ungrouped, at once."""
        shipping = self._shipping
        async with shipping.database.worker() as tx:
            groups = await shipping.store.open_groups(tx, self._lane)
        for group in groups:
            await self._send(group, await self._rows(group.loads))
        await self._ship()
        self._careful = False

    async def _due(self) -> None:
        """Until there are enough events, or the first of them has waited long enough, or we are told to stop."""
        while not self._stopping.is_set() and self._waiting < self._policy.ship_events:
            left = None
            if self._since is not None:
                left = self._since + self._policy.ship_wait_s - time.monotonic()
                if left <= 0:
                    return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                return

    async def _ship(self) -> None:
        """Everything that waits, group by group."""
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
                    await self._send(group, rows)
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

    async def _send(self, group: Group, rows: Sequence[tuple[Load, Sequence[Row]]]) -> None:
        started = time.perf_counter()
        careful = self._careful or len(rows) < len(group.loads)  # what was lost since may be there under another token
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
        self._pulse.beat()
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
                rows = await self._read(load)
            if rows is None:
                lost.append(load)
            else:
                found.append((load, rows))
                size += _size(rows)
        if lost:
            await self._lose(lost)
        return found

    async def _read(self, load: Load) -> Sequence[Row] | None:
        bodies = await between(self._shipping.journal, self._lane, load.start, load.end, load.events)
        if len(bodies) != load.events:
            return None
        batch = order(read(Batch(self._owned, load.start, load.end, bodies, load.start)))
        return [row for row in batch.rows if load.survivors[row.place >> 3] >> (row.place & 7) & 1]

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


async def between(journal: Journal, lane: str, start: str, end: str, events: int) -> list[bytes]:
    """The events of a range. Fewer than `events`: the journal does not have them any more."""
    bodies: list[bytes] = []
    here = start
    while len(bodies) < events:
        entries = await journal.read(lane, here, events=events - len(bodies))
        inside = [entry for entry in entries if not later(entry.id, end)]
        for entry in inside:
            bodies += entry.bodies
        if not entries or len(inside) < len(entries) or inside[-1].id == end:
            break
        here = entries[-1].id
    return bodies


def _size(rows: Sequence[Row]) -> int:
    return sum(len(row.body) for row in rows)


def _token(group: Group, loads: Sequence[Load]) -> str:
    return f"{group.id}-{blake2b(b''.join(load.id.bytes for load in loads), digest_size=8).hexdigest()}"


def _refusing(load: Load, found: Mapping[int, object]) -> Load:
    return Load(load.id, load.start, load.end, load.survivors, load.events, load.refused | found.keys())


def _parked(row: Row, error: ClickHouseError) -> Parked:
    event = row.event
    return Parked(event.tenant, event.kind, event.id, Reason.UNSHIPPED, f"ClickHouse code {error.code}", row.body)
