"""Erasures and exports over HTTP: 202 and a status; a worker killed in the middle is followed by one that ends it."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp
import pytest

from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.settings import load as settings_of
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import build
from tests.kit.crashes import crashing
from tests.kit.http import Api
from tests.kit.processes import free_port, handbill, process
from tests.kit.stack import stack
from tests.kit.waiting import eventually

SETTINGS = {"HANDBILL_JOBS__LOCK_MS": "1000", "HANDBILL_JOBS__STALLED_MS": "1000"}


class Keys(NamedTuple):
    """A tenant with a secret key and a write key, and a secret key of another tenant."""

    tenant_id: int
    secret: str
    write: str
    foreign: str


@pytest.fixture
async def env() -> AsyncIterator[dict[str, str]]:
    """Engines of its own: an erasure waits until everything that was accepted is counted and exported."""
    async with stack(clickhouse=True, settings=SETTINGS) as built:
        clickhouse = ClickHouse(built.clickhouse_url)
        await clickhouse.start()
        await migrate_clickhouse(clickhouse)
        await clickhouse.stop()
        yield built.env(HANDBILL_API__PORT=str(free_port()))


@pytest.fixture
async def api(env: dict[str, str]) -> AsyncIterator[Api]:
    async with process("api", env=env) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


@pytest.fixture
async def keys(env: dict[str, str]) -> Keys:
    app = build(settings_of(env))
    await app.start()
    try:
        one = (await app.tenants.create_tenant(NewTenant(name="One", slug="one"), actor="test")).tenant_id
        other = (await app.tenants.create_tenant(NewTenant(name="Other", slug="other"), actor="test")).tenant_id
        secret = await app.tenants.create_key(one, NewKey(kind="secret", name="k", scopes=["*"]), actor="test")
        write = await app.tenants.create_key(one, NewKey(kind="write", name="w"), actor="test")
        foreign = await app.tenants.create_key(other, NewKey(kind="secret", name="k", scopes=["*"]), actor="test")
    finally:
        await app.stop()
    return Keys(one, secret.key, write.key, foreign.key)


async def ended(api: Api, location: str, key: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        reply = await api("GET", location, key=key)
        assert reply.status == 200, reply.body
        return reply.json() if reply.json()["status"] in ("done", "failed") else None

    found: dict[str, Any] = await eventually(look, what=f"{location} has ended")
    return found


async def test_a_worker_killed_in_the_middle_is_followed_by_one_that_ends_the_erasure(
    api: Api, env: dict[str, str], keys: Keys
) -> None:
    _, secret, write, foreign = keys
    login = {"event": "$identify", "distinct_id": "zoe", "properties": {"$anon_distinct_id": "phone"}}
    seen = {"event": "see", "distinct_id": "phone", "properties": {}}
    assert (await api("POST", "/batch/", json={"api_key": write, "batch": [seen, login]})).status == 200

    async def joined() -> bool:
        reply = await api("GET", "/admin/people/find?distinct_id=phone", key=secret)
        return reply.status == 200 and bool(reply.json()["edges"])

    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        await eventually(joined, what="the person has two ids")
        made = await api("POST", "/admin/exports", key=secret, json={"subject": "phone"})
        assert made.status == 202
        export = made.headers["location"]
        assert export == f"/admin/exports/{made.json()['export_id']}"
        assert (await ended(api, export, secret))["status"] == "done"
        result = (await api("GET", f"{export}/result", key=secret)).json()
        assert (sorted(result["ids"]), result["away"]) == (["phone", "zoe"], [])
        for path in (export, f"{export}/result"):
            (await api("GET", path, key=foreign)).problem(404, "EXPORT_NOT_FOUND")
            unknown = path.replace(made.json()["export_id"], str(uuid4()))
            (await api("GET", unknown, key=secret)).problem(404, "EXPORT_NOT_FOUND")

    made = await api("POST", "/admin/erasures", key=secret, json={"subject": "phone"})
    assert (made.status, made.json()["status"]) == (202, "queued")
    location = made.headers["location"]
    async with crashing("worker", at=3, only="before:pg:record_erasure_step", env=env) as dying:
        assert await dying.exit() == -signal.SIGKILL, dying.tail()
    half = (await api("GET", location, key=secret)).json()
    assert (half["status"], half["steps_done"], half["steps_total"]) == ("running", 2, 8)
    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        done = await ended(api, location, secret)
    assert (done["status"], done["error"], done["steps_done"]) == ("done", None, 8), done
    assert (await api("GET", "/admin/people/find?distinct_id=phone", key=secret)).status == 404
    (await api("GET", export, key=secret)).problem(404, "EXPORT_NOT_FOUND")
    (await api("GET", location, key=foreign)).problem(404, "ERASURE_NOT_FOUND")
    log = (await api("GET", "/admin/audit?limit=200", key=secret)).json()["items"]
    assert [entry["action"] for entry in log].count("erasure.done") == 1


async def test_the_command_line_waits_for_the_worker(env: dict[str, str], keys: Keys) -> None:
    tenant = keys.tenant_id
    async with process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        code, output = await handbill("people", "export", "zoe", "--tenant", str(tenant), env=env)
        assert (code, json.loads(output)["ids"]) == (0, ["zoe"]), output
        code, output = await handbill("people", "erase", "zoe", "--tenant", str(tenant), "--yes", "--json", env=env)
    done = json.loads(output)
    assert (code, done["status"], done["steps_done"]) == (0, "done", 8), output
