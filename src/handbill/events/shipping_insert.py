"""The rows of a group in ClickHouse: inserted once, and counted there before anybody calls them exported.

An engine may answer well and have kept nothing (a full disk under the embedded one did so). So after each insert the
rows of each batch are counted; where some are missing, they are found by key and sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import TypeVar
from uuid import UUID

import msgspec

from handbill.events.batch import Batch, Owned
from handbill.events.correction_store import CorrectionStore
from handbill.events.model import Row
from handbill.events.pipeline.steps import order, read
from handbill.events.policy import ShippingPolicy
from handbill.events.shipping_present import count_batches, count_rows, present
from handbill.events.shipping_rows import COLUMNS, Record, RowMaker, distinct_id_of, inserts, without_names
from handbill.events.shipping_store import Group, Load, ShippingStore
from handbill.events.store import EventStore
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.infra.journal.lanes import later
from handbill.infra.journal.port import Journal
from handbill.infra.postgres import Database
from handbill.kit.errors import Broken, Busy
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

_log = logs.get("shipping")
T = TypeVar("T")
_FLOOD_FROM = 20
_CONFIRM_ATTEMPTS = 2
# Engine codes that are about values: a text, a number, a date, a size, a constraint; 0: the driver could not write it.
OF_DATA = frozenset({0, 6, 27, 32, 33, 38, 41, 53, 69, 70, 72, 117, 128, 131, 321, 349, 469})
_NO_TABLE = frozenset({60, 81})
_NOT_MIGRATED = _NO_TABLE | {16}

Owner = tuple[int, str]
Squashed = Callable[[Sequence[Owner]], Awaitable[Mapping[Owner, UUID]]]
"""The persons of those ids whose override is over; handed in by the wiring."""
Classes = Callable[[Iterable[int]], Awaitable[Mapping[int, int]]]
"""The retention class of each of these tenants; one that is kept for ever may be left out."""
ErasedSince = Callable[[Collection[int], datetime], Awaitable[Collection[int]]]
"""Those of the tenants where a person was erased at that time or later; handed in by the wiring."""
Send = Callable[[Sequence[Row], str], Awaitable[None]]


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
        erased: ErasedSince,
        migrate: Callable[[], Awaitable[object]],
        policy: ShippingPolicy | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.database = database
        self.journal = journal
        self.store = ShippingStore()
        self.events = EventStore()
        self._corrections = CorrectionStore()
        self.policy = policy or ShippingPolicy()
        self.ids = ids or Ids()
        self.classes = classes
        self._clickhouse = clickhouse
        self._maker = maker
        self._squashed = squashed
        self._erased = erased
        self._migrate = migrate

    async def insert(self, group: Group, rows: Sequence[tuple[Load, Sequence[Row]]], *, careful: bool) -> None:
        """All rows of the group, cut into inserts by size, and counted afterwards. Raises Busy while some are missing.

        The persons are asked for now, after the group was written: a squash that begins later waits until this group is
        done. `careful`: rows that are there are left out.
        """
        flat = [(load, row) for load, some in rows for row in await self._nameless(load, some)]
        flat = await self._corrected(flat)
        people = await self._squashed(sorted({(row.event.tenant, distinct_id_of(row)) for _, row in flat}))
        load_of = {id(row): load for load, row in flat}
        token = _token(group, [load for load, _ in rows])

        async def send(some: Sequence[Row], token: str) -> None:
            records = await self._maker.records(some, people, group.classes)
            await self._send("events", records, token, [load_of[id(row)].id.bytes for row in some])

        for number, some in enumerate(inserts([row for _, row in flat])):
            wanted = [row for row in some if row.place not in load_of[id(row)].refused]
            if careful:
                wanted = await self.missing(wanted)
            await send(wanted, f"{token}-{number}")
        await self._confirm([(load, row) for load, row in flat if row.place not in load.refused], token, send)

    async def _corrected(self, rows: list[tuple[Load, Row]]) -> list[tuple[Load, Row]]:
        """The same, with the sequences that the events have by now. A copy that comes later is the corrector's."""
        async with self.database.worker() as tx:
            sequences = await self._corrections.sequences(tx, [row for _, row in rows])
        if not sequences:
            return rows
        return [(load, _with_sequence(row, sequences.get((row.event.tenant, row.key)))) for load, row in rows]

    async def _confirm(self, rows: Sequence[tuple[Load, Row]], token: str, send: Send) -> None:
        """Count what is there. Rows that the engine took and does not have are sent again, under other tokens: the
        first may be remembered although its rows are gone."""
        for attempt in range(_CONFIRM_ATTEMPTS):
            missing = await self._uncounted(rows)
            if not missing:
                return
            metrics.EXPORT_ROWS_MISSING.inc(len(missing))
            _log.error("export.rows_missing", rows=len(missing), of=len(rows), token=token, attempt=attempt)
            await send(missing, f"{token}-again-{attempt}-{_digest([row.key for row in missing])}")
        if missing := await self._uncounted(rows):
            raise Busy(
                f"ClickHouse took {len(rows)} rows and does not have {len(missing)} of them; they will be sent again.",
                code="EXPORT_INCOMPLETE",
            )

    async def _uncounted(self, rows: Sequence[tuple[Load, Row]]) -> list[Row]:
        """By number first, which is cheap; by key where fewer are there than were sent."""
        if not rows:
            return []
        stored = await self._asked(count_rows(self._clickhouse, rows), Counter[UUID]())
        wanted = Counter(load.id for load, _ in rows)
        short = {batch for batch, number in wanted.items() if stored[batch] < number}
        return await self.missing([row for load, row in rows if load.id in short]) if short else []

    async def missing(self, rows: Sequence[Row]) -> list[Row]:
        """Those of these rows that ClickHouse does not have, by key."""
        there = await self._asked(present(self._clickhouse, rows), set[tuple[int, bytes]]())
        return [row for row in rows if (row.event.tenant, row.key) not in there]

    async def stored(self, batches: Sequence[UUID]) -> Counter[UUID]:
        """How many rows ClickHouse has of each of these batches."""
        return await self._asked(count_batches(self._clickhouse, batches), Counter[UUID]())

    async def survivors(self, lane: str, load: Load) -> list[Row] | None:
        """The rows of a committed batch, from the journal, in the order of their keys; None when it has lost some."""
        bodies = await between(self.journal, lane, load.start, load.end, load.events)
        if len(bodies) != load.events:
            return None
        batch = order(read(Batch(Owned(lane, 0, 0), load.start, load.end, bodies, load.start)))
        return [row for row in batch.rows if load.survived(row.place)]

    async def _asked(self, answer: Awaitable[T], without_table: T) -> T:
        try:
            return await answer
        except ClickHouseError as error:
            if error.code not in _NO_TABLE:
                raise
            return without_table

    async def _nameless(self, load: Load, rows: Sequence[Row]) -> Sequence[Row]:
        """A batch that is exported again may name people who were erased meanwhile. Who exactly is not kept, so the
        rows of such a tenant go without any name, as an erasure leaves them."""
        if not load.requeued:
            return rows
        erased = await self._erased({row.event.tenant for row in rows}, load.created_at)
        return [without_names(row, self.ids.new()) if row.event.tenant in erased else row for row in rows]

    async def refusals(self, rows: Sequence[Row]) -> dict[int, ClickHouseError]:
        """The rows that the engine refuses by themselves, by their place in the sequence."""
        most = max(_FLOOD_FROM, len(rows) // 2)
        found: dict[int, ClickHouseError] = {}
        suspects = [range(len(rows))]
        while suspects:
            some = suspects.pop()
            try:
                await self._send("events_trial", await self._maker.records([rows[n] for n in some], {}, {}))
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

    async def _send(
        self, table: str, records: Sequence[Record], token: str | None = None, batches: Sequence[bytes] = ()
    ) -> None:
        if not records:
            return
        names: tuple[str, ...] = COLUMNS
        columns: list[Sequence[object]] = list(zip(*records, strict=True))
        if batches:
            names, columns = (*COLUMNS, "batch_id"), [*columns, batches]
        try:
            await self._clickhouse.insert_columns(table, names, columns, token)
        except ClickHouseError as error:
            if error.code not in _NOT_MIGRATED:
                raise
            await self._migrate()  # ClickHouse came, or came back empty, after this process was started
            await self._clickhouse.insert_columns(table, names, columns, token)


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


def _with_sequence(row: Row, sequence: int | None) -> Row:
    if sequence is None or sequence >= row.event.sequence:
        return row
    return msgspec.structs.replace(row, event=msgspec.structs.replace(row.event, sequence=sequence))


def _token(group: Group, loads: Sequence[Load]) -> str:
    return f"{group.id}-{_digest([load.id.bytes for load in loads])}"


def _digest(parts: Sequence[bytes]) -> str:
    return blake2b(b"".join(parts), digest_size=8).hexdigest()
