"""Gaining rights and keeping others out, tried over HTTP as an attacker would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import BROWSER_COOKIE, NewKey
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import process

PASSWORD = "correct horse battery"
EVIL = "evil evil 123456"


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[Api]:
    env = {**handbill_env, "HANDBILL_API__TRUSTED_PROXIES": "127.0.0.0/8"}
    async with process("api", env=env) as running, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


@pytest.fixture
async def full_key(database: Database, redis: Redis, tenant: int) -> AsyncIterator[str]:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    yield (await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")).key
    await tenants.stop()


async def created(api: Api, key: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await api("POST", path, key=key, json=body)
    assert reply.status == 201, reply.body
    found: dict[str, Any] = reply.json()
    return found


async def test_no_key_gains_rights_or_time(api: Api, full_key: str, unique: Callable[[str], str]) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    short = {"kind": "secret", "name": "short", "scopes": ["banners:read", "keys:write"], "expires_at": soon}
    made = await created(api, full_key, "/admin/keys", short)
    rotated = await created(api, made["key"], f"/admin/keys/{made['info']['key_id']}/rotate", {"overlap_s": 60})
    assert rotated["info"]["expires_at"] == made["info"]["expires_at"]
    lasting = {"kind": "secret", "name": "for ever", "scopes": ["banners:read"]}
    refused = (await api("POST", "/admin/keys", key=rotated["key"], json=lasting)).problem(403, "EXPIRES_TOO_LATE")
    assert refused["faults"][0]["field"] == "expires_at"
    strong = (await created(api, full_key, "/admin/keys", {**lasting, "scopes": ["*"]}))["info"]["key_id"]
    (await api("DELETE", f"/admin/keys/{strong}", key=rotated["key"])).problem(403, "SCOPE_MISSING")

    owner = {"email": f"{unique('owner')}@example.com", "password": PASSWORD, "role": "owner"}
    owner_id = (await created(api, full_key, "/admin/users", owner))["user_id"]
    users = (await created(api, full_key, "/admin/keys", {**lasting, "scopes": ["users:write"]}))["key"]
    evil = {"email": f"{unique('evil')}@example.com", "password": EVIL, "role": "owner"}
    (await api("POST", "/admin/users", key=users, json=evil)).problem(403, "SCOPE_MISSING")
    for change in ({"password": EVIL}, {"role": "viewer"}):
        (await api("PATCH", f"/admin/users/{owner_id}", key=users, json=change)).problem(403, "SCOPE_MISSING")
    (await api("DELETE", f"/admin/users/{owner_id}", key=users)).problem(403, "SCOPE_MISSING")
    (await api("POST", "/auth/login", json={"email": evil["email"], "password": EVIL})).problem(401, "BAD_LOGIN")
    assert (await api("POST", "/auth/login", json={"email": owner["email"], "password": PASSWORD})).status == 200


async def test_nobody_locks_an_owner_out(api: Api, full_key: str, unique: Callable[[str], str]) -> None:
    owner = {"email": f"{unique('owner')}@example.com", "password": PASSWORD, "role": "owner"}
    await created(api, full_key, "/admin/users", owner)

    async def login(client: str, password: str, email: str = owner["email"], cookie: str = "") -> Any:
        headers = {"X-Forwarded-For": client, **({"Cookie": f"{BROWSER_COOKIE}={cookie}"} if cookie else {})}
        body = {"email": email, "password": password, "cookie": True}
        return await api("POST", "/auth/login", json=body, headers=headers)

    attacker, home = "203.0.113.7", "198.51.100.4"
    first = await login(home, PASSWORD)
    cookies = [line for line in first.headers.getall("set-cookie") if line.startswith(BROWSER_COOKIE)]
    assert "HttpOnly" in cookies[0]
    assert "Path=/auth" in cookies[0]
    assert "SameSite=strict" in cookies[0]
    browser = cookies[0].partition("=")[2].partition(";")[0]
    for client in (attacker, home):
        for wrong in await asyncio.gather(*(login(client, "wrong") for _ in range(10))):
            wrong.problem(401, "BAD_LOGIN")
        limited = await login(client, PASSWORD)
        limited.problem(429, "LOGIN_THROTTLED")
        assert 0 < int(limited.headers["retry-after"]) <= 900
    assert (await login("198.51.100.5", PASSWORD)).status == 200
    assert (await login(home, PASSWORD, cookie=browser)).status == 200, "though a neighbour used all of the tries"
