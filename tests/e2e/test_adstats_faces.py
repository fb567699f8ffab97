"""Ad stats as a seller and an operator meet them: real processes, sessions by role, logs, health, command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import aiohttp

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey, NewUser, Role
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import Process, free_port, handbill, process

PASSWORD = "correct horse battery"
SECRET = "EAABsecretofthisaccount"


@asynccontextmanager
async def running(env: dict[str, str]) -> AsyncIterator[tuple[Api, Process]]:
    async with process("api", env=env) as api, process("worker", "--only", "jobs", env=env) as worker:
        await api.log(event="api-ready")
        await worker.log(event="worker-ready")
        async with aiohttp.ClientSession() as client:
            yield Api(api, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client), worker


async def login(tenants: TenantService, api: Api, tenant: int, role: Role) -> str:
    email = f"{role}-{tenant}@example.com"
    await tenants.accounts.create_user(tenant, NewUser(email, PASSWORD, role=role), actor="test")
    reply = await api("POST", "/auth/login", json={"email": email, "password": PASSWORD})
    return str(reply.json()["token"])


async def test_from_an_account_to_a_figure(
    handbill_env: dict[str, str],
    database: Database,
    redis: Redis,
    tenant: int,
    make_tenant: Callable[..., Awaitable[int]],
) -> None:
    other = await make_tenant()
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    port = free_port()
    env = {**handbill_env, "WORKER_PORT": str(port)}
    env.pop("HANDBILL_WORKER__PORT")
    async with running(env) as (api, worker):
        key = await login(tenants, api, tenant, "operator")
        viewer = await login(tenants, api, tenant, "viewer")
        stranger = await login(tenants, api, other, "owner")
        program = await tenants.create_key(tenant, NewKey("secret", "all", scopes=["*"]), actor="test")
        await tenants.stop()

        account = await connected(api, key)
        campaign = await a_campaign(api, key, account["connection_id"])

        (await api("POST", "/api/ads-manager/sync")).problem(401, "UNAUTHORIZED")
        (await api("POST", "/api/ads-manager/sync", key=viewer)).problem(403, "SCOPE_MISSING")
        (await api("POST", "/api/ads-manager/sync", key=program.key)).problem(403, "FORBIDDEN")
        (await api("POST", "/api/ads-manager/sync", key="eyJhbGciOiJIUzI1NiJ9.e30.x")).problem(401, "UNAUTHORIZED")
        future = {"date": "2099-01-01"}
        (await api("POST", "/api/ads-manager/sync", key=key, json=future)).problem(400, "INVALID")
        reply = await api("POST", "/api/ads-manager/sync", key=key)
        assert reply.status == 202, reply.body
        body = reply.json()
        assert (body["enqueued"], len(body["jobIds"])) == (3, 3)
        assert {job["state"] for job in body["jobs"]} == {"enqueued"}
        for job in body["jobIds"]:
            line = await worker.log(event="stats-sync-complete", jobId=job)
            assert line["level"] == "info"
            assert line["sellerId"] == job.split(":")[1]

        today = datetime.now(UTC).date()
        span = f"from={today - timedelta(days=1)}&to={today + timedelta(days=2)}"
        found = (await api("GET", f"/admin/stats/ads?{span}&by=entity&by=day", key=key)).json()
        asked = body["jobIds"][0].split(":")[2]  # the clock may have had yesterday read meanwhile
        [row] = [row for row in found["rows"] if row["day"] == asked]
        assert row["entity_id"] == campaign
        assert 85 <= float(row["spend"]) <= 115
        csv = (await api("GET", f"/admin/stats/ads/csv?{span}&by=entity", key=key)).body.decode()
        assert "'=1+1 Spring" in csv
        report = (await api("GET", f"/admin/reports/spend?{span}", key=key)).json()
        assert [row["campaign_id"] for row in report["rows"]] == [campaign]

        await walls(api, stranger, account["connection_id"], campaign, span)
        async with api.client.get(f"http://127.0.0.1:{port}/health") as health:
            page = await health.json()
        assert (page["status"], page["queue"], type(page["uptime"])) == ("ok", "stats-sync", int)

        await commands(env, str(tenant), campaign, body["jobIds"][0].split(":")[2])
        assert SECRET not in worker.output + api.process.output


async def commands(env: dict[str, str], tenant: str, campaign: str, day: str) -> None:
    first = str(date.fromisoformat(day) - timedelta(days=40))
    explained, synced, filled = await asyncio.gather(
        handbill("adstats", "explain", tenant, campaign, "--date", day, "--json", env=env),
        handbill("adstats", "sync", tenant, "--date", first, "--json", env=env),
        handbill("adstats", "backfill", tenant, "--from", first, "--to", day, "--wait", "--json", env=env),
    )
    assert [code for code, _ in (explained, synced, filled)] == [0, 0, 0], (explained, synced, filled)
    why = json.loads(explained[1])  # how often the day was read by now is the clock's and the backfill's affair
    assert Decimal(why["literal_factor"]) == sum(one["seen"] for one in why["told"]) >= 1
    assert len(json.loads(synced[1])["jobs"]) == 3
    assert json.loads(filled[1])["state"] == "done"


async def connected(api: Api, key: str) -> Any:
    new = {
        "provider": "MOCK", "external_id": "1234", "name": "Shop", "currency": "USD", "access_token": SECRET,
    }  # fmt: skip
    reply = await api("POST", "/admin/ad-connections", key=key, json=new)
    assert reply.status == 201, reply.body
    (await api("POST", "/admin/ad-connections", key=key, json=new)).problem(409, "AD_ACCOUNT_TAKEN")
    wrong = {**new, "external_id": "9", "time_zone": "Mars/Olympus"}
    (await api("POST", "/admin/ad-connections", key=key, json=wrong)).problem(400, "INVALID")
    audit = await api("GET", "/admin/audit", key=key)
    assert SECRET.encode() not in reply.body + audit.body
    assert "ad_connection.create" in audit.body.decode()
    return reply.json()


async def a_campaign(api: Api, key: str, connection: str) -> str:
    listed = [
        {"entity_type": "CAMPAIGN", "external_id": "11", "name": "=1+1 Spring", "budget": "100"},
        {"entity_type": "ADSET", "external_id": "21", "name": "Runners", "parent_external_id": "11"},
        {"entity_type": "AD", "external_id": "31", "name": "Red", "parent_external_id": "21"},
        {"entity_type": "AD", "external_id": "32", "name": "Lost", "parent_external_id": "nobody"},
    ]
    path = f"/admin/ad-connections/{connection}/import"
    reply = await api("POST", path, key=key, json={"entities": listed})
    assert reply.json() == {"created": 3, "changed": 0, "unchanged": 0, "refused": ["32"]}
    [campaign] = (await api("GET", "/admin/ad-entities?level=CAMPAIGN", key=key)).json()["items"]
    for budget in ("-1", "NaN", "1e30", "0.00001"):
        refused = await api("PATCH", f"/admin/ad-entities/{campaign['entity_id']}", key=key, json={"budget": budget})
        refused.problem(400, "INVALID")
    return str(campaign["entity_id"])


async def walls(api: Api, stranger: str, connection: str, campaign: str, span: str) -> None:
    """Another seller learns nothing, not even that these ids exist."""
    for method, path, code in (
        ("GET", f"/admin/ad-connections/{connection}", "AD_CONNECTION_NOT_FOUND"),
        ("PATCH", f"/admin/ad-connections/{connection}", "AD_CONNECTION_NOT_FOUND"),
        ("POST", f"/admin/ad-connections/{connection}/fetch", "AD_CONNECTION_NOT_FOUND"),
        ("GET", f"/admin/ad-entities/{campaign}", "AD_ENTITY_NOT_FOUND"),
        ("DELETE", f"/admin/ad-entities/{campaign}", "AD_ENTITY_NOT_FOUND"),
        ("GET", f"/admin/stats/ads/explain/{campaign}?day=2026-03-01", "AD_ENTITY_NOT_FOUND"),
    ):
        body: dict[str, Any] = {"json": {}} if method == "PATCH" else {}
        (await api(method, path, key=stranger, **body)).problem(404, code)
    assert (await api("GET", f"/admin/stats/ads?{span}&entity_id={campaign}", key=stranger)).json()["rows"] == []
    assert (await api("GET", f"/admin/reports/spend?{span}", key=stranger)).json()["rows"] == []
    own = await api("POST", "/api/ads-manager/sync", key=stranger)
    assert all(campaign not in job for job in own.json()["jobIds"])
