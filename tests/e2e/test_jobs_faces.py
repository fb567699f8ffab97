"""Jobs and dead letters over HTTP and on the command line, through real processes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.processes import handbill, process
from tests.store.outbox_bench import Bench, a_bench


async def prepare(bench: Bench, tenant: int, other: int) -> tuple[str, str]:
    """For each tenant one dead letter and one waiting job; the ids of the first tenant's job and the other's."""
    for owner in (tenant, other):
        await bench.put(owner, 1)
    await bench.relay().serve(bench.name)
    for job in await bench.queue.list("waiting"):
        await bench.finish(job, "failed", "the number is wrong")
    await bench.ledger.read_all(bench.name)
    for owner in (tenant, other):
        await bench.put(owner, 1)
    await bench.relay().serve(bench.name)
    found = {job.tenant_id: job.id for job in await bench.queue.list("waiting")}
    return found[tenant], found[other]


async def test_a_tenant_over_http_sees_and_moves_only_its_own(
    handbill_env: dict[str, str],
    database: Database,
    redis: Redis,
    tenant: int,
    make_tenant: Callable[..., Awaitable[int]],
    unique: Callable[[str], str],
) -> None:
    other = await make_tenant()
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    scopes = ["jobs:read", "jobs:write"]
    made = await tenants.create_key(tenant, NewKey(kind="secret", name="jobs", scopes=scopes), actor="test")
    await tenants.stop()
    base = f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}"
    headers = {"Authorization": f"Bearer {made.key}"}
    async with a_bench(database, redis, unique("faces")) as bench, process("api", env=handbill_env) as api:
        mine, others = await prepare(bench, tenant, other)
        await api.log(event="api-ready")
        async with aiohttp.ClientSession(base, headers=headers) as http:

            async def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
                async with http.request(method, path, json=body) as reply:
                    raw = await reply.read()
                    return reply.status, json.loads(raw) if raw else None

            jobs = f"/admin/jobs/{bench.name}"
            status, page = await ask("GET", f"{jobs}?state=waiting")
            assert (status, [job["id"] for job in page["items"]]) == (200, [mine])
            assert (await ask("GET", f"{jobs}/{mine}"))[1]["data"]["t"] == tenant
            status, problem = await ask("GET", f"{jobs}/{others}")
            assert (status, problem["code"]) == (404, "JOB_NOT_FOUND")
            assert (await ask("DELETE", f"{jobs}/{others}"))[0] == 404
            assert (await ask("POST", f"{jobs}/{mine}/retry"))[1]["code"] == "JOB_WRONG_STATE"
            assert (await ask("DELETE", f"{jobs}/{mine}"))[0] == 204
            assert (await ask("GET", "/admin/jobs"))[0] == 200

            status, page = await ask("GET", f"/admin/dead-letters?queue={bench.name}")
            [letter] = page["items"]
            assert (letter["tenant_id"], letter["reason"]) == (tenant, "the number is wrong")
            status, problem = await ask("POST", "/admin/dead-letters/redrive", {})
            assert (status, problem["code"]) == (400, "INVALID")
            chosen = {"queue": bench.name, "reason": "number"}
            assert await ask("POST", "/admin/dead-letters/redrive", chosen) == (200, {"count": 1, "done": False})
            chosen["dry_run"] = False  # type: ignore[assignment]
            assert await ask("POST", "/admin/dead-letters/redrive", chosen) == (200, {"count": 1, "done": True})
            assert (await ask("GET", f"/admin/dead-letters/{letter['id']}"))[1]["status"] == "redriven"
            purge = {"ids": [letter["id"]], "dry_run": False}
            assert await ask("POST", "/admin/dead-letters/purge", purge) == (200, {"count": 1, "done": True})
        assert [one.tenant_id for one in await bench.letters(status="dead")] == [other]


async def test_the_operators_commands(
    handbill_env: dict[str, str],
    database: Database,
    redis: Redis,
    make_tenant: Callable[..., Awaitable[int]],
    unique: Callable[[str], str],
) -> None:
    slug = unique("slug").lower().replace("_", "-")
    tenant = await make_tenant(slug=slug)

    async def run(*args: str) -> Any:
        code, output = await handbill(*args, "--json", env=handbill_env)
        assert code == 0, output
        return json.loads(output.splitlines()[-1])

    async with a_bench(database, redis, unique("cli")) as bench:
        mine, _ = await prepare(bench, tenant, tenant + 1_000_000)
        [row] = [one for one in await run("jobs", "ls") if one["queue"] == bench.name]
        assert (row["jobs"]["waiting"], row["dead"]) == (2, 2)
        assert (await run("jobs", "show", bench.name, mine))["tenant_id"] == tenant
        for name, count in ((slug, 1), (str(tenant), 1), (str(tenant + 1_000_000), 1), (str(tenant + 2_000_000), 0)):
            listed = await run("jobs", "ls", bench.name, "--state", "waiting", "--tenant", name)
            assert len(listed) == len(await run("dead", "ls", "--queue", bench.name, "--tenant", name)) == count
            chosen = ("--queue", bench.name, "--tenant", name, "--dry-run")
            assert await run("dead", "redrive", *chosen) == {"count": count, "done": False}
        code, output = await handbill("dead", "ls", "--tenant", "no-such-tenant", env=handbill_env)
        assert code == 1, output
        assert await run("dead", "redrive", "--queue", bench.name, "--dry-run") == {"count": 2, "done": False}
        assert await run("dead", "redrive", "--queue", bench.name) == {"count": 2, "done": True}
        assert (await run("jobs", "drain", bench.name, "--yes"))["removed"] == 4
        assert await bench.statuses() == {}
        code, output = await handbill("dead", "purge", env=handbill_env)
        assert code == 2, output
        assert "--all" in output
