"""Every operation of the OpenAPI document, by a real process: what is not known is refused by name; HEAD beside GET."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from handbill.events.dialects import posthog_config
from handbill.events.dialects.canon import Dialect
from handbill.events.dialects.router import ROUTES
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.http import Api, Reply
from tests.kit.processes import process
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"
VENDORS = {path for (_, path), dialect in ROUTES.items() if dialect is not Dialect.OWN}
VENDORS |= {route.path for route in posthog_config.routes()}
VENDORS |= {"/array/{token}/config", "/array/{token}/config.js", "/static/{name}"}
ANY_BODY = VENDORS | {"/webhooks/whatsapp/{connection_id}"}
ANY_QUERY = ANY_BODY | {
    "/health", "/ready", "/ping", "/handbill.js", "/handbill/vectors.json", "/demo", "/demo/{name}", "/docs",
    "/docs/{name}", "/r/{token}",
}  # fmt: skip
ODD = "placementz"


@pytest.fixture
async def api(
    handbill_env: dict[str, str],
    engines: Engines,
    clickhouse: ClickHouse,
    database: Database,
    redis: Redis,
    tenant: int,
) -> AsyncIterator[Api]:
    """A process, and a client with both keys of one tenant."""
    await migrate_clickhouse(clickhouse)
    env = {
        **handbill_env,
        "HANDBILL_TENANTS__SEAL_KEY": SEAL,
        "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url,
        "HANDBILL_API__KILL_TIMEOUT_S": "2",
        "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0",
    }
    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    secret = await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")
    write = await tenants.create_key(tenant, NewKey(kind="write", name="shop"), actor="test")
    await tenants.stop()
    keys = {"Authorization": f"Bearer {secret.key}", "X-Write-Key": write.key}
    async with process("api", env=env) as running, aiohttp.ClientSession(headers=keys) as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


def address(path: str, operation: dict[str, Any]) -> str:
    """The path with something in place of each parameter."""
    kinds = {each["name"]: each["schema"] for each in operation.get("parameters", ()) if each["in"] == "path"}

    def value(found: re.Match[str]) -> str:
        schema = kinds.get(found[1], {})
        if schema.get("format") == "uuid":
            return "0190163d-8694-739b-aea5-966c26f8ad91"
        return "1" if schema.get("type") == "integer" else str((schema.get("enum") or ["x"])[0])

    return re.sub(r"\{(\w+)\}", value, path)


async def operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    document = (await api("GET", "/schema/openapi.json")).json()
    found = [(path, method, each) for path, item in document["paths"].items() for method, each in item.items()]
    assert len(found) > 130
    return found


def fields_of(reply: Reply) -> set[str]:
    return {fault["field"] for fault in reply.problem(400, "INVALID")["faults"]}


async def test_every_operation_refuses_a_parameter_that_it_does_not_know(api: Api) -> None:
    for path, method, operation in await operations(api):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        options = {"json": content["example"]} if "example" in content else {}
        reply = await api(method, f"{address(path, operation)}?{ODD}=1", allow_redirects=False, **options)
        if path in ANY_QUERY:
            assert b"parameter that is not known" not in reply.body, path
        else:
            assert reply.status == 400, (method, path, reply.body)
            assert ODD in fields_of(reply), (method, path, reply.body)


async def test_every_operation_refuses_a_member_that_it_does_not_know(api: Api) -> None:
    refused = 0
    for path, method, operation in await operations(api):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if not isinstance(content.get("example"), dict):
            continue
        reply = await api(method, address(path, operation), json={**content["example"], ODD: 1})
        if path in ANY_BODY:
            assert b"not a known field" not in reply.body, path
            continue
        refused += 1
        assert reply.status == 400, (method, path, reply.body)
        assert ODD in fields_of(reply), (method, path, reply.body)
    assert refused > 50


async def test_an_operation_without_a_body_refuses_the_members_of_one(api: Api) -> None:
    refused = 0
    for path, method, operation in await operations(api):
        if method == "get" or "requestBody" in operation or path in ANY_BODY | {"/admin/imports"}:
            continue
        refused += 1
        query = "?day=2026-01-01" if path.endswith("/rollup") else "?address=x" if path.endswith("suppressions") else ""
        at = address(path, operation) + query
        reply = await api(method, at, json={ODD: 1})
        assert reply.status == 400, (method, path, reply.body)
        assert fields_of(reply) == {ODD}, (method, path, reply.body)
        assert (await api(method, at, json=[1])).status == 400, path
    assert refused > 30
    for body in (b"", b"{}", b" null "):
        reply = await api("POST", "/admin/inbox/parked/replay", data=body, headers={"Content-Type": "application/json"})
        assert reply.status == 200, reply.body
        key = {"Content-Type": "application/json", "Idempotency-Key": "k" + body.hex()}
        for _ in range(2):
            assert (await api("POST", "/admin/inbox/parked/replay", data=body, headers=key)).status == 200


async def test_the_document_says_which_bodies_take_nothing_else(api: Api) -> None:
    document = (await api("GET", "/schema/openapi.json")).json()
    schemas = document["components"]["schemas"]

    def open_schemas(schema: dict[str, Any], seen: frozenset[str] = frozenset()) -> set[str]:
        name = schema.get("$ref", "").rpartition("/")[2]
        if name in seen:
            return set()
        schema, seen = schemas.get(name, schema), seen | {name}
        found = {name} if "properties" in schema and schema.get("additionalProperties") is not False else set()
        inside = [*schema.get("properties", {}).values(), *schema.get("oneOf", ()), *schema.get("anyOf", ())]
        inside += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
        return found.union(*(open_schemas(each, seen) for each in inside))

    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None and path not in ANY_BODY:
                assert open_schemas(content["schema"]) == set(), (method, path)


async def test_wrong_and_missing_parameters_are_named_as_they_are_sent(api: Api) -> None:
    reply = await api("GET", "/admin/messaging/campaigns/0190163d-8694-739b-aea5-966c26f8ad91/messages?state=failed")
    assert fields_of(reply) == {"state"}
    for method, path, *names in (
        ("GET", "/admin/events/drops", "from", "to"),
        ("POST", "/admin/stats/banners/rollup", "day"),
    ):
        faults = (await api(method, path)).problem(400, "INVALID")["faults"]
        assert faults == [{"field": name, "reason": "is required"} for name in names]
    faults = (await api("GET", "/admin/banners?status=gone")).problem(400, "INVALID")["faults"]
    assert faults[0]["field"] == "status"
    assert faults[0]["reason"].startswith("must be one of ")
    (fault,) = (await api("GET", "/banners?user_id=u&placment=home")).problem(400, "INVALID")["faults"]
    assert fault == {"field": "placment", "reason": "is not a known parameter; did you mean `placement`?"}
    (fault,) = (await api("POST", "/v1/decide?Explain=1", json={"user_id": "u"})).problem(400, "INVALID")["faults"]
    assert fault["field"] == "Explain"
    (fault,) = (await api("POST", "/v1/decide", json={"user_id": "u", "placement": ["x"]})).problem(400, "INVALID")[
        "faults"
    ]
    assert fault == {"field": "placement", "reason": "is not a known field; did you mean `placements`?"}


async def test_in_a_batch_the_event_with_an_unknown_field_is_refused_alone(api: Api) -> None:
    place = (await api("POST", "/admin/placements", json={"name": "Home", "slug": "home"})).json()["placement_id"]
    banner = {"x_times": 2, "y_hours": 24, "z_duration_sec": 3}
    banner_id = (await api("POST", "/admin/banners", json=banner)).json()["banner_id"]
    good = {"bannerPublicId": banner_id, "placementPublicId": place, "correlationId": "c1"}

    async def token() -> str:
        decided = (await api("POST", "/v1/decide", json={"user_id": "u", "placements": ["home"]})).json()
        return "".join(one["token"] for one in decided["decisions"][0]["banners"])

    view = {"banner_id": banner_id, "user_id": "u", "event_id": "v1", "view_duration_ms": 3000, "viewable": True}
    for path, event in (
        (
            "/api/banners/events/impression/batch",
            {**good, "variant": "a", "token": await eventually(token, what="the banner is shown")},
        ),
        ("/api/banners/events/click/batch", {**good, "destinationUrl": "https://shop.example"}),
        ("/views/batch", view),
    ):
        reply = await api("POST", path, json={"events": [event, {**event, ODD: 1}]})
        assert reply.status == 202, reply.body
        (rejected,) = reply.json()["data"]["rejected"]
        assert (rejected["index"], rejected["faults"][0]["field"]) == (1, f"events[1].{ODD}")


async def test_head_answers_as_get_does_without_the_body(api: Api) -> None:
    seen = 0
    for path, method, operation in await operations(api):
        if method != "get":
            continue
        seen += 1
        at = address(path, operation)
        head = await api("HEAD", at, allow_redirects=False)
        assert head.body == b"", path
        if path == "/v1/insights/tail":
            assert head.status == 200, path
            continue
        get = await api("GET", at, allow_redirects=False)
        assert head.status == get.status, path
        told = ("content-type", "content-length", "etag", "cache-control", "location")
        if path != "/ready":  # what it says may change from one request to the next
            assert [head.headers.get(name) for name in told] == [get.headers.get(name) for name in told], path
    assert seen > 50
    assert (await api("HEAD", "/v1/decide")).status == 405
    assert (await api("HEAD", "/nowhere")).status == 404
