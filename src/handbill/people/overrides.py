"""Who an id is by now, told to ClickHouse: one override for each id that moved, the highest version holds.

Telling the same again changes nothing, so nothing is remembered but the version that arrived. Once the rows of an id
say its person themselves (see `squash`) the override is over; `squashed` then gives the person for every new row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse, ClickHouseError, name_lists
from handbill.infra.postgres import Database
from handbill.kit.errors import Broken
from handbill.kit.telemetry import metrics

S = sqlfiles.load("handbill.people")
Q = sqlfiles.queries("handbill.people")
TABLE = "person_distinct_id_overrides"
COLUMNS = ("tenant_id", "distinct_id", "person_id", "version", "deleted")
PORTION = 5_000
NO_TABLE = frozenset({60, 81})

Owner = tuple[int, str]


def live(version: int) -> int:
    """ClickHouse's number for an id's version."""
    return version * 2


def over(version: int) -> int:
    """The number that ends this version and no later one."""
    return version * 2 + 1


def _about(statement: str, tenant_id: int, names: str) -> str:
    return statement.replace("<<tenant>>", str(tenant_id)).replace("<<names>>", names)


class Overrides:
    def __init__(self, database: Database, clickhouse: ClickHouse) -> None:
        self._database = database
        self._clickhouse = clickhouse

    async def ship(self) -> int:
        """Tell ClickHouse of every move that it does not know; how many there were."""
        total = 0
        while True:
            async with self._database.worker() as tx:
                if not await tx.fetch(S.unshipped_ids, 1):
                    return total
                await tx.execute(S.lock_moves)
                moved = [tuple(row) for row in await tx.fetch(S.unshipped_ids, PORTION)]
                if moved:
                    rows = [(tenant, name, person, live(version), 0) for tenant, name, person, version in moved]
                    await self._clickhouse.insert(TABLE, COLUMNS, rows)
                    columns = [list(column) for column in zip(*moved, strict=True)]
                    await tx.execute(S.mark_shipped, columns[0], columns[1], columns[3])
            total += len(moved)
            metrics.OVERRIDES_SHIPPED.inc(len(moved))

    async def forget(self, tenant_id: int, ids: Sequence[str]) -> None:
        """Nothing here names these ids afterwards. For an erasure, which holds the lock on moves until its commit."""
        try:
            for names in name_lists(ids):
                if (await self._clickhouse.query(_about(Q.moves_of, tenant_id, names)))[0][0]:
                    await self._clickhouse.command(_about(Q.forget_moves, tenant_id, names), {"mutations_sync": 1})
        except ClickHouseError as error:
            if error.code not in NO_TABLE:  # it was never given anything
                raise Broken(
                    f"ClickHouse refused to forget who somebody was (code {error.code}); nothing was erased here. Ask "
                    "again.",
                    code="HISTORY_BROKEN",
                ) from error

    async def squashed(self, owners: Sequence[Owner]) -> Mapping[Owner, UUID]:
        """The persons of those ids whose rows must say it themselves."""
        async with self._database.worker() as tx:
            if not owners or not await tx.fetchval(S.any_squashed):
                return {}
            rows = await tx.fetch(S.squashed_people, [each[0] for each in owners], [each[1] for each in owners])
        return {(row[0], row[1]): row[2] for row in rows}
