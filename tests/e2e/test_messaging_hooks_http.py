"""Over HTTP, in a real process: a connection is made, Meta's side of its webhook, and the routes that read it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.messaging.incoming import LARGEST
from handbill.messaging.webhooks import sign
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.conftest import MakeTenant
from tests.kit import desk
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, Graph, graph
from tests.kit.http import Api
from tests.kit.processes import process
from tests.kit.reach import free_numbers
from tests.kit.waiting import eventually

LIMIT = 8192
SECRET = "an-app-secret"
_KEPT = Sql("select body from messaging.webhook_inbox where tenant_id = $1", "kept", "tests", "a test")


async def _is(found: Callable[[], Awaitable[Any]], wanted: Any) -> bool:
    return bool(await found() == wanted)


@pytest.fixture
async def fake(engines: Engines) -> AsyncIterator[Graph]:
    await free_numbers(engines.postgres_url)
    async with graph() as found:
        yield found


@pytest.fixture
def env(handbill_env: dict[str, str], fake: Graph) -> dict[str, str]:
    return {
        **handbill_env,
        "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
        "HANDBILL_API__BODY_LIMIT": str(LIMIT),
        "HANDBILL_MESSAGING__GRAPH_URL": fake.url,
    }


@pytest.fixture
async def api(env: dict[str, str]) -> AsyncIterator[Api]:
    async with process("api", env=env) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


async def test_a_connection_and_its_webhook(
    api: Api, env: dict[str, str], fake: Graph, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    tenant, other = await make_tenant(), await make_tenant()
    mine, theirs = [
        (await tenants.create_key(one, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")).key
        for one in (tenant, other)
    ]
    await tenants.stop()
    new = {"name": "Main", "waba_id": WABA, "numbers": [NUMBER], "token": "t0ken", "app_secret": SECRET}
    made = await api("POST", "/admin/connections", key=mine, json=new)
    assert made.status == 201, made.body
    assert b"t0ken" not in made.body
    assert SECRET.encode() not in made.body
    connection = made.json()
    address = connection["webhook"]

    query = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": connection["verify_token"]}
    reply = await api("GET", address, params=query)
    assert (reply.status, reply.body) == (200, b"1158201444")
    assert reply.headers["content-type"].startswith("text/plain")
    (await api("GET", address, params={**query, "hub.verify_token": "x"})).problem(403, "WEBHOOK_VERIFY_TOKEN")

    body = desk.messages(messages=[desk.wrote("wamid.1", "4915112345678", "Hello", 1_750_000_000)])
    signed = {"X-Hub-Signature-256": sign(SECRET, body), "Content-Type": "application/json"}
    plain = {"Content-Type": "application/json"}
    (await api("POST", address, data=body, headers=plain)).problem(403, "WEBHOOK_SIGNATURE")
    (await api("POST", address, data=body + b" ", headers=signed)).problem(403, "WEBHOOK_SIGNATURE")
    whole = b'{"object":"whatsapp_business_account","entry":[]}'.ljust(LARGEST)
    large = {"X-Hub-Signature-256": sign(SECRET, whole), "Content-Type": "application/json"}
    assert (await api("POST", address, data=io.BytesIO(whole), headers=large)).json() == {"new": True}, "its own limit"
    (await api("POST", "/admin/hooks", key=mine, data=b" " * (LIMIT + 1), headers=plain)).problem(413, "TOO_LARGE")
    unknown = address[:-4] + "0000"
    (await api("POST", unknown, data=body, headers=signed)).problem(404, "CONNECTION_NOT_FOUND")
    assert (await api("POST", address, data=body, headers=signed)).json() == {"new": True}
    assert (await api("POST", address, data=body, headers=signed)).json() == {"new": False}
    async with database.worker() as tx:
        kept = await tx.fetch(_KEPT, tenant)
    assert sorted(bytes(row["body"]) for row in kept) == sorted([body, whole]), "byte for byte, once"

    hook_of_meta = {"url": api.base + address, "verify_token": connection["verify_token"], "app_secret": SECRET}
    await fake.control(webhook=hook_of_meta, inbound=[{"number": NUMBER, "sender": "4915112345679", "text": "Me too"}])

    async def texts() -> list[str]:
        found = await api("GET", "/admin/inbox", key=mine)
        return sorted(item["text"] for item in found.json()["items"])

    assert await texts() == [], "nobody works here yet"
    async with process("worker", "--only", "jobs", env=env) as worker:
        await eventually(lambda: _is(texts, ["Hello", "Me too"]))
        assert await worker.stop() == 0, worker.tail()
    templates = (await api("GET", "/admin/templates", key=mine, params={"limit": "1"})).json()
    assert templates["items"][0]["connection_id"] == connection["connection_id"]
    assert (await api("GET", "/admin/templates", key=theirs)).json()["items"] == []
    path = f"/admin/connections/{connection['connection_id']}"
    (await api("GET", path, key=theirs)).problem(404, "CONNECTION_NOT_FOUND")
    (await api("POST", f"{path}/numbers/%00/resume", key=mine)).problem(404, "NUMBER_NOT_FOUND")
    changed = await api("PATCH", path, key=mine, json={"name": "New"}, headers={"If-Match": made.headers["etag"]})
    assert changed.json()["name"] == "New"
    (await api("PATCH", path, key=mine, json={"name": "x"}, headers={"If-Match": made.headers["etag"]})).problem(
        412, "PRECONDITION_FAILED"
    )

    hook = await api("POST", "/admin/hooks", key=mine, json={"url": "https://example.com/x", "events": ["import.done"]})
    assert hook.status == 201
    hook_path = f"/admin/hooks/{hook.json()['hook']['hook_id']}"
    refused = await api("POST", "/admin/hooks", key=mine, json={"url": "http://example.com/"})
    assert refused.problem(400, "OUTGOING_REFUSED")["faults"][0]["field"] == "url"
    (await api("GET", hook_path, key=theirs)).problem(404, "HOOK_NOT_FOUND")
    assert (await api("PATCH", hook_path, key=mine, json={"active": False})).json()["off_reason"] == "operator"
    (await api("POST", f"{hook_path}/test", key=mine)).problem(409, "HOOK_OFF")
    assert (await api("DELETE", hook_path, key=mine)).status == 204
    assert (await api("DELETE", path, key=mine)).status == 204
    (await api("POST", f"{path}/refresh", key=mine)).problem(404, "CONNECTION_NOT_FOUND")
