"""Wherever a worker dies in a replay or a drop of parked events, the next one ends it, with exact counts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from handbill.events.service import Chosen
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.kit.crashes import enumerate_points
from tests.kit.loop import loop
from tests.kit.parked_events import ROWS, WAITING, count, park_good
from tests.kit.parked_requests import PARK, SENT_ONCE, STOP, CountingEdge, ended, portions_of
from tests.store.tenants_room import actions

LEFT = Sql(
    "select count(distinct event_id) from events.parked where tenant_id = $1 and replayed_at is null", "test_left"
)
CLEAR = Sql("delete from events.parked where tenant_id = $1", "test_clear")


async def test_wherever_a_worker_dies_a_replay_counts_each_event_once(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions_of(monkeypatch, 2)
    async with loop(database, redis, main=1) as house:
        requests, latest, rounds = house.events.parked_requests, UUID(int=0), 0
        shop = await house.shop(tenant)

        async def begin() -> None:
            nonlocal latest, rounds
            await park_good(house, tenant, 3, f"r{rounds}-", shop=shop)
            latest = (await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")).parked_request_id
            rounds += 1

        async def attempt() -> None:
            await requests.run(tenant, latest)

        async def check(number: int, name: str) -> None:
            done = await ended(requests, tenant, latest)
            assert (done.status, done.total) == ("done", 3), f"point {number}: {name}"
            assert done.report == {"matched": 3, "sent": 3, **SENT_ONCE}, f"point {number}: {name}"
            log = await actions(house.tenants, tenant)
            assert log.count("parked.replay.done") == log.count("parked.replay.open"), f"point {number}: {name}"
            await begin()

        await begin()
        assert await enumerate_points(attempt, check, only="pg:", what="a replay") >= 20
        await ended(requests, tenant, latest)
        await house.consumer()
        await house.drained()
        assert await count(database, ROWS, tenant) == rounds * 3
        assert await count(database, WAITING, tenant) == 0


async def test_wherever_a_worker_dies_a_replay_stops_behind_the_portion_that_is_still_bad(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions_of(monkeypatch, 2)
    async with loop(database, redis, main=1) as house:
        dead, requests, latest, rounds = house.events.dead, house.events.parked_requests, UUID(int=0), 0
        shop = await house.shop(tenant)

        async def begin() -> None:
            """Of three portions of two the second has a bad one."""
            nonlocal latest, rounds
            async with database.worker() as tx:
                await tx.execute(CLEAR, tenant)
            events = await park_good(house, tenant, 6, f"s{rounds}-", shop=shop)
            dead._edge = CountingEdge(database, bad=events[3].id)  # type: ignore[assignment]
            latest = (await requests.replay(tenant, Chosen(tenant), STOP, actor="ada")).parked_request_id
            rounds += 1

        async def attempt() -> None:
            await requests.run(tenant, latest)

        async def check(number: int, name: str) -> None:
            done = await ended(requests, tenant, latest)
            expected = {**SENT_ONCE, "matched": 4, "sent": 4, "failed": 1, "stopped": True}
            assert (done.status, done.report) == ("done", expected), f"point {number}: {name}"
            assert await count(database, LEFT, tenant) == 3, "the bad one, and the portion behind it"
            await begin()

        await begin()
        assert await enumerate_points(attempt, check, only="pg:", what="a careful replay") >= 20


async def test_wherever_a_worker_dies_a_drop_counts_each_event_once(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions_of(monkeypatch, 2)
    async with loop(database, redis, main=1) as house:
        requests, latest, shop = house.events.parked_requests, UUID(int=0), await house.shop(tenant)

        async def begin() -> None:
            nonlocal latest
            await park_good(house, tenant, 3, shop=shop)
            latest = (await requests.drop(tenant, Chosen(tenant, "REJECTED"), actor="ada")).parked_request_id

        async def attempt() -> None:
            await requests.run(tenant, latest)

        async def check(number: int, name: str) -> None:
            done = await ended(requests, tenant, latest)
            assert (done.status, done.report) == ("done", {"dropped": 3}), f"point {number}: {name}"
            log = await actions(house.tenants, tenant)
            assert log.count("parked.drop.done") == log.count("parked.drop.open"), f"point {number}: {name}"
            await begin()

        await begin()
        assert await enumerate_points(attempt, check, only="pg:", what="a drop") >= 15


async def test_a_worker_whose_job_was_delivered_again_writes_nothing_more(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions_of(monkeypatch, 2)
    async with loop(database, redis, main=1) as house:
        await park_good(house, tenant, 5)
        dead, requests = house.events.dead, house.events.parked_requests
        made = await requests.replay(tenant, Chosen(tenant), PARK, actor="ada")
        replay_portion = dead.replay_portion

        async def overtaken(*args: Any, **how: Any) -> Any:
            done = await replay_portion(*args, **how)
            monkeypatch.setattr(dead, "replay_portion", replay_portion)
            assert (await ended(requests, tenant, made.parked_request_id)).status == "done"
            return done

        monkeypatch.setattr(dead, "replay_portion", overtaken)
        turn = await requests.run(tenant, made.parked_request_id)
        assert (turn.status, turn.reason) == ("running", "another run of it has begun")
        done = await requests.get(tenant, made.parked_request_id)
        assert (done.status, done.report) == ("done", {"matched": 5, "sent": 5, **SENT_ONCE})
