"""What people are like now, exported to ClickHouse for questions about events by properties of people.

Every change of a person leaves a row in the same transaction (a trigger). The row's number, taken while the person's
row is held, is the version in ClickHouse, so of two exports of one person the later change holds, however often and in
whatever order they are sent. The rows go in the transaction that reads the people, and it ends after ClickHouse has
answered: whoever dies in between leaves them, and they are sent again. People that were there before the first export
are sent once with version 0, which any change exceeds.

An erasure holds the lock of exports until its commit, so that nobody brings back what it takes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.infra.postgres import Database, Tx
from handbill.kit.errors import Broken
from handbill.kit.telemetry import metrics
from handbill.people.model import person_id
from handbill.people.overrides import NO_TABLE

S = sqlfiles.load("handbill.people")
Q = sqlfiles.queries("handbill.people")
TABLE = "person_properties"
COLUMNS = ("tenant_id", "person_id", "properties", "version", "deleted")
PORTION = 2_000
PORTION_BYTES = 8 << 20
_NAMED_AT_ONCE = 1_000
_NOBODY = UUID(int=0)


class PropertyExport:
    """Exports properties of people, forgets them, and starts again. One exports at a time, whoever it is."""

    def __init__(
        self, database: Database, clickhouse: ClickHouse, portion: int = PORTION, portion_bytes: int = PORTION_BYTES
    ) -> None:
        self._database = database
        self._clickhouse = clickhouse
        self._portion = portion
        self._portion_bytes = portion_bytes

    async def ship(self) -> int:
        """Send what changed; then, a portion at a time, people that were there before. How many people were sent."""
        total = 0
        while sent := await self._changes():
            total += sent
        return total + await self._backfill()

    async def _changes(self) -> int:
        async with self._database.worker() as tx:
            if not await tx.fetchval(S.any_property_changes):
                return 0
            await tx.execute(S.lock_moves)
            rows = await tx.fetch(S.take_property_changes, self._portion, self._portion_bytes)
            await self._send([_row(row, row["change_id"]) for row in rows])
        return len(rows)

    async def _backfill(self) -> int:
        """One portion of the people that were there before."""
        async with self._database.worker() as tx:
            if await tx.fetchrow(S.backfill_place) is None:
                return 0
            await tx.execute(S.lock_moves)
            place = await tx.fetchrow(S.backfill_place)
            if place is None:
                return 0
            rows = await tx.fetch(S.next_properties, *place, self._portion, self._portion_bytes)
            await self._send([_row(row, 0) for row in rows if row["properties"] != "{}"])
            last = (rows[-1]["tenant_id"], rows[-1]["person_id"]) if rows else tuple(place)
            await tx.execute(S.move_backfill, *last, not rows)
        return len(rows)

    async def _send(self, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            await self._clickhouse.insert(TABLE, COLUMNS, rows)
            metrics.PERSON_PROPERTIES_EXPORTED.inc(len(rows))

    async def forget(self, tx: Tx, tenant_id: int, ids: Sequence[str]) -> None:
        """Nothing in ClickHouse says what the people of these ids are like. For an erasure, in its transaction and
        under the lock of moves. Who remains of them is sent again after its commit."""
        current = {row[0] for row in await tx.fetch(S.people_of_erased, tenant_id, ids)}
        people = sorted(current | {person_id(tenant_id, each) for each in ids})
        for first in range(0, len(people), _NAMED_AT_ONCE):
            some = people[first : first + _NAMED_AT_ONCE]
            statement = Q.forget_properties.replace("<<tenant>>", str(tenant_id))
            named = ", ".join(f"toUUID('{each}')" for each in some)
            try:
                await self._clickhouse.command(statement.replace("<<people>>", named), {"mutations_sync": 1})
            except ClickHouseError as error:
                if error.code not in NO_TABLE:  # it was never given anything
                    raise Broken(
                        f"ClickHouse refused to forget what somebody is like (code {error.code}); nothing was erased "
                        "here. Ask again.",
                        code="HISTORY_BROKEN",
                    ) from error
        await tx.execute(S.add_property_changes, tenant_id, people)

    async def rebuild(self) -> None:
        """Forget all of it in ClickHouse and send everybody again, from the next export on."""
        async with self._database.worker() as tx:
            await tx.execute(S.lock_moves)
            await self._clickhouse.command(Q.clear_properties)
            await tx.execute(S.move_backfill, 0, _NOBODY, False)


def _row(row: Any, version: int) -> tuple[int, UUID, str, int, int]:
    """As JSON without spaces, like the properties of events; somebody who is gone or has none is a deleted row."""
    properties = row["properties"]
    is_gone = properties is None or properties == "{}"
    text = "" if is_gone else msgspec.json.encode(msgspec.json.decode(properties)).decode()
    return row["tenant_id"], row["person_id"], text, version, int(is_gone)
