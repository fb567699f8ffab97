"""Squashing: the overrides of ids that have moved are written into their rows and end. Slow, rare and always safe.

    plan      in PostgreSQL: the ids, their persons and versions; from its commit on every new group asks who they are
    wait      until the groups that were open then are done: theirs are the last rows that may say something older
    write     a mutation puts the persons into the rows, from a table of this run's own
    end       each override gets a mark that ends its version, and none later; then the plan is forgotten

It may die anywhere: the plan stands, and whoever comes next does all of it again. An id that moves meanwhile has a
higher version, so its new override holds over whatever is written or ended here. One that is erased meanwhile leaves
the plan, which is read anew under the lock that erasures hold too before anything names an id: should it return, it
begins at no version at all, and neither an old person nor an old end may come after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database, Tx
from handbill.kit.errors import Broken, Busy
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics
from handbill.people.overrides import COLUMNS, TABLE, over

S = sqlfiles.load("handbill.people")
Q = sqlfiles.queries("handbill.people")
_log = logs.get("squash")
MOST = 50_000
PATIENCE_S = 600.0
LOCK = int.from_bytes(blake2b(b"squash", digest_size=8).digest(), "big") >> 1
_LOOK_S = 0.05
_SLOWEST_LOOK_S = 2.0
_PREFIX = "squashing_"

Shipments = Callable[[], Awaitable[Collection[UUID]]]
"""The groups of events that are on their way to ClickHouse now; handed in by the wiring."""


class Planned(msgspec.Struct, frozen=True):
    tenant_id: int
    distinct_id: str
    person_id: UUID
    version: int


class Squash:
    def __init__(
        self, database: Database, clickhouse: ClickHouse, shipments: Shipments, *,
        ids: Ids | None = None, patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self._database = database
        self._clickhouse = clickhouse
        self._shipments = shipments
        self._ids = ids or Ids()
        self._patience_s = patience_s

    async def run(self, most: int = MOST) -> int:
        """Squash so many ids at the most; how many there were. 0 while another process does it."""
        async with self._database.session() as session:
            if not await session.try_lock(LOCK):
                return 0
            try:
                plan = await self._plan() or await self._new_plan(most)
                if plan:
                    await self._carry_out(len(plan))
                else:
                    await self._tidy()
                return len(plan)
            finally:
                if not session.is_closed():
                    await session.unlock(LOCK)

    async def _plan(self) -> list[Planned]:
        async with self._database.worker() as tx:
            return await _planned(tx)

    async def _new_plan(self, most: int) -> list[Planned]:
        async with self._database.worker() as tx:
            await tx.execute(S.begin_squash, most)
        return await self._plan()

    async def _carry_out(self, planned: int) -> None:
        await self._tidy()
        before = set(await self._shipments())

        async def arrived() -> bool:
            return not before & set(await self._shipments())

        await self._until(arrived, "earlier events are still on their way to ClickHouse")
        await self._write()
        async with self._database.worker() as tx:
            await tx.execute(S.lock_moves)
            left = await _planned(tx)
            ended = [(each.tenant_id, each.distinct_id, each.person_id, over(each.version), 1) for each in left]
            await self._clickhouse.insert(TABLE, COLUMNS, ended)
            await tx.execute(
                S.end_squash, [each.tenant_id for each in left], [each.distinct_id for each in left],
                [each.version for each in left],
            )  # fmt: skip
        await self._clickhouse.command(Q.tidy_overrides.text)
        metrics.OVERRIDES_SQUASHED.inc(planned)
        _log.info("overrides-squashed", ids=planned)

    async def _write(self) -> None:
        """A table of this run's own: nobody else's run can take it away from under the mutation.

        Rows that come after the mutation has begun are none of its business, so the lock is held no longer than that.
        """
        table = f"{_PREFIX}{self._ids.new().hex}"
        await self._clickhouse.command(Q.make_table.text.replace("<<table>>", table))
        async with self._database.worker() as tx:
            await tx.execute(S.lock_moves)
            plan = await _planned(tx)
            rows = [(each.tenant_id, each.distinct_id, each.person_id) for each in plan]
            await self._clickhouse.insert(table, ("tenant_id", "distinct_id", "person_id"), rows)
            name = f"{self._clickhouse.database}.{table}"
            tenants = ", ".join(str(number) for number in sorted({each.tenant_id for each in plan}))
            mutation = Q.write_people.text.replace("<<table>>", name).replace("<<tenants>>", tenants)
            if plan:
                await self._clickhouse.command(mutation, {"mutations_sync": 0})

        async def written() -> bool:
            return not await self._running(table)

        await self._until(written, "the mutation is not done yet")
        await self._clickhouse.command(Q.drop_table.text.replace("<<table>>", table))

    async def _running(self, word: str) -> list[str]:
        """Mutations under way that name this word. One that fails would be tried for ever: it is ended and told."""
        rows = await self._clickhouse.query(Q.running.text, {"word": word})
        for mutation, _, reason in rows:
            if reason:
                await self._clickhouse.command(Q.kill_mutation.text.replace("<<mutation>>", mutation))
                raise Broken(f"Overrides could not be written into their rows: {reason}", code="SQUASH_FAILED")
        return [str(row[1]) for row in rows]

    async def _tidy(self) -> None:
        """What a dead run has left: its mutation may still work, its table goes when it does not."""
        running = " ".join(await self._running(_PREFIX))
        rows = await self._clickhouse.query(Q.leftovers.text, {"word": _PREFIX})
        for (name,) in rows:
            if name not in running:
                await self._clickhouse.command(Q.drop_table.text.replace("<<table>>", name))

    async def _until(self, true: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        waited, pause = 0.0, _LOOK_S
        while not await true():
            if waited >= self._patience_s:
                raise Busy(f"Squashing waits: {otherwise}; the plan stands.", code="SQUASH_WAITS", retry_after=60)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 1.2, _SLOWEST_LOOK_S)


async def _planned(tx: Tx) -> list[Planned]:
    return [Planned(*tuple(row)) for row in await tx.fetch(S.squash_plan)]
