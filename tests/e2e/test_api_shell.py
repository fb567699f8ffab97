"""A real API process over HTTP: errors, limits, ids, idempotency, pages, CORS, auth, OpenAPI, stopping."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey, NewUser
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import free_port, process
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"
LIMIT = 4096


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[Api]:
    metrics = free_port()
    env = {
        **handbill_env,
        "HANDBILL_TENANTS__SEAL_KEY": SEAL,
        "HANDBILL_API__BODY_LIMIT": str(LIMIT),
        "HANDBILL_API__METRICS_PORT": str(metrics),
        "HANDBILL_API__KILL_TIMEOUT_S": "2",
    }
    async with process("api", env=env) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        found = Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)
        found.metrics = f"http://127.0.0.1:{metrics}"  # type: ignore[attr-defined]
        yield found


@pytest.fixture
async def tenants(database: Database, redis: Redis) -> AsyncIterator[TenantService]:
    found = TenantService(database, redis, seal_key=b"s" * 32)
    yield found
    await found.stop()


@pytest.fixture
async def key(tenants: TenantService, tenant: int) -> str:
    return (await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")).key


async def test_errors_have_one_shape(api: Api, key: str, tenants: TenantService, tenant: int) -> None:
    (await api("GET", "/nowhere")).problem(404, "NOT_FOUND")
    (await api("DELETE", "/health")).problem(405, "METHOD_NOT_ALLOWED")
    refused = await api("GET", "/admin/tenant")
    refused.problem(401, "UNAUTHORIZED")
    assert refused.headers["www-authenticate"] == "Bearer"
    (await api("GET", "/admin/tenant", key="hbs_" + "x" * 32)).problem(401, "UNAUTHORIZED")
    (await api("GET", "/admin/tenant", key="nonsense")).problem(401, "UNAUTHORIZED")
    write = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")
    for headers in ({"Authorization": f"Bearer {write.key}"}, {"X-Write-Key": write.key}):
        refused = await api("GET", "/admin/tenant", headers=headers)
        assert "write key" in refused.problem(401, "UNAUTHORIZED")["detail"]
    refused = await api("GET", "/admin/tenant", headers={"X-Write-Key": key})
    assert "Authorization: Bearer" in refused.problem(401, "UNAUTHORIZED")["detail"], "says where a secret key belongs"
    small = await tenants.create_key(tenant, NewKey(kind="secret", name="s", scopes=["audit:read"]), actor="test")
    (await api("GET", "/admin/keys", key=small.key)).problem(403, "SCOPE_MISSING")
    assert (await api("GET", "/admin/audit", key=small.key)).status == 200

    bad = await api("POST", "/admin/keys", key=key, json={"kind": "other", "scopes": ["x"], "extra": 1})
    fields = {fault["field"] for fault in bad.problem(400, "INVALID")["faults"]}
    assert fields == {"kind", "name", "scopes[0]", "extra"}
    (await api("POST", "/admin/keys", key=key, data=b"{", headers={"content-type": "application/json"})).problem(
        400, "INVALID"
    )
    (await api("POST", "/admin/keys", key=key, data=b"a=b", headers={"content-type": "text/plain"})).problem(
        415, "UNSUPPORTED_MEDIA_TYPE"
    )
    limit = await api("GET", "/admin/keys?limit=0", key=key)
    assert limit.problem(400, "INVALID")["faults"][0]["field"] == "limit"
    (await api("GET", "/admin/keys?cursor=nonsense", key=key)).problem(400, "BAD_CURSOR")
    nul = await api("PATCH", "/admin/tenant", key=key, json={"name": "a\0b"})
    nul.problem(400, "INVALID")
    (await api("POST", "/admin/keys/0190163d-8694-739b-aea5-966c26f8ad91/rotate", key=key, json={})).problem(
        404, "KEY_NOT_FOUND"
    )
    await tenants.suspend(tenant, actor="test")
    (await api("GET", "/admin/audit", key=key)).problem(403, "TENANT_SUSPENDED")


async def test_bodies_are_limited_whether_they_tell_their_length_or_not(api: Api, key: str) -> None:
    large = json.dumps({"kind": "secret", "name": "x" * LIMIT}).encode()
    head = {"content-type": "application/json"}
    (await api("POST", "/admin/keys", key=key, data=large, headers=head)).problem(413, "TOO_LARGE")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 1000

    (await api("POST", "/admin/keys", key=key, data=chunks(), headers=head)).problem(413, "TOO_LARGE")
    assert (await api("GET", "/health")).json() == {"status": "ok"}


async def test_every_answer_carries_its_id_and_safe_headers(api: Api, key: str) -> None:
    given = await api("GET", "/health", headers={"X-Request-Id": "my-own.id:1"})
    assert given.headers["x-request-id"] == "my-own.id:1"
    made = await api("GET", "/admin/audit?secret=hidden", key=key, headers={"X-Request-Id": "<script>"})
    number = made.headers["x-request-id"]
    assert "<" not in number
    assert made.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in made.headers["content-security-policy"]
    line = await api.process.log(event="request", request_id=number)
    assert (line["route"], line["status"], line["method"]) == ("/admin/audit", 400, "GET")
    assert key not in api.process.output
    assert "hidden" not in api.process.output


async def test_the_same_post_twice_is_done_once(api: Api, key: str) -> None:
    head = {"Idempotency-Key": "create-1"}
    body = {"kind": "secret", "name": "once", "scopes": ["audit:read"]}
    first = await api("POST", "/admin/keys", key=key, json=body, headers=head)
    again = await api("POST", "/admin/keys", key=key, json=body, headers=head)
    assert first.status == again.status == 201
    assert first.body == again.body
    assert again.headers["idempotent-replayed"] == "true"
    other = await api("POST", "/admin/keys", key=key, json={**body, "name": "twice"}, headers=head)
    other.problem(409, "IDEMPOTENCY_MISMATCH")
    bad = {"Idempotency-Key": "create-2"}
    refused = await api("POST", "/admin/keys", key=key, json={"kind": "secret"}, headers=bad)
    refused.problem(400, "INVALID")
    repeated = await api("POST", "/admin/keys", key=key, json={"kind": "secret"}, headers=bad)
    assert repeated.body == refused.body
    (await api("POST", "/admin/keys", key=key, json=body, headers={"Idempotency-Key": "x" * 201})).problem(
        400, "BAD_IDEMPOTENCY_KEY"
    )
    at_once = await asyncio.gather(
        *(
            api("POST", "/admin/keys", key=key, json={**body, "name": "at once"}, headers={"Idempotency-Key": "many"})
            for _ in range(6)
        )
    )
    assert {reply.status for reply in at_once} <= {201, 409}
    listed = (await api("GET", "/admin/keys?limit=200", key=key)).json()["items"]
    assert sorted(item["name"] for item in listed) == ["all", "at once", "once"]


async def test_keys_are_listed_in_pages_rotated_and_revoked(api: Api, key: str) -> None:
    for number in range(3):
        made = await api("POST", "/admin/keys", key=key, json={"kind": "secret", "name": f"k{number}"})
        assert made.status == 201
    last = made.json()
    first = (await api("GET", "/admin/keys?limit=3", key=key)).json()
    second = (await api("GET", f"/admin/keys?limit=3&cursor={first['next']}", key=key)).json()
    assert [item["name"] for item in first["items"] + second["items"]] == ["k2", "k1", "k0", "all"]
    assert second["next"] is None
    assert last["key"] not in json.dumps(first)
    key_id = last["info"]["key_id"]
    rotated = (await api("POST", f"/admin/keys/{key_id}/rotate", key=key, json={"overlap_s": 60})).json()
    assert rotated["info"]["replaces"] == key_id
    for one in (last["key"], rotated["key"]):
        assert (await api("GET", "/auth/me", key=one)).status == 200
    ended = await api("DELETE", f"/admin/keys/{key_id}", key=key)
    assert ended.json()["revoked_at"]
    (await api("GET", "/auth/me", key=last["key"])).problem(401, "UNAUTHORIZED")
    assert (await api("GET", "/auth/me", key=rotated["key"])).json()["kind"] == "secret_key"


async def test_if_match_is_honoured_where_it_is_sent(api: Api, key: str) -> None:
    read = await api("GET", "/admin/tenant", key=key)
    changed = await api(
        "PATCH",
        "/admin/tenant",
        key=key,
        json={"time_zone": "Europe/Paris"},
        headers={"If-Match": read.headers["etag"]},
    )
    assert changed.json()["tenant"]["time_zone"] == "Europe/Paris"
    stale = await api("PATCH", "/admin/tenant", key=key, json={"name": "x"}, headers={"If-Match": read.headers["etag"]})
    stale.problem(412, "PRECONDITION_FAILED")
    (await api("PATCH", "/admin/tenant", key=key, json={"name": "x"}, headers={"If-Match": "x"})).problem(
        400, "BAD_IF_MATCH"
    )
    assert (await api("PATCH", "/admin/tenant", key=key, json={"name": "x"})).status == 200


async def test_users_log_in_by_token_and_by_cookie(
    api: Api, tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    email, password = f"{unique('ada')}@example.com", "correct horse battery"
    await tenants.accounts.create_user(tenant, NewUser(email=email, password=password, role="owner"), actor="test")
    (await api("POST", "/auth/login", json={"email": email, "password": "wrong"})).problem(401, "BAD_LOGIN")
    opened = await api("POST", "/auth/login", json={"email": email, "password": password, "cookie": True})
    assert opened.status == 200, opened.body
    session = opened.json()
    assert (await api("GET", "/auth/me", key=session["token"])).json()["role"] == "owner"
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "Secure" in cookie
    head = {"Cookie": f"handbill_session={session['token']}"}
    assert (await api("GET", "/admin/users", headers=head)).status == 200
    new = {"email": f"{unique('bob')}@example.com", "password": password, "role": "viewer"}
    (await api("POST", "/admin/users", json=new, headers=head)).problem(403, "CSRF")
    made = await api("POST", "/admin/users", json=new, headers={**head, "X-CSRF-Token": session["csrf_token"]})
    assert made.status == 201
    assert "password" not in made.json()
    viewer = (await api("POST", "/auth/login", json={"email": new["email"], "password": password})).json()["token"]
    assert (await api("GET", "/admin/users", key=viewer)).status == 200
    (await api("POST", "/admin/users", key=viewer, json=new)).problem(403, "SCOPE_MISSING")
    user_id = made.json()["user_id"]
    assert (await api("PATCH", f"/admin/users/{user_id}", key=session["token"], json={"name": "Bob"})).status == 200
    assert (await api("DELETE", f"/admin/users/{user_id}", key=session["token"])).status == 204
    (await api("GET", "/auth/me", key=viewer)).problem(401, "UNAUTHORIZED")
    assert (await api("POST", "/auth/logout", key=session["token"])).status == 204
    (await api("GET", "/auth/me", key=session["token"])).problem(401, "UNAUTHORIZED")
    assert password not in api.process.output


async def test_health_readiness_metrics_and_the_empty_reply(api: Api, key: str) -> None:
    ping = await api("GET", "/ping")
    assert (ping.status, ping.body) == (200, b"")

    async def ready() -> Any:
        found = await api("GET", "/ready")
        return found.json()["parts"] if found.status == 200 else None

    parts = await eventually(ready)
    assert parts["postgres"]["ok"]
    assert parts["redis"]["ok"]
    assert not parts["clickhouse"]["vital"]
    assert {name: part["detail"] for name, part in parts.items()} == {
        "postgres": {}, "redis": {}, "journal": {}, "clickhouse": {"code": "CLICKHOUSE_AWAY"}, "counting": {},
        "exports": {}, "catalog": {}, "errors": {}, "disk": {}, "tasks": {},
    }, "no lag, no load"  # fmt: skip
    async with api.client.get(f"{api.metrics}/ready") as reply:  # type: ignore[attr-defined]
        details = await reply.json()
    assert (reply.status, details["ready"]) == (200, True)
    assert set(details["parts"]["journal"]["detail"]) == {"lag_events", "lag_seconds"}
    assert details["parts"]["clickhouse"]["detail"]["reason"]
    assert {"intake-lag", "catalog-poll", "disk-space"} <= set(details["parts"]["tasks"]["detail"]["running"])
    assert (await api("GET", "/health")).json() == {"status": "ok"}
    async with api.client.get(f"{api.metrics}/health") as reply:  # type: ignore[attr-defined]
        health = await reply.json()
    assert (reply.status, health["status"], health["stuck"]) == (200, "ok", [])
    assert health["tasks"]["catalog-poll"]["required"]
    await api("GET", "/admin/audit", key=key)
    (await api("GET", "/metrics")).problem(404, "NOT_FOUND")
    async with api.client.get(f"{api.metrics}/metrics") as reply:  # type: ignore[attr-defined]
        page = await reply.text()
    assert 'handbill_api_replies_total{method="GET",route="/admin/audit",status="200"}' in page
    assert "handbill_api_tenant_requests_total" in page

    async def evaluated() -> bool:
        async with api.client.get(f"{api.metrics}/metrics") as reply:  # type: ignore[attr-defined]
            found = await reply.text()
        return 'handbill_not_ready{part="clickhouse"} 1.0' in found and 'handbill_not_ready{part="disk"} 0.0' in found

    await eventually(evaluated, what="the parts of /ready are metrics without a request for /ready")


async def test_the_openapi_page_is_valid(api: Api) -> None:
    import schemathesis

    page = await api("GET", "/schema/openapi.json")
    document = page.json()
    assert (await api("GET", "/schema")).json() == document
    schemathesis.openapi.from_dict(document).validate()


async def test_a_stop_is_bounded_even_with_a_half_sent_body(api: Api) -> None:
    host, port = "127.0.0.1", int(api.base.rpartition(":")[2])
    _, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    await writer.drain()
    assert (await api("GET", "/health")).status == 200
    api.process.signal(signal.SIGTERM)
    assert await api.process.exit() == 0
    assert api.process.seen(event="api-stopped")
    writer.close()


async def test_a_taken_port_is_told_in_one_line(handbill_env: dict[str, str]) -> None:
    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", int(handbill_env["HANDBILL_API__PORT"]))
    async with server, process("api", env=handbill_env) as running:
        assert await running.exit() != 0
        assert "cannot be opened" in running.output
        assert "Traceback" not in running.output


def test_replies_decode_as_problems() -> None:
    from handbill.api.problems import Problem, problem
    from handbill.kit.errors import Fault, Invalid

    made = problem(Invalid("no", faults=[Fault("a", "b")]), "id")
    assert msgspec.json.decode(msgspec.json.encode(made), type=Problem) == made
