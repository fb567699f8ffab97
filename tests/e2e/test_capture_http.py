"""Events over real HTTP in every dialect: answers that its clients understand, faults that cost nobody else a thing."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from handbill.events.dialects.router import ROUTES
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.captured import capturing, new_sender
from tests.kit.http import Api

BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"
V1 = {
    "PostHog-Sdk-Info": "test/1", "PostHog-Attempt": "1", "PostHog-Request-Id": "r",
    "PostHog-Request-Timestamp": "2026-11-16T12:00:00Z",
}  # fmt: skip


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[Api]:
    async with capturing(handbill_env, HANDBILL_API__TRUSTED_PROXIES="127.0.0.0/8") as running:
        yield running


def event(**more: Any) -> dict[str, Any]:
    return {"event": "seen", "distinct_id": "ada", **more}


async def test_each_dialect_is_answered_in_its_own_words_once_the_event_is_durable(
    api: Api, database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant, truncate_ip=True)
    key, expected = sender.write_key, []

    async def sent(status: int, body: Any, path: str, method: str = "POST", **how: Any) -> None:
        reply = await api(method, path, **how)
        assert (reply.status, reply.json() if reply.body else None) == (status, body), path
        expected.append(path)
        assert len(await sender.events()) == len(expected), path

    own = {"events": [event()]}
    at = {"X-Forwarded-For": "203.0.113.77", "User-Agent": BROWSER}
    await sent(202, {"accepted": 1, "dropped": []}, "/v1/events", json=own, headers={"X-Api-Key": key, **at})
    await sent(202, {"accepted": 1, "dropped": []}, "/v1/events", json=own, headers={"X-Write-Key": key})
    await sent(202, {"accepted": 1, "dropped": []}, "/v1/events", json={**own, "api_key": key})
    await sent(202, {"accepted": 1, "dropped": []}, f"/v1/events?write_key={key}", data=json.dumps(own))
    await sent(200, {"status": 1}, "/batch/", json={"api_key": key, "batch": [event()]})
    await sent(200, {"status": 1}, "/capture", json=[event(properties={"token": key})])
    packed = gzip.compress(json.dumps({"api_key": key, **event()}).encode())
    await sent(200, {"status": 1}, "/i/v0/e/?compression=gzip-js", data=packed)
    form = {"data": base64.b64encode(json.dumps({"token": key, **event()}).encode()).decode()}
    await sent(204, None, "/e/?beacon=1", data=form)
    in_query = base64.urlsafe_b64encode(json.dumps({"token": key, **event()}).encode()).decode()
    await sent(200, {"status": 1}, f"/track/?data={in_query}", method="GET")
    newer = {"created_at": "2026-11-16T12:00:00Z", "batch": [
        event(uuid=str(uuid.uuid4()), timestamp="2026-11-16T12:00:00Z", properties={}),
    ]}  # fmt: skip
    await sent(200, {"results": {}}, "/i/v1/analytics/events", json=newer, headers=V1, key=key)
    message = {"type": "track", "event": "seen", "userId": "ada"}
    await sent(200, {"success": True}, "/v1/batch", json={"writeKey": key, "batch": [message]})
    basic = {"Authorization": "Basic " + base64.b64encode(f"{key}:".encode()).decode()}
    await sent(200, {"success": True}, "/v1/t", json={"event": "seen", "anonymousId": "ada"}, headers=basic)

    found = await sender.events()
    assert {one.name for one in found} == {"seen"}
    assert {one.distinct_id for one in found} == {"ada"}
    assert {one.ip for one in found} == {"203.0.113.0", None}, "programs are not the person"
    assert len({one.id for one in found}) == len(found)
    assert len({lane for lane, _ in await sender.journal()}) == 1, "one sender, one lane"
    assert await sender.drops() == {}


BROWSER_HEADERS = {
    "authorization", "content-type", "x-api-key",
    "x-retry-count",  # analytics-next
    "anonymousid", "sentat", "rsa-recovered", "rsa-retry-attempt", "rsa-retry-reason", "rsa-since-first-attempt",
    "rsa-since-last-attempt",  # RudderStack
}  # fmt: skip


async def test_browsers_of_other_sites_may_send_to_every_address(api: Api) -> None:
    for method, path in ROUTES:
        asked = {
            "Origin": "https://shop.example",
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": "content-type,authorization",
        }
        reply = await api("OPTIONS", path, headers=asked)
        assert reply.status == 204, path
        assert reply.headers["access-control-allow-origin"] == "*"
        assert method in reply.headers["access-control-allow-methods"]
        assert set(reply.headers["access-control-allow-headers"].split(", ")) >= BROWSER_HEADERS


async def test_faults_are_told_in_each_dialects_words_and_keep_nothing(
    api: Api, database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant)
    key = sender.write_key
    unknown = "hbw_" + "x" * (len(key) - 4)

    (await api("POST", "/v1/events", json={"events": [event()]})).problem(401, "UNAUTHORIZED")
    (await api("POST", "/v1/events", json={"events": [event()], "api_key": unknown})).problem(401, "UNAUTHORIZED")
    (await api("POST", "/v1/events", data=b"{", headers={"X-Api-Key": key})).problem(400, "BAD_JSON")
    (await api("POST", "/v1/events", json={"events": []}, headers={"X-Api-Key": key})).problem(400, "BATCH_SIZE")
    secret = (
        await api("POST", "/v1/events", json={"events": [event()]}, headers={"X-Api-Key": sender.secret_key})
    ).problem(401, "UNAUTHORIZED")
    assert "secret key" in secret["detail"]
    assert sender.secret_key not in json.dumps(secret)

    reply = await api("POST", "/batch/", json={"api_key": unknown, "batch": [event()]})
    assert (reply.status, reply.json()["type"], reply.json()["code"]) == (401, "authentication_error", "unauthorized")
    two = [event(api_key=key), event(api_key=unknown)]
    reply = await api("POST", "/batch/", json=two)
    assert (reply.status, reply.json()["type"], reply.json()["code"]) == (400, "validation_error", "two_keys")
    reply = await api("POST", "/i/v1/analytics/events", json={"batch": [event()]}, key=key)
    assert (reply.status, reply.json()["error"]) == (400, "missing_required_headers")
    reply = await api("POST", "/v1/batch", json={"writeKey": unknown, "batch": [{"type": "track"}]})
    assert (reply.status, reply.json()["success"], reply.json()["code"]) == (401, False, "unauthorized")
    for garbage in (b"", b"\x00\xff" * 50, b"[" * 100_000, b"\x1f\x8bgarbage", b'{"batch": "x"}', b"data=%%%"):
        for path in ("/batch/", "/v1/batch", "/v1/events", "/i/v1/analytics/events"):
            reply = await api("POST", path, data=garbage, headers={"X-Api-Key": key, **V1})
            assert 400 <= reply.status < 500, (path, garbage[:20], reply.body)
    bomb = gzip.compress(b" " * 200_000_000)
    for path in ("/batch/", "/v1/batch", "/v1/events"):
        assert (await api("POST", path, data=bomb, headers={"X-Api-Key": key})).status == 413, path
    (await api("PUT", "/v1/events")).problem(405, "METHOD_NOT_ALLOWED")
    assert await sender.journal() == []
    assert not api.process.seen(event="request-failed"), api.process.tail()


async def test_what_was_acknowledged_before_a_kill_is_in_the_journal(
    api: Api, database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant)
    acknowledged: set[str] = set()
    headers = {"X-Api-Key": sender.write_key}

    async def client(name: int) -> None:
        for number in itertools.count():
            ids = [f"{name}-{number}-{place}" for place in range(20)]
            body = {"events": [event(distinct_id=f"user-{one}", event_id=one) for one in ids]}
            try:
                reply = await api("POST", "/v1/events", json=body, headers=headers)
            except aiohttp.ClientError:
                return
            assert reply.status == 202, reply.body
            acknowledged.update(ids)
            if len(acknowledged) >= 1_000:
                api.process.kill()

    await asyncio.gather(*(client(name) for name in range(8)))
    kept = {one.id for one in await sender.events()}
    assert len(acknowledged) >= 1_000
    assert acknowledged <= kept


async def test_posthogs_clients_get_an_empty_configuration_from_every_site_and_for_every_key(api: Api) -> None:
    shop = {"Origin": "https://shop.example"}
    for method, path in (
        ("POST", "/flags/?v=2"), ("POST", "/decide/?v=3"), ("GET", "/flags/definitions?token=x&send_cohorts"),
        ("GET", "/api/feature_flag/local_evaluation?token=x"), ("GET", "/api/surveys/?token=x"),
        ("GET", "/api/early_access_features/?token=x"), ("GET", "/array/hbw_any/config"),
        ("GET", "/array/hbw_any/config.js"), ("GET", "/static/1.434.18/surveys.js"), ("GET", "/static/recorder.js?v=1"),
    ):  # fmt: skip
        body: dict[str, Any] = {"data": b"data=e30="} if method == "POST" else {}
        reply = await api(method, path, headers=shop, **body)
        assert (reply.status, reply.headers.get("Access-Control-Allow-Origin")) == (200, "*"), path
        assert ("max-age=300" in reply.headers.get("Cache-Control", "")) == (method == "GET"), path
    preflight = {**shop, "Access-Control-Request-Method": "POST"}
    assert (await api("OPTIONS", "/flags/?v=2", headers=preflight)).status == 204
    for path in ("/static/array.js", "/array/a%22b/config.js", "/array/a%22b/config"):
        assert (await api("GET", path)).status == 404, path
