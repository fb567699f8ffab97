"""Properties of people in ClickHouse are what PostgreSQL has folded: after any history, death or erasure."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.sqlfiles import Sql
from handbill.insights import compile
from handbill.insights.compile import Range
from handbill.insights.model import Filter
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.clock import SystemClock
from handbill.kit.ids import Ids
from handbill.people.model import person_id
from handbill.people.overrides import Overrides
from handbill.people.property_export import COLUMNS, TABLE, PropertyExport
from handbill.people.service import PeopleService
from handbill.tenants.service import Audit
from tests.conftest import MakeTenant
from tests.kit import people as generated
from tests.kit.crashes import enumerate_points
from tests.kit.people import commit, said
from tests.kit.waiting import eventually
from tests.store.test_people_erasure import WAITING, Gate

FOLDED = Sql("select person_id, properties from people.persons where tenant_id = $1 and properties <> '{}'", "t_folded")
UNMARK = Sql("delete from people.property_changes where tenant_id = $1", "t_unmark")
AGAIN = Sql(
    "update people.property_backfill set after_tenant = $1 - 1, after_person = 'ffffffff-ffff-ffff-ffff-ffffffffffff',"
    " finished_at = null",
    "t_again", "tests", "one row of the installation",
)  # fmt: skip
CHANGES = ("ch:insert", "pg:commit")


@pytest.fixture
def people(database: Database, redis: Redis, history: ClickHouse, unique: Callable[[str], str]) -> PeopleService:
    clock, keys = SystemClock(), Keys(unique("people"))
    exports = PropertyExport(database, history)
    overrides = Overrides(database, history)
    return PeopleService(
        database, redis, Audit(clock, Ids()), clock, keys=keys, overrides=overrides, property_export=exports
    )  # fmt: skip


async def folded(database: Database, tenant: int) -> dict[UUID, Any]:
    async with database.worker() as tx:
        return {row[0]: json.loads(row[1]) for row in await tx.fetch(FOLDED, tenant)}


async def exported(clickhouse: ClickHouse, tenant: int) -> dict[UUID, Any]:
    rows = await clickhouse.query(
        f"select person_id, argMax(properties, version) from {TABLE} where tenant_id = {{t:UInt32}}"
        " group by person_id having argMax(deleted, version) = 0",
        {"t": tenant},
    )
    return {person: json.loads(text) for person, text in rows}


async def test_a_history_in_any_pieces_with_a_death_at_every_point(
    people: PeopleService, database: Database, history: ClickHouse, tenant: int
) -> None:
    chance = random.Random(5)
    events = generated.history(5, size=240)
    small = PropertyExport(database, history, portion=7)
    while await small.ship():  # what earlier tests left
        pass

    async def attempt() -> None:
        await small.ship()

    async def check(at: int, name: str) -> None:
        while await small.ship():
            pass
        assert await exported(history, tenant) == await folded(database, tenant), (at, name)
        await more()

    async def more() -> None:
        some = [events.pop() for _ in range(min(12, len(events)))]
        if not some:
            some = [
                said(
                    tenant,
                    f"x{chance.random()}",
                    chance.randrange(10**6),
                    "see",
                    "id1",
                    set=b'{"plan":"%d"}' % chance.randrange(9),
                )
            ]
        await commit(database, tenant, some)
        await people.keeper.settle(tenant)

    await more()
    for only in CHANGES:
        assert await enumerate_points(attempt, check, only=only, what=f"exporting properties, {only}") >= 2
    assert await folded(database, tenant)


async def test_an_erased_person_is_in_no_row_and_nobody_brings_it_back(
    people: PeopleService, database: Database, history: ClickHouse, tenant: int, make_tenant: MakeTenant
) -> None:
    other = await make_tenant()
    for each in (tenant, other):
        zoe = said(each, "e1", 1, "see", "zoe", set=b'{"plan":"pro"}')
        await commit(database, each, [zoe, said(each, "e2", 2, "see", "bob", set=b'{"a":1}')])
        await people.keeper.settle(each)
    assert people.property_export is not None
    await people.property_export.ship()
    await commit(database, tenant, [said(tenant, "e3", 3, "see", "zoe", set=b'{"plan":"team"}')])
    await people.keeper.settle(tenant)
    gate = Gate(history)
    shipping = asyncio.create_task(PropertyExport(database, gate).ship())
    await gate.reached.wait()
    erasing = asyncio.create_task(people.erase(tenant, ["zoe"]))

    async def waits() -> bool:
        async with database.worker() as tx:
            return erasing.done() or bool(await tx.fetchval(WAITING))

    await eventually(waits, what="the erasure waits for the export, or is done")
    gate.open.set()
    await asyncio.gather(shipping, erasing)
    await people.property_export.ship()
    kept = (
        "select count() from person_properties"
        " where tenant_id = {t:UInt32} and notEmpty(properties) and person_id = {p:UUID}"
    )
    for whose, rows in ((tenant, 0), (other, 1)):
        found = await history.query(kept, {"t": whose, "p": person_id(whose, "zoe")})
        assert (found[0][0] > 0) == bool(rows)
        assert await exported(history, whose) == await folded(database, whose)
    await commit(database, tenant, [said(tenant, "e9", 9, "see", "zoe", set=b'{"plan":"new"}')])
    await people.keeper.settle(tenant)
    await people.property_export.ship()
    assert (await exported(history, tenant))[person_id(tenant, "zoe")] == {"plan": "new"}


async def test_people_of_before_and_a_lost_table_are_sent_again(
    people: PeopleService, database: Database, history: ClickHouse, tenant: int
) -> None:
    events = [said(tenant, f"e{n}", n, "see", f"p{n}", set=b'{"n":%d,"f":1.50,"l":[1, "a"]}' % n) for n in range(30)]
    await commit(database, tenant, [*events, said(tenant, "bare", 1, "see", "bare")])
    await people.keeper.settle(tenant)
    small = PropertyExport(database, history, portion=7)
    async with database.worker() as tx:
        await tx.execute(UNMARK, tenant)  # as people of an installation before this release
        await tx.execute(AGAIN, tenant)
    await commit(database, tenant, [said(tenant, "later", 99, "see", "p3", set=b'{"n":"changed"}')])
    await people.keeper.settle(tenant)
    await small.ship()
    for _ in range(2):  # the second time after everything was lost
        while await small.ship():
            pass
        found = await exported(history, tenant)
        assert found == await folded(database, tenant)
        assert (len(found), found[person_id(tenant, "p3")]["n"]) == (30, "changed")
        stored = await history.query(
            "select properties from person_properties where tenant_id = {t:UInt32} and person_id = {p:UUID}",
            {"t": tenant, "p": person_id(tenant, "p7")},
        )
        assert msgspec.json.decode(stored[0][0]) == {"n": 7, "f": 1.5, "l": [1, "a"]}
        assert '"l":[1,"a"]' in stored[0][0]
        await people.rebuild_properties()
        assert await exported(history, tenant) == {}
    while await small.ship():  # of everybody, for the tests that come after
        pass


async def test_events_are_found_by_what_their_person_is_like_now(history: ClickHouse, tenant: int) -> None:
    at = datetime(2026, 7, 1, tzinfo=UTC)
    columns = (
        "tenant_id",
        "at",
        "received",
        "event",
        "event_id",
        "event_key",
        "distinct_id",
        "person_id",
        "properties",
    )
    await history.insert(
        "events", columns,
        [
            (tenant, at + timedelta(hours=n), at, "see", f"e{n}", bytes([n]) * 16, who, person_id(tenant, who), "{}")
            for n, who in enumerate(("ada", "bob", "ada"))
        ],
    )  # fmt: skip
    await history.insert(TABLE, COLUMNS, [(tenant, person_id(tenant, "ada"), '{"plan":"pro"}', 5, 0)])
    reader = EventStoreReader(history, Bounds())
    within = Range(at, at + timedelta(days=1))
    for op, ids in (("is", ["e2", "e0"]), ("is_not", ["e1"])):
        one = Filter(op, "plan", None, ["pro"], "person")  # type: ignore[arg-type] # of these two
        found = await reader.ask(compile.events(tenant, within, filters=[one], rows=10))
        assert [row[3] for row in found] == ids
