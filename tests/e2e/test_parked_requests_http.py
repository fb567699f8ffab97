"""Replays and drops of parked events over HTTP: 202 and a status; a killed worker is followed by one that goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp
import pytest

from handbill.events.dead import FULL_SPEED
from handbill.events.model import CapturedEvent
from handbill.infra.postgres import Database, derive
from handbill.infra.sqlfiles import Sql
from handbill.settings import load as settings_of
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import build
from tests.kit.crashes import crashing
from tests.kit.http import Api
from tests.kit.parked_events import WAITING, count, park
from tests.kit.processes import free_port, handbill, process
from tests.kit.stack import stack
from tests.kit.waiting import eventually

SETTINGS = {"HANDBILL_JOBS__LOCK_MS": "1000", "HANDBILL_JOBS__STALLED_MS": "1000"}
COUNTED = Sql("select count(*) from events.event_keys where tenant_id = $1", "counted")
NUMBER = FULL_SPEED * 2 + 100


class Keys(NamedTuple):
    """A tenant with a secret key, and a secret key of another tenant."""

    tenant_id: int
    secret: str
    foreign: str


@pytest.fixture
async def env() -> AsyncIterator[dict[str, str]]:
    """Engines of its own: jobs that other tests left behind would reach the crash point."""
    async with stack(settings=SETTINGS) as built:
        yield built.env(HANDBILL_API__PORT=str(free_port()))


@pytest.fixture
async def api(env: dict[str, str]) -> AsyncIterator[Api]:
    async with process("api", env=env) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


@pytest.fixture
async def database(env: dict[str, str]) -> AsyncIterator[Database]:
    adapter = Database(derive(env["HANDBILL_POSTGRES__URL"]))
    await adapter.start()
    yield adapter
    await adapter.stop()


@pytest.fixture
async def keys(env: dict[str, str], database: Database) -> Keys:
    """With parked events of the tenant, of a time that is not too old to be counted."""
    app = build(settings_of(env))
    await app.start()
    try:
        one = (await app.tenants.create_tenant(NewTenant(name="One", slug="one"), actor="test")).tenant_id
        other = (await app.tenants.create_tenant(NewTenant(name="Other", slug="other"), actor="test")).tenant_id
        secret = await app.tenants.create_key(one, NewKey(kind="secret", name="k", scopes=["*"]), actor="test")
        foreign = await app.tenants.create_key(other, NewKey(kind="secret", name="k", scopes=["*"]), actor="test")
        now = app.clock.now_ms()
    finally:
        await app.stop()
    await park(database, [CapturedEvent(one, f"e{n}", now, now, "view", f"u{n % 7}", "own") for n in range(NUMBER)])
    return Keys(one, secret.key, foreign.key)


async def ended(api: Api, location: str, key: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        reply = await api("GET", location, key=key)
        assert reply.status == 200, reply.body
        return reply.json() if reply.json()["status"] in ("done", "failed") else None

    found: dict[str, Any] = await eventually(look, what=f"{location} has ended")
    return found


async def test_a_worker_killed_in_the_middle_of_a_replay_is_followed_by_one_that_goes_on(
    api: Api, env: dict[str, str], keys: Keys, database: Database
) -> None:
    tenant, secret, foreign = keys
    made = await api("POST", "/admin/events/parked/replay?reason=REJECTED", key=secret)
    assert (made.status, made.json()["status"], made.json()["report"]["matched"]) == (202, "queued", 0)
    location = made.headers["location"]
    assert location == f"/admin/events/parked/requests/{made.json()['parked_request_id']}"
    async with crashing("worker", at=2, only="before:pg:record_parked_portion", env=env) as dying:
        assert await dying.exit() == -signal.SIGKILL, dying.tail()
    half = (await api("GET", location, key=secret)).json()
    assert (half["status"], half["total"], half["report"]["sent"]) == ("running", NUMBER, FULL_SPEED)
    assert await count(database, WAITING, tenant) == NUMBER - FULL_SPEED * 2, "sent, and not recorded yet"
    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        done = await ended(api, location, secret)
        assert (done["status"], done["error"]) == ("done", None), done
        assert (done["report"]["matched"], done["report"]["sent"]) == (NUMBER, NUMBER)

        async def all_counted() -> bool:
            return await count(database, COUNTED, tenant) == NUMBER

        await eventually(all_counted, what="every replayed event is counted once")
    for key, path in ((foreign, location), (secret, location.replace(made.json()["parked_request_id"], str(uuid4())))):
        (await api("GET", path, key=key)).problem(404, "PARKED_REQUEST_NOT_FOUND")
    today = datetime.now(UTC).date()
    days = f"from={today - timedelta(days=2)}&to={today + timedelta(days=2)}"
    assert (await api("GET", f"/admin/events/drops?{days}", key=secret)).json() == [], "no copy came to be refused"
    log = (await api("GET", "/admin/audit?limit=200", key=secret)).json()["items"]
    assert [entry["action"] for entry in log].count("parked.replay.done") == 1


async def test_drops_and_dry_runs_are_requests_and_the_command_line_waits_for_the_worker(
    api: Api, env: dict[str, str], keys: Keys, database: Database
) -> None:
    tenant, secret, foreign = keys
    (await api("POST", "/admin/events/parked/drop", key=secret, json={})).problem(400, "DROP_WHAT")
    theirs = await api("POST", "/admin/events/parked/drop", key=foreign, json={"reason": "REJECTED"})
    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        assert (await ended(api, theirs.headers["location"], foreign))["report"] == {"dropped": 0}
        dry = await api("POST", "/admin/events/parked/replay?dry_run=true", key=secret)
        assert dry.status == 202
        counted = await ended(api, dry.headers["location"], secret)
        assert (counted["report"]["matched"], counted["report"]["sent"]) == (NUMBER, 0)
        assert await count(database, WAITING, tenant) == NUMBER
        listed = (await api("GET", "/admin/events/parked?limit=2", key=secret)).json()["items"]
        ids = [row["id"] for row in listed]
        made = await api("POST", "/admin/events/parked/drop", key=secret, json={"ids": ids})
        assert (made.status, made.json()["action"]) == (202, "drop")
        dropped = await ended(api, made.headers["location"], secret)
        assert (dropped["total"], dropped["report"]) == (2, {"dropped": 2})
        parked = ("events", "parked")
        code, output = await handbill(*parked, "replay", "--tenant", "one", "--dry-run", "--json", env=env)
        assert (code, json.loads(output)["report"]["matched"]) == (0, NUMBER - 2), output
        code, output = await handbill(*parked, "drop", "--tenant", "one", "--reason", "REJECTED", "--yes", env=env)
        assert (code, f"{NUMBER - 2} dropped." in output) == (0, True), output
        code, output = await handbill(*parked, "replay", "--tenant", "one", env=env)
        assert (code, "0 matched, 0 sent again" in output) == (0, True), output
        code, output = await handbill(*parked, "replay", "--json", env=env)
        assert (code, json.loads(output)["matched"]) == (0, 0), output
    assert await count(database, WAITING, tenant) == 0
    log = (await api("GET", "/admin/audit?limit=200", key=secret)).json()["items"]
    done = [entry["after"]["dropped"] for entry in log if entry["action"] == "parked.drop.done"]
    assert done == [NUMBER - 2, 2]
