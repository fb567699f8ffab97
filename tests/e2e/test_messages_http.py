"""Single messages in real processes: over HTTP, from the command line, and as a job of another program."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.model import JobOptions
from handbill.jobs.queue import Queues
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, Graph, graph
from tests.kit.http import Api
from tests.kit.processes import process
from tests.kit.reach import SECRET, free_numbers
from tests.kit.waiting import eventually

PATH = "/v1/messages"
TEMPLATE = {"name": "hello_world", "language": "en_US"}
SCOPES = {"all": ["*"], "send": ["messages:send", "messages:read"], "read": ["messages:read"]}


@pytest.fixture
async def fake() -> AsyncIterator[Graph]:
    async with graph() as found:
        yield found


async def test_one_message_over_http_by_command_and_by_job(
    handbill_env: dict[str, str], fake: Graph, engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    await free_numbers(engines.postgres_url)
    env = handbill_env | {
        "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
        "HANDBILL_MESSAGING__GRAPH_URL": fake.url,
        "HANDBILL_API__PUBLIC_URL": "https://ads.example.com",
    }
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    keys: dict[str, str] = {}
    for name, scopes in SCOPES.items():
        made_key = await tenants.create_key(tenant, NewKey(kind="secret", name=name, scopes=scopes), actor="test")
        keys[name] = made_key.key
    await tenants.stop()
    async with (
        process("api", env=env) as running,
        process("worker", "--only", "relay,jobs,cron", env=env) as worker,
        aiohttp.ClientSession() as client,
    ):
        await running.log(event="api-ready")
        await worker.log(event="worker-ready")
        api = Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)
        new = {"name": "Main", "waba_id": WABA, "numbers": [NUMBER], "token": "good", "app_secret": SECRET}
        connected = await api("POST", "/admin/connections", key=keys["all"], json=new)
        assert connected.status == 201, connected.body
        callback = f"/admin/connections/{connected.json()['connection_id']}/callback"
        shown = (await api("GET", callback, key=keys["all"])).json()
        path = connected.json()["webhook"]
        assert shown["url"] == connected.json()["webhook_url"] == "https://ads.example.com" + path
        document = (await api("GET", "/schema/openapi.json")).json()
        assert document["servers"] == [{"url": "https://ads.example.com"}]

        body: dict[str, Any] = {"to": "+49 170 1234567", "template": TEMPLATE}
        key = {"Idempotency-Key": "order-1"}
        made = await api("POST", PATH, key=keys["send"], json=body, headers=key)
        assert made.status == 202, made.body
        one = f"{PATH}/{made.json()['message_id']}"
        assert made.headers["location"] == one

        async def outcome(path: str) -> dict[str, Any]:
            found: dict[str, Any] = (await api("GET", path, key=keys["read"])).json()
            return found if found["outcome"] is not None else {}

        found: dict[str, Any] = await eventually(lambda: outcome(one))
        assert (found["outcome"], found["address"], found["source"]) == ("sent", "+491701234567", "api")
        again = await api("POST", PATH, key=keys["send"], json={**body, "idempotency_key": "order-1"})
        assert (again.status, again.json()["message_id"]) == (202, found["message_id"])
        other = await api("POST", PATH, key=keys["send"], json={**body, "to": "+491701234568"}, headers=key)
        other.problem(409, "IDEMPOTENCY_KEY_REUSED")
        (await api("POST", PATH, key=keys["read"], json=body, headers=key)).problem(403, "SCOPE_MISSING")
        (await api("POST", PATH, key=keys["send"], json=body)).problem(400, "BAD_IDEMPOTENCY_KEY")
        unlike = await api("POST", PATH, key=keys["send"], json={**body, "idempotency_key": "x"}, headers=key)
        unlike.problem(400, "BAD_IDEMPOTENCY_KEY")
        wrong = {"to": "+491701234567", "template": {**TEMPLATE, "name": "gone"}, "idempotency_key": "2"}
        (await api("POST", PATH, key=keys["send"], json=wrong)).problem(422, "TEMPLATE_UNKNOWN")
        text = {"to": "+491701234567", "text": "Hello", "idempotency_key": "3"}
        (await api("POST", PATH, key=keys["send"], json=text)).problem(409, "WINDOW_CLOSED")
        bad = await api("POST", PATH, key=keys["send"], json={**body, "to": "123"}, headers={"Idempotency-Key": "4"})
        assert bad.problem(400, "INVALID")["faults"][0]["field"] == "to"
        missing = await api("GET", f"{PATH}/0190163d-8694-739b-aea5-966c26f8ad91", key=keys["read"])
        missing.problem(404, "MESSAGE_NOT_FOUND")

        slug = str(tenant)
        arguments = ("--tenant", slug, "--to", "+491701234569", "--template", "hello_world", "--json")
        async with process("message", "send", *arguments, env=env) as command:
            sent = json.loads((await command.succeeds()).splitlines()[-1])
        await eventually(lambda: outcome(f"{PATH}/{sent['message_id']}"))
        async with process("message", "show", sent["message_id"], "--tenant", slug, "--json", env=env) as command:
            shown = json.loads((await command.succeeds()).splitlines()[-1])
        assert (shown["outcome"], shown["source"]) == ("sent", "cli")

        queue = Queues(redis).queue("message_dispatch")
        data = {"to": "+491701234570", "template": TEMPLATE}
        await queue.add("send", data, opts=JobOptions(job_id=f"order-{tenant}"), tenant_id=tenant)
        listed = {"idempotency_key": f"job:order-{tenant}"}

        async def by_job() -> dict[str, Any]:
            items: list[dict[str, Any]] = (await api("GET", PATH, key=keys["read"], params=listed)).json()["items"]
            return items[0] if items and items[0]["outcome"] is not None else {}

        job: dict[str, Any] = await eventually(by_job)
        assert (job["outcome"], job["source"], job["address"]) == ("sent", "job", "+491701234570")
        async with process("message", "verify", "--tenant", slug, "--json", env=env) as command:
            proof = json.loads((await command.succeeds()).splitlines()[-1])
        assert (proof["holds"], proof["messages"], proof["sent"]) == (True, 3, 3)
        async with process("settings", "--urls", "--json", env=env) as command:
            urls = json.loads((await command.succeeds()).splitlines()[-1])
        assert urls["redis"] == env["HANDBILL_REDIS__URL"]
        assert sorted(line["to"] for line in await fake.log()) == ["491701234567", "491701234569", "491701234570"]
