"""Generated requests against every route of a real process: whatever is sent, the answer fits the OpenAPI page."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import hypothesis
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.processes import process

EXAMPLES = 6


async def test_no_request_breaks_the_api(
    handbill_env: dict[str, str],
    engines: Engines,
    database: Database,
    redis: Redis,
    clickhouse: ClickHouse,
    tenant: int,
) -> None:
    await migrate_clickhouse(clickhouse)
    handbill_env = handbill_env | {"HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url}
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    made = await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")
    await tenants.stop()
    base = f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}"
    async with (
        graph() as fake,
        process(
            "api",
            env=handbill_env | {"HANDBILL_MESSAGING__GRAPH_URL": fake.url, "HANDBILL_ADSTATS__META_URL": fake.url},
        ) as running,
    ):
        await running.log(event="api-ready")
        async with aiohttp.ClientSession() as client, client.get(f"{base}/schema/openapi.json") as reply:
            document = await reply.json()
        tried = await asyncio.to_thread(fuzz, document, base, made.key)
        assert tried > len(document["paths"])
        assert not running.seen(event="request-failed"), running.tail()


def fuzz(document: dict[str, Any], base: str, key: str) -> int:
    """A few requests for every operation, the same ones each time."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=base)
    tried = 0
    for outcome in schema.get_all_operations():
        assert isinstance(outcome, Ok), outcome
        operation = outcome.ok()
        if operation.path in ("/ready", "/v1/insights/tail"):
            continue  # the one may rightly answer 503, the other is a stream that never ends by itself

        @hypothesis.settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy())
        def one(case: Any) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate(
                headers={"Authorization": f"Bearer {key}"},
                checks=[not_a_server_error, content_type_conformance, response_schema_conformance],
                timeout=60,
            )

        one()
    return tried
