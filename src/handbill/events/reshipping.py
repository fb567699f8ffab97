"""The way back of events that only ClickHouse lacks: counted long ago, refused there, and sent there alone.

Each goes as a group of its own under the id of its parked row, so that a repetition is the same insert; and the engine
is asked first whether it has it. One transaction holds all of it together: the parked rows are locked, so that an
erasure comes before or after and never between, and so is the squash, since nothing here is written down as a group
that a squash would wait for. The marks stand when it commits; dying before leaves rows that are found to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from handbill.events.model import Dropped, Row, decode, key
from handbill.events.parked_model import Reshipped
from handbill.events.reader import EventReader
from handbill.events.shipping_insert import OF_DATA, Shipping
from handbill.events.shipping_store import Group, Load
from handbill.infra.clickhouse import ClickHouseError
from handbill.infra.postgres import Database
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

_log = logs.get("reshipping")
_AT_ONCE = 20


class Reshipping:
    """`lock`: the number under which squashes keep each other out; handed in by the wiring."""

    def __init__(self, database: Database, shipping: Shipping, lock: int) -> None:
        self._database = database
        self._shipping = shipping
        self._lock = lock
        self._reader = EventReader()

    async def __call__(self, ids: Sequence[UUID]) -> Reshipped:
        """What could not go is still parked: refused again, or left alone since ClickHouse or a squash is busy."""
        shipped = refused = 0
        waits = False
        for begin in range(0, len(ids), _AT_ONCE):
            some = await self._some(ids[begin : begin + _AT_ONCE])
            shipped, refused, waits = shipped + some.shipped, refused + some.refused, some.waits
            if waits:
                break
        metrics.EVENTS_SHIPPED.inc(shipped)
        return Reshipped(shipped, refused, waits)

    async def _some(self, ids: Sequence[UUID]) -> Reshipped:
        shipped: list[UUID] = []
        refused = 0
        async with self._database.worker() as tx:
            if not await self._reader.keep_out(tx, self._lock):
                _log.warning("reshipping-waits", reason="ids are being squashed")
                return Reshipped(0, 0, waits=True)
            waits = False
            for parked_id, body in await self._reader.hold_parked(tx, ids):
                try:
                    if await self._one(parked_id, body):
                        shipped.append(parked_id)
                    else:
                        refused += 1
                except Busy as error:
                    _log.warning("reshipping-waits", reason=error.code)
                    waits = True
                    break
            await self._reader.mark_replayed(tx, shipped)
        return Reshipped(len(shipped), refused, waits)

    async def _one(self, parked_id: UUID, body: bytes) -> bool:
        """False: it is still refused."""
        try:
            event = decode(body)
        except msgspec.DecodeError:
            return False
        if type(event) is Dropped:
            return False
        row = Row(0, key(event.kind, event.id), event, body)
        load = Load(parked_id, "0-0", "0-0", b"\x01", 1)
        group = Group(parked_id, (load,), await self._shipping.classes([event.tenant]))
        try:
            await self._shipping.insert(group, [(load, [row])], careful=True)
        except ClickHouseError as error:
            _log.warning("still-unshipped", tenant=event.tenant, parked=str(parked_id), code=error.code)
            if error.code not in OF_DATA:
                raise Busy(
                    f"ClickHouse refuses for a reason of its own (code {error.code}); what it lacks stays parked.",
                    code="CLICKHOUSE_BUSY",
                ) from error
            return False
        return True
