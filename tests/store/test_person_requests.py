"""Erasures and exports as jobs: wherever a worker dies the next one ends the request once; results are bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.model import Job, RetryLater
from handbill.kit.errors import Busy, Conflict, NotFound, Throttled
from handbill.tenants.erasure import GIVE_UP_AFTER
from handbill.tenants.exports import KEPT_FOR, MAX_EXPORTS
from handbill.tenants.model import Export
from handbill.tenants.service import ERASE, EXPORT, QUEUE, TenantService
from handbill.tenants.tasks import PersonTasks
from tests.conftest import MakeTenant
from tests.kit import person_requests
from tests.kit.clocks import FakeClock
from tests.kit.crashes import enumerate_points
from tests.store.tenants_room import ACTOR, actions, service, sql

ROOMS = ("first", "second", "people")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def tenants(database: Database, redis: Redis, clock: FakeClock) -> AsyncIterator[TenantService]:
    tenants = service(database, redis, clock)
    yield tenants
    await tenants.stop()


class Rooms:
    """Three packages that keep names, in memory; what is erased is counted."""

    def __init__(self, tenants: TenantService, database: Database) -> None:
        self.names: dict[str, set[str]] = {room: set() for room in ROOMS}
        self.cleared: dict[str, int] = {}
        self.busy: str | None = None
        self._database = database
        for room in ROOMS:
            tenants.erasures.join_whole(room, self._eraser(room), self._exporter(room), last=room == "people")
        tenants.erasures.siblings = self.siblings

    def fill(self) -> None:
        self.cleared = dict.fromkeys(ROOMS, 0)
        for names in self.names.values():
            names.update(("ada", "phone", "bob"))

    async def siblings(self, tenant_id: int, subject: str) -> list[str]:
        return ["ada", "phone"] if "ada" in self.names["people"] and subject != "bob" else [subject]

    def _eraser(self, room: str) -> Any:
        async def erase(tenant_id: int, ids: list[str]) -> dict[str, int]:
            async with self._database.tenant(tenant_id) as tx:  # a place to die before and after the effect
                await tx.fetchval(sql("select 1"))
                if self.busy == room:
                    raise Busy("away", code="CLICKHOUSE_AWAY")
                gone = self.names[room] & set(ids)
                self.names[room] -= gone
                self.cleared[room] += len(gone)
                await tx.fetchval(sql("select 1"))
            return {room: len(gone)}

        return erase

    def _exporter(self, room: str) -> Any:
        async def export(tenant_id: int, subject: str, most: int) -> dict[str, list[dict[str, Any]]]:
            return {f"{room}.names": [{"name": subject}] if subject in self.names[room] else []}

        return export


def job(tenant_id: int, name: str, request_id: UUID) -> Job:
    data = {"request_id": str(request_id)}
    return Job(id="1", wire_id="1", queue=QUEUE, name=name, data=data, opts={"tenant": tenant_id})


async def test_wherever_a_worker_dies_the_erasure_ends_once(
    database: Database, tenants: TenantService, tenant: int
) -> None:
    rooms, latest = Rooms(tenants, database), UUID(int=0)

    async def begin() -> None:
        nonlocal latest
        rooms.fill()
        latest = (await tenants.erasures.request(tenant, "phone", actor=ACTOR)).erasure_id

    async def attempt() -> None:
        await tenants.erasures.run(tenant, latest)

    async def check(number: int, name: str) -> None:
        done = await tenants.erasures.run(tenant, latest)
        assert (done.status, done.steps_done, done.steps_total) == ("done", 3, 3), f"point {number}: {name}"
        assert rooms.names == {room: {"bob"} for room in ROOMS}, f"point {number}: {name}"
        assert rooms.cleared == dict.fromkeys(ROOMS, 2), "each name once"
        log = await actions(tenants, tenant)
        assert log.count("erasure.done") == log.count("erasure.open"), f"point {number}: {name}"
        await begin()

    await begin()
    assert await enumerate_points(attempt, check, what="an erasure") >= 20


async def test_a_worker_that_dies_at_the_end_of_an_export_makes_it_again(
    database: Database, tenants: TenantService, tenant: int
) -> None:
    rooms = Rooms(tenants, database)
    rooms.fill()
    made = await tenants.exports.request(tenant, "ada", actor=ACTOR)
    assert (made.status, made.steps_done, made.steps_total) == ("queued", 0, 3)
    with pytest.raises(Conflict) as early:
        await tenants.exports.result(tenant, made.export_id)
    assert early.value.code == "EXPORT_NOT_READY"

    async def attempt() -> None:
        await tenants.exports.run(tenant, made.export_id)

    async def check(number: int, name: str) -> None:
        """Not run again until the last: each attempt goes on where the one before died."""

    assert await enumerate_points(attempt, check, what="an export") >= 10
    done = await tenants.exports.get(tenant, made.export_id)
    assert (done.status, done.steps_done) == ("done", 3)
    result = msgspec.json.decode(await tenants.exports.result(tenant, made.export_id), type=Export)
    assert result.ids == ["ada", "phone"]
    assert result.rooms["first"] == {"first.names": [{"name": "ada"}, {"name": "phone"}]}
    assert done.report["first"] == {"first.names": 2}


async def test_an_erasure_waits_for_an_engine_for_a_day(
    database: Database, tenants: TenantService, tenant: int, clock: FakeClock
) -> None:
    rooms = Rooms(tenants, database)
    rooms.fill()
    rooms.busy = "second"
    tasks = PersonTasks(tenants.erasures, tenants.exports)
    made = await tenants.erasures.request(tenant, "ada", actor=ACTOR)
    work = job(tenant, ERASE, made.erasure_id)
    with pytest.raises(RetryLater):
        await tasks.erase(work, None)
    waiting = await tenants.erasures.get(tenant, made.erasure_id)
    assert (waiting.status, waiting.error, waiting.steps_done) == ("running", "CLICKHOUSE_AWAY", 1)
    assert waiting.report["people"] == {"error": "WAITS_FOR_THE_OTHERS"}
    clock.advance(seconds=GIVE_UP_AFTER.total_seconds())
    assert await tasks.erase(work, None) == "failed"
    ended = await tenants.erasures.get(tenant, made.erasure_id)
    assert (ended.status, ended.error) == ("failed", "CLICKHOUSE_AWAY")
    assert await tasks.erase(work, None) == "failed", "delivered again, it changes nothing"
    assert rooms.names["people"] == {"ada", "phone", "bob"}, "to be found again"
    rooms.busy = None
    assert (await person_requests.erase(tenants, tenant, "ada")).status == "done"


async def test_a_job_that_failed_for_good_ends_its_request(
    database: Database, tenants: TenantService, tenant: int, clock: FakeClock
) -> None:
    Rooms(tenants, database)
    tasks = PersonTasks(tenants.erasures, tenants.exports)
    erasure = await tenants.erasures.request(tenant, "ada", actor=ACTOR)
    export = await tenants.exports.request(tenant, "ada", actor=ACTOR)
    await tasks.failed(job(tenant, ERASE, erasure.erasure_id), "stalled", "")
    await tasks.failed(job(tenant, EXPORT, export.export_id), "stalled", "")
    failed = await tenants.erasures.get(tenant, erasure.erasure_id)
    assert (failed.status, failed.error) == ("failed", "JOB_FAILED")
    assert (await tenants.exports.get(tenant, export.export_id)).status == "failed"
    lost = await tenants.erasures.request(tenant, "ada", actor=ACTOR)
    clock.advance(seconds=timedelta(days=4).total_seconds())
    assert (await tenants.sweep())["erasures"] >= 1
    assert (await tenants.erasures.get(tenant, lost.erasure_id)).status == "failed"


async def test_an_erasure_takes_the_exports_of_the_person(
    database: Database, tenants: TenantService, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    rooms = Rooms(tenants, database)
    rooms.fill()
    exports = tenants.exports
    theirs = await exports.request(tenant, "ada", actor=ACTOR)
    waiting = await exports.request(tenant, "phone", actor=ACTOR)
    others = await exports.request(tenant, "bob", actor=ACTOR)
    elsewhere = await exports.request(other, "ada", actor=ACTOR)
    await exports.run(tenant, theirs.export_id)
    assert (await person_requests.erase(tenants, tenant, "phone")).status == "done"
    for gone in (theirs, waiting):
        await exports.run(tenant, gone.export_id)
        with pytest.raises(NotFound):
            await exports.get(tenant, gone.export_id)
    assert (await exports.get(tenant, others.export_id)).status == "queued"
    assert (await exports.get(other, elsewhere.export_id)).status == "queued"
    for unknown in (elsewhere.export_id, uuid4()):
        with pytest.raises(NotFound) as missing:
            await exports.result(tenant, unknown)
        assert missing.value.code == "EXPORT_NOT_FOUND"


async def test_exports_are_limited_in_bytes_number_and_time(
    database: Database, tenants: TenantService, tenant: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handbill.tenants.exports.EXPORT_BYTES", 1_000)

    async def erase(tenant_id: int, subject: str) -> dict[str, int]:
        return {}

    async def large(tenant_id: int, subject: str, most: int) -> dict[str, list[dict[str, Any]]]:
        return {"t.large": [{"text": "x" * 300}] * 50}

    tenants.erasures.join("large", erase, large)
    tenants.erasures.join("unasked", erase, large)
    result = await person_requests.export(tenants, tenant, "ada")
    assert len(result.rooms["large"]["t.large"]) == 3
    assert result.cut == ["t.large", "unasked"]
    for _ in range(MAX_EXPORTS - 1):
        last = await tenants.exports.request(tenant, "ada", actor=ACTOR)
    with pytest.raises(Throttled) as full:
        await tenants.exports.request(tenant, "ada", actor=ACTOR)
    assert full.value.code == "TOO_MANY_EXPORTS"
    clock.advance(seconds=KEPT_FOR.total_seconds())
    with pytest.raises(NotFound):
        await tenants.exports.get(tenant, last.export_id)
    assert (await tenants.sweep())["exports"] >= MAX_EXPORTS
    async with database.tenant(tenant) as tx:
        assert await tx.fetchval(sql("select count(*) from tenants.exports where tenant_id = $1"), tenant) == 0
