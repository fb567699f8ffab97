"""Events that were parked beside good ones, and a fault that can be mended, for the tests of their ways back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from handbill.events.batch import Parked
from handbill.events.model import Event, Impression, Row, encode
from handbill.events.reasons import Reason
from handbill.events.store import EventStore
from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.ids import Ids
from tests.kit.ledger import Shop
from tests.kit.loop import Loop, loop

WAITING = Sql("select count(*) from events.parked where tenant_id = $1 and replayed_at is null", "waiting")
ROWS = Sql("select count(*) from banners.banner_impressions where tenant_id = $1", "rows")


class Gate:
    """A sink with a fault that can be mended: while it stands, rows of its page are refused by the database."""

    def __init__(self) -> None:
        self.shut = True
        self.bad_tenant: int | None = None

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Nothing must be there."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        if self.shut and any(self._refuses(row) for row in rows):
            raise PostgresError("a check that is wrong", sqlstate="23514", constraint="ck", statement="gate")

    def _refuses(self, row: Row) -> bool:
        whose = self.bad_tenant is None or row.event.tenant == self.bad_tenant
        return whose and getattr(row.event, "page", None) == "bad"

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        """Nothing in Redis."""


@asynccontextmanager
async def parked(database: Database, redis: Redis, tenant: int, bad: int) -> AsyncIterator[tuple[Loop, Gate]]:
    """A loop in which so many events were parked beside good ones."""
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        gate = Gate()
        consumer = await house.consumer(start=False)
        consumer._commit._sinks = (*consumer._commit._sinks, gate)
        await consumer.start()
        mixed = [
            Impression(tenant, f"e{n}", now, now, shop.banners[0], page="bad" if n < bad else "good")
            for n in range(bad * 3)
        ]
        await house.events.accept(mixed)
        await house.drained()
        assert await count(database, WAITING, tenant) == bad
        yield house, gate


async def count(database: Database, statement: Sql, tenant: int) -> int:
    async with database.worker() as tx:
        return int(await tx.fetchval(statement, tenant))


async def park_good(
    house: Loop, tenant: int, number: int, word: str = "e", *, shop: Shop | None = None
) -> list[Impression]:
    """So many events that nothing is wrong with by now, parked as if the database had refused them."""
    shop, now = shop or await house.shop(tenant), house.clock.now_ms()
    events = [Impression(tenant, f"{word}{n}", now, now, shop.banners[0]) for n in range(number)]
    await park(house.database, events)
    return events


async def park(database: Database, events: Sequence[Event], reason: Reason = Reason.REJECTED) -> None:
    rows = [Parked(event.tenant, event.kind, event.id, reason, "", encode(event)) for event in events]
    async with database.worker() as tx:
        await EventStore().park(tx, rows, "0", Ids())
