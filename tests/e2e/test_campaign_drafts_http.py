"""Drafts, estimates, opt-out words and a tenant's tier, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, graph
from tests.kit.http import Api
from tests.kit.processes import handbill, process
from tests.kit.reach import SECRET, free_numbers

PATH = "/admin/messaging/campaigns"
WORDS = "/admin/messaging/opt-out-words"
AUDITED = Sql("select action from tenants.audit_log where tenant_id = $1 order by audit_id", "read_audit")


async def command(env: dict[str, str], *args: str) -> Any:
    code, output = await handbill(*args, "--json", env=env)
    assert code == 0, output
    return json.loads(output[output.index("{") :])


@pytest.fixture
async def key(database: Database, redis: Redis, tenant: int) -> str:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    made = await tenants.create_key(tenant, NewKey("secret", "all", scopes=["*"]), actor="test")
    await tenants.stop()
    return made.key


async def test_drafts_words_and_tiers_from_outside(
    handbill_env: dict[str, str], engines: Engines, database: Database, tenant: int, key: str
) -> None:
    await free_numbers(engines.postgres_url)
    async with graph() as fake:
        env = {**handbill_env, "HANDBILL_MESSAGING__GRAPH_URL": fake.url}
        async with process("api", env=env) as running, aiohttp.ClientSession() as client:
            await running.log(event="api-ready")
            api = Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)
            draft = await over_http(api, key)
            await words_over_http(api, key)
            own = ("--tenant", str(tenant))
            changed, copy, found, _ = await asyncio.gather(
                command(env, "campaign", "edit", draft, *own, "--change", '{"name": "By hand"}'),
                command(env, "campaign", "clone", draft, *own, "--name", "Copy"),
                command(env, "campaign", "words", *own, "--language", "de", "--stop", "Genug"),
                tier(env, api, key, tenant),
            )
            assert changed["name"] == "By hand"
            assert (found["languages"], found["stop"], found["start"]) == (["de"], ["Genug"], ["news please"])
            (_, estimate), (_, proof), _ = await asyncio.gather(
                handbill("campaign", "estimate", draft, *own, env=env),
                handbill("campaign", "verify", draft, *own, env=env),
                command(env, "campaign", "delete", copy["campaign_id"], *own),
            )
            assert "audience_empty" in estimate
            assert "holds" in proof
            (await api("GET", f"{PATH}/{copy['campaign_id']}", key=key)).problem(404, "CAMPAIGN_NOT_FOUND")
    async with database.worker() as tx:
        actions = {row["action"] for row in await tx.fetch(AUDITED, tenant)}
    assert {"tenant.tier", "messaging.pace", "opt_out_words.change", "campaign.change", "campaign.delete"} <= actions


async def over_http(api: Api, key: str) -> str:
    """The id of a draft."""
    new = {"name": "Main", "waba_id": WABA, "numbers": [NUMBER], "token": "good", "app_secret": SECRET}
    connection = (await api("POST", "/admin/connections", key=key, json=new)).json()
    content = {"type": "template", "name": "hello_world", "language": "en_US"}
    body = {"name": "Spring", "connection_id": connection["connection_id"], "content": content}
    wrong = {**body, "bindings": {"body.1": {"field": "frist_name"}}}
    problem = (await api("POST", PATH, key=key, json=wrong)).problem(400, "INVALID")
    assert problem["faults"][0]["field"] == "bindings.body.1.field"
    made = await api("POST", PATH, key=key, json=body)
    draft, tag = f"{PATH}/{made.json()['campaign_id']}", made.headers["etag"]
    changed = await api("PATCH", draft, key=key, json={"name": "Summer"}, headers={"If-Match": tag})
    assert (changed.status, changed.json()["name"], changed.headers["etag"]) == (200, "Summer", '"v2"')
    stale = await api("PATCH", draft, key=key, json={"name": "Autumn"}, headers={"If-Match": tag})
    stale.problem(412, "PRECONDITION_FAILED")
    (await api("PATCH", draft, key=key, json={"state": "running"})).problem(400, "INVALID")
    estimate = (await api("GET", f"{draft}/estimate", key=key)).json()
    assert (estimate["is_complete"], [one["code"] for one in estimate["problems"]]) == (True, ["audience_empty"])
    copy = await api("POST", f"{draft}/clone", key=key, json={})
    assert (copy.status, copy.json()["name"]) == (201, "Copy of Summer")
    own = f"{PATH}/{copy.json()['campaign_id']}"
    assert (await api("POST", f"{own}/start", key=key, json={})).json()["state"] == "queued"
    (await api("DELETE", own, key=key)).problem(409, "CAMPAIGN_STATE")
    return str(made.json()["campaign_id"])


async def words_over_http(api: Api, key: str) -> None:
    before = await api("GET", WORDS, key=key)
    assert "stop" in before.json()["all_stop"]
    assert "cancel" not in before.json()["all_stop"]
    assert before.headers["etag"] == '"v0"'
    new = {"languages": ["en"], "start": ["News, please"], "without": ["remove me"]}
    after = await api("PUT", WORDS, key=key, json={**new, "start": ["news please"]}, headers={"If-Match": '"v0"'})
    assert "remove me" not in after.json()["all_stop"]
    assert "news please" in after.json()["all_start"]
    (await api("PUT", WORDS, key=key, json={}, headers={"If-Match": '"v0"'})).problem(412, "PRECONDITION_FAILED")
    for body, field in (
        ({"stop": ["!!!"]}, "stop.0"), ({"stop": ["a"], "start": ["Á"]}, "start"), ({"languages": ["xx"]}, "languages"),
        ({"stop": ["x" * 41]}, "stop"), ({"halt": []}, "halt"), ({"start": ["a\x00b"]}, "start.0"),
    ):  # fmt: skip
        problem = (await api("PUT", WORDS, key=key, json=body)).problem(400, "INVALID")
        assert problem["faults"][0]["field"].startswith(field), problem


async def tier(env: dict[str, str], api: Api, key: str, tenant: int) -> None:
    """By whoever runs the installation; a tenant's key cannot."""
    changed = await command(env, "tenant", "limits", str(tenant), "--tier", "enterprise", "--messages-per-second", "25")
    assert changed["limits"] == {"tier": "enterprise", "messages_per_second": 25.0}
    assert (await api("GET", "/admin/messaging/switch", key=key)).json()["per_second"] == 25
    raised = await api("PUT", "/admin/messaging/switch", key=key, json={"stopped": False, "per_second": 500})
    raised.problem(400, "INVALID")
    (await api("PATCH", "/admin/tenant", key=key, json={"tier": "enterprise"})).problem(400, "INVALID")
    back = await command(env, "tenant", "limits", str(tenant), "--messages-per-second", "tier")
    assert back["limits"] == {"tier": "enterprise"}
