"""An erased person stays away: from ClickHouse's moves whoever is writing them, and until it says something again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from handbill.events.model import CapturedEvent
from handbill.events.model import Edge as SaidEdge
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Busy
from handbill.kit.ids import Ids
from handbill.people.model import EdgeKind, person_id
from handbill.people.overrides import TABLE, Overrides
from handbill.people.service import PeopleService
from handbill.people.sink import PeopleSink
from handbill.people.squash import Squash
from handbill.tenants.service import Audit
from tests.kit.clocks import FakeClock
from tests.kit.people import commit, said, state
from tests.kit.waiting import eventually
from tests.store.test_people_sink import through

IDS = ["phone", "web", "zoe"]
WAITING = Sql(
    "select exists (select from pg_locks where locktype = 'advisory' and classid = 1886678131 and not granted)",
    "test_waiting",
)


class Gate(ClickHouse):
    """An insert of moves stands still until it is let go, once."""

    def __init__(self, inner: ClickHouse) -> None:
        self._inner = inner
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], token: str | None = None
    ) -> None:
        self.reached.set()
        await self.open.wait()
        await self._inner.insert(table, columns, rows, token)


class Away(ClickHouse):
    async def query(self, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        raise Busy("away")


@pytest.fixture
def people(database: Database, redis: Redis, history: ClickHouse, unique: Callable[[str], str]) -> PeopleService:
    clock, keys = SystemClock(), Keys(unique("people"))
    overrides = Overrides(database, history)
    return PeopleService(database, redis, Audit(clock, Ids()), clock, keys=keys, overrides=overrides)


def logins(tenant: int) -> list[CapturedEvent]:
    told = [said(tenant, f"e{n}", n, "see", each) for n, each in enumerate(IDS)]
    for n, other in enumerate(("phone", "web")):
        told.append(said(tenant, f"l{n}", 10 + n, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, other)))
    return told


async def moves(clickhouse: ClickHouse, tenant: int) -> dict[str, UUID]:
    rows = await clickhouse.query(
        f"select distinct_id, argMax(person_id, version) from {TABLE} where tenant_id = {{t:UInt32}}"
        " group by distinct_id having argMax(deleted, version) = 0",
        {"t": tenant},
    )
    return {str(name): person for name, person in rows}


async def named(clickhouse: ClickHouse, tenant: int) -> int:
    rows = await clickhouse.query(f"select count() from {TABLE} where tenant_id = {{t:UInt32}}", {"t": tenant})
    return int(rows[0][0])


async def test_moves_on_their_way_do_not_bring_a_name_back(
    people: PeopleService, database: Database, history: ClickHouse, tenant: int
) -> None:
    await commit(database, tenant, logins(tenant))
    await people.keeper.settle(tenant)
    gate = Gate(history)
    shipping = asyncio.create_task(Overrides(database, gate).ship())
    await gate.reached.wait()
    erasing = asyncio.create_task(people.erase(tenant, IDS))

    async def waits() -> bool:
        async with database.worker() as tx:
            return erasing.done() or bool(await tx.fetchval(WAITING))

    await eventually(waits, what="the erasure waits for the shipping, or is done")
    gate.open.set()
    await shipping
    cleared = await erasing
    assert (cleared["people.distinct_ids"], cleared["people.person_edges"]) == (3, 2)
    await Overrides(database, history).ship()
    assert await named(history, tenant) == 0
    left = await state(database, tenant)
    assert not any(left[table] for table in ("persons", "distinct_ids", "person_edges", "unfolded"))
    assert sum((await people.erase(tenant, IDS)).values()) == 0, "it may be asked for again"


async def test_a_store_that_is_away_leaves_the_person_to_be_found_again(
    people: PeopleService, database: Database, tenant: int
) -> None:
    await commit(database, tenant, logins(tenant))
    await people.keeper.settle(tenant)
    before = await state(database, tenant)
    people.overrides = Overrides(database, Away("http://nowhere"))
    with pytest.raises(Busy):
        await people.erase(tenant, IDS)
    assert await state(database, tenant) == before
    assert sorted(await people.siblings(tenant, "web")) == IDS


@pytest.mark.parametrize("when", ["planned", "written"])
async def test_who_returns_after_an_erasure_in_a_squash_is_who_they_are(
    people: PeopleService, database: Database, history: ClickHouse, tenant: int, when: str
) -> None:
    overrides = Overrides(database, history)

    async def appeared() -> None:
        await commit(database, tenant, logins(tenant))
        await people.keeper.settle(tenant)
        await overrides.ship()

    async def returned() -> list[UUID]:
        await people.erase(tenant, IDS)
        assert await named(history, tenant) == 0
        await appeared()
        return []

    class Watched(Squash):
        async def _write(self, *args: Any) -> None:
            await super()._write(*args)
            if when == "written":
                await returned()

    done = False

    async def shipments() -> list[UUID]:
        nonlocal done
        if when == "planned" and not done:
            done = True
            await returned()
        return []

    await appeared()
    assert await Watched(database, history, shipments, patience_s=60).run() >= 2
    zoe = person_id(tenant, "zoe")
    assert await moves(history, tenant) == {"phone": zoe, "web": zoe}


async def test_an_erased_id_that_says_something_is_back_at_once(
    people: PeopleService, database: Database, tenant: int
) -> None:
    """The process that writes it has seen it before, and does not know that it was erased."""
    sink = PeopleSink(people.keeper, FakeClock())
    book, login = b'{"plan":"pro"}', SaidEdge(EdgeKind.IDENTIFY, "phone")
    told = [
        said(tenant, "e1", 1_000, "see", "zoe", set=book),
        said(tenant, "e2", 2_000, "$identify", "ann", edge=login),
    ]
    told.append(said(tenant, "e3", 3_000, "see", "phone"))
    await through(database, sink, *told)
    before = await state(database, tenant)
    await people.erase(tenant, ["ann", "phone", "zoe"])
    assert (await state(database, tenant))["distinct_ids"] == []
    await through(database, sink, *told[:2])
    await through(database, sink, told[2])
    after = await state(database, tenant)
    for table in ("properties", "person_edges", "unfolded", "named"):
        assert after[table] == before[table], table
    assert (await people.find(tenant, "zoe")).person.properties == {"plan": "pro"}
    assert (await people.find(tenant, "phone")).person.named_by == "ann"
