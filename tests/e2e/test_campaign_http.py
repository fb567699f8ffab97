"""A campaign over HTTP, in real processes: draft, test send, outcomes, proof, fairness, switch, command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, Graph, graph
from tests.kit.http import Api
from tests.kit.processes import process
from tests.kit.reach import SECRET, free_numbers
from tests.kit.waiting import eventually

PATH = "/admin/messaging/campaigns"


@pytest.fixture
async def fake() -> AsyncIterator[Graph]:
    async with graph() as found:
        yield found


async def test_a_campaign_over_http(
    handbill_env: dict[str, str], fake: Graph, engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    await free_numbers(engines.postgres_url)
    env = handbill_env | {
        "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
        "HANDBILL_MESSAGING__GRAPH_URL": fake.url,
    }
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    key = (await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")).key
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
        connection = (await api("POST", "/admin/connections", key=key, json=new)).json()["connection_id"]
        callback = await api("GET", f"/admin/connections/{connection}/callback", key=key)
        assert "HANDBILL_API__PUBLIC_URL" in callback.problem(409, "PUBLIC_URL_UNSET")["detail"]
        draft = {
            "name": "Spring", "connection_id": connection, "price": "0.05", "spend_cap": "10",
            "content": {"type": "template", "name": "hello_world", "language": "en_US"},
            "quiet": {"since": "21:00:00", "until": "08:00:00"},
        }  # fmt: skip
        made = await api("POST", PATH, key=key, json=draft)
        assert made.status == 201, made.body
        one = f"{PATH}/{made.json()['campaign_id']}"
        assert made.json()["quiet"]["zone"] == "UTC", "the tenant's own zone"
        (await api("POST", PATH, key=key, json={**draft, "price": "0"})).problem(400, "INVALID")
        (await api("POST", f"{one}/resume", key=key)).problem(409, "CAMPAIGN_STATE")

        people = [{"address": f"+49171234567{n}"} for n in range(3)]
        sent = await api("POST", f"{one}/test", key=key, json={"people": people})
        assert sent.status == 201, sent.body
        test = f"{PATH}/{sent.json()['campaign_id']}"

        async def completed() -> bool:
            return bool((await api("GET", test, key=key)).json()["state"] == "completed")

        await eventually(completed)
        assert (await api("GET", f"{test}/outcomes", key=key)).json() == {"states": {"accepted": 3}, "reasons": {}}
        proof = (await api("GET", f"{test}/verify", key=key)).json()
        assert (proof["holds"], proof["sent"], proof["audience"]) == (True, 3, 3)
        page = (await api("GET", f"{test}/messages", key=key, params={"limit": "2", "status": "accepted"})).json()
        assert len(page["items"]) == 2
        assert page["next"]
        fair = (await api("GET", "/admin/messaging/fairness", key=key, params={"window_s": "3600"})).json()
        assert [share["messages"] for share in fair["tenants"]] == [3]
        switch = await api("PUT", "/admin/messaging/switch", key=key, json={"stopped": True})
        assert switch.json()["stopped"] is True
        assert (await api("POST", f"{one}/cancel", key=key)).json()["state"] == "cancelled"
        campaign = sent.json()["campaign_id"]
        async with process("campaign", "verify", campaign, "--tenant", str(tenant), "--json", env=env) as command:
            assert json.loads((await command.succeeds()).splitlines()[-1])["holds"] is True
