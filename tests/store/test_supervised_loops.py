"""Loops outside Redis that used to end with their first unexpected error, and waiters that used to wait for ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from handbill.infra import geo
from handbill.infra.geo import Countries
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.insights.onlooker import Glance, Onlooker
from handbill.insights.tail import Tails, Wanted
from handbill.jobs.lock import Held, Locks
from handbill.kit import task_health
from handbill.kit.telemetry.metrics import REGISTRY
from handbill.tenants.directory import Directory
from handbill.tenants.model import CHANGES
from handbill.tenants.service import TenantService
from tests.kit.mmdb import mmdb
from tests.kit.waiting import eventually, soon

Unique = Callable[[str], str]


def running(name: str) -> bool:
    return name in {health.name for health in task_health.running()}


async def test_no_error_ends_the_care_for_the_geo_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.mmdb"
    countries = Countries(path)
    attempts = 0
    open_file = countries._open

    def refused_once() -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            raise RuntimeError("unexpected")
        return open_file()

    monkeypatch.setattr(countries, "_open", refused_once)
    monkeypatch.setattr(geo, "LOOK_S", 0.01)
    await countries.start()
    assert running("geo")
    path.write_bytes(mmdb({"10.0.0.0/8": "NL"}))
    await eventually(lambda: attempts > 2 and countries._reader is not None)
    assert countries.of("10.1.2.3") == "nl"
    age = REGISTRY.get_sample_value("handbill_geo_age_seconds")
    assert age is not None
    assert not math.isnan(age)
    await countries.stop()
    assert not running("geo")
    assert math.isnan(REGISTRY.get_sample_value("handbill_geo_age_seconds") or 0.0)


async def test_the_live_tail_runs_from_the_first_tail_to_the_last(redis: Redis) -> None:
    class FailingOnlooker(Onlooker):
        looks = 0

        async def look(self, lane: str, tenant_ids: Collection[int]) -> Glance:
            self.looks += 1
            raise ValueError("bytes that no lane should have")

    onlooker = FailingOnlooker(redis, ["0"])
    tails = Tails(onlooker)
    assert not running("live-tail")
    async with tails.opened(1, Wanted()):
        [health] = [health for health in task_health.running() if health.name == "live-tail"]
        assert not health.required
        await eventually(lambda: health.errors >= 2)
    assert not running("live-tail")


async def test_no_error_ends_following_the_changes_of_tenants(
    redis: Redis, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = 987_654_321, 987_654_322  # other tests publish on the same channel
    calls: list[int] = []

    def forget(_: Directory, tenant_id: int) -> None:
        calls.append(tenant_id)
        if tenant_id == first:
            raise RuntimeError("unexpected")

    monkeypatch.setattr(Directory, "forget", forget)
    tenants = TenantService(database, redis, seal_key=bytes(32))
    await tenants.start()
    await soon(tenants._listener.subscribed.wait())
    gaps = tenants.directory._gaps
    await redis.call("PUBLISH", CHANGES, str(first))
    await eventually(lambda: first in calls and tenants.directory._gaps > gaps, what="no answer is trusted any more")
    await redis.call("PUBLISH", CHANGES, str(second))
    await eventually(lambda: second in calls)
    await tenants.stop()


async def test_a_lock_that_cannot_be_renewed_is_lost_whatever_the_error(redis: Redis, unique: Unique) -> None:
    class FailingLocks(Locks):
        async def renew(self, held: Held, ttl_ms: int) -> bool:
            raise ValueError("unexpected")

    async with FailingLocks(redis).hold(unique("lock"), ttl_ms=60) as held:
        await soon(held.lost.wait())
