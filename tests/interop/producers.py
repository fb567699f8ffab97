"""A Node program follows docs/queues.md: its own sample adds a `send` job, which sends once; Bull Board shows it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp

from benches._shop import house
from handbill.fake_graph.model import Config
from handbill.messaging.links import NewConnection
from handbill.tenants.model import NewTenant
from handbill.wiring.house import House
from tests.interop.node import Node
from tests.kit.graph import NUMBER, WABA, Graph, graph
from tests.kit.processes import process
from tests.kit.stack import Stack, stack
from tests.kit.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"
LIBRARIES = ("bullmq5", "bullmq6")
NAMED = "a producer that follows docs/queues.md sends one message"
QUEUE = "message_dispatch"
TEMPLATE = {
    "id": "77", "name": "order_shipped", "language": "en_US", "category": "UTILITY",
    "components": [{"type": "BODY", "text": "Dear {{1}}, your order is on its way."}],
}  # fmt: skip
_LIBRARY = """
const Module = require("node:module");
const find = Module._resolveFilename;
Module._resolveFilename = (name, ...rest) => find.call(Module, name === "bullmq" ? LIBRARY : name, ...rest);
(async () => {
SAMPLE
await queue.close();
})().catch((error) => { console.error(error); process.exit(1); });
"""


async def run(home: Path, only: str) -> tuple[int, int]:
    """Passed and failed."""
    if only not in NAMED:
        return 0, 0
    failed = 0
    async with graph(Config()) as fake:
        await fake.control(templates={WABA: [TEMPLATE]})
        settings = {"HANDBILL_MESSAGING__GRAPH_URL": fake.url, "HANDBILL_TENANTS__SEAL_KEY": "a seal key for interop"}
        async with stack(settings=settings) as built, house(built) as ours, built.worker("--only", "relay,jobs,cron"):
            connection = NewConnection("Main", WABA, [NUMBER], "good", "app-secret")
            tenant = await ours.tenants.create_tenant(NewTenant(name="Shop", slug="shop"), actor="interop")
            await ours.messaging.connections.connect(tenant.tenant_id, connection, actor="interop")
            for library in LIBRARIES:
                try:
                    await one(library, home, built, ours, fake, tenant.tenant_id)
                    word = "ok    "
                except AssertionError as error:
                    failed += 1
                    word = f"FAILED {error}"
                print(f"{word} {library}: {NAMED}", flush=True)
    return len(LIBRARIES) - failed, failed


async def one(library: str, home: Path, built: Stack, ours: House, fake: Graph, tenant: int) -> None:
    job_id = f"order-{library}"
    url = await _printed_url(built)
    for _ in range(2):  # a producer that is not sure adds it again
        await _run_sample(library, home, url, tenant, job_id)
    before = len(await fake.log())
    async with Node.running(home, library, url) as node:

        async def completed() -> dict[str, Any]:
            found: dict[str, Any] = await node("job", queue=QUEUE, id=job_id) or {}
            assert found.get("state") != "failed", found
            return found if found.get("state") == "completed" else {}

        done: dict[str, Any] = await eventually(completed)
        assert done["returnvalue"]["state"] == "accepted", done
        message = await ours.messaging.singles.read(tenant, UUID(done["returnvalue"]["message_id"]))
        assert (message.outcome, message.idempotency_key) == ("sent", f"job:{job_id}")
        bad = {"opts": {"tenant": tenant, "jobId": f"bad-{library}"}, "data": {"to": "+4917212345678", "body": "?"}}
        await node("add", queue=QUEUE, name="send", **bad)

        async def refused() -> dict[str, Any]:
            found: dict[str, Any] = await node("job", queue=QUEUE, id=f"bad-{library}") or {}
            return found if found.get("state") == "failed" else {}

        failed: dict[str, Any] = await eventually(refused)
        assert "body" in failed["failedReason"], failed["failedReason"]
        await _board(node, {"completed": job_id, "failed": f"bad-{library}"})
    log = await fake.log()
    assert len(log) - before <= 1
    assert [line["to"] for line in log].count("4917212345678") == 1 + LIBRARIES.index(library), "each job once"


async def _printed_url(built: Stack) -> str:
    async with process("settings", "--urls", "--json", env=built.env()) as command:
        return str(json.loads((await command.succeeds()).splitlines()[-1])["redis"])


async def _run_sample(library: str, home: Path, url: str, tenant: int, job_id: str) -> None:
    """The page's own program; only the tenant and the job's id are put in."""
    (sample,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    sample = sample.replace("tenant: 7", f"tenant: {tenant}").replace("order-4711-shipped", job_id)
    text = _LIBRARY.replace("LIBRARY", json.dumps(library)).replace("SAMPLE", textwrap.indent(sample, "  "))
    script = home / f"producer-{library}.js"
    script.write_text(text, encoding="utf-8")
    env = {**os.environ, "REDIS_URL": url}
    child = await asyncio.create_subprocess_exec("node", script.name, cwd=home, env=env)
    assert await asyncio.wait_for(child.wait(), 60) == 0, "the sample of docs/queues.md failed"


async def _board(node: Node, jobs: dict[str, str]) -> None:
    port = await node("board", queues=[QUEUE])
    async with aiohttp.ClientSession() as http:
        for status, job_id in jobs.items():
            query = {"activeQueue": QUEUE, "status": status, "jobsPerPage": "100"}
            async with http.get(f"http://127.0.0.1:{port}/api/queues", params=query) as reply:
                (queue,) = (await reply.json())["queues"]
            assert job_id in [job["id"] for job in queue["jobs"]], f"Bull Board does not list {job_id}"
