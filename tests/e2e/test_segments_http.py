"""Segments over real HTTP: an operator draws a circle, an event brings somebody in, and the next decision knows."""

from __future__ import annotations

from typing import Any

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.captured import SEAL, capturing, new_sender
from tests.kit.processes import free_port, process
from tests.kit.waiting import eventually

UNKNOWN = "0190163d-8694-739b-aea5-966c26f8ad91"
BANNER: dict[str, Any] = {"x_times": 9, "y_hours": 1, "z_duration_sec": 1}


async def test_an_event_brings_its_sender_into_a_segment_and_a_banner_to_its_sender(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_WORKER__PORT": str(free_port())}
    sender = await new_sender(database, redis, tenant)
    async with capturing(handbill_env) as api, process("worker", env=env) as worker:
        await worker.log(event="worker-ready")

        async def admin(method: str, path: str, **options: Any) -> Any:
            return await api(method, f"/admin/{path}", key=sender.secret_key, **options)

        rule = {"person.plan": "pro", "person.seats": {"op": "gte", "value": 5}}
        made = await admin("POST", "segments", json={"name": "Large teams", "rule": rule})
        assert (made.status, made.json()["size"], made.headers["etag"]) == (201, 0, '"v1"')
        segment = made.json()["segment_id"]
        banner = await admin("POST", "banners", json={**BANNER, "targeting": {"segment": segment}})
        assert banner.status == 201

        async def sees() -> bool:
            body = {"user_id": "zoe"}
            reply = await api("POST", "/v1/decide", json=body, headers={"X-Write-Key": sender.write_key})
            return bool(reply.json()["decisions"][0]["banners"])

        assert not await sees()
        told = {"event": "paid", "distinct_id": "zoe", "properties": {"$set": {"plan": "pro", "seats": 7}}}
        sent = await api("POST", "/batch/", json={"api_key": sender.write_key, "batch": [told]})
        assert sent.status == 200
        await eventually(sees, what="the event's sender sees the banner")

        # A decision may see the member before the evaluation of the whole segment has ended.
        async def evaluated() -> bool:
            found = (await admin("GET", f"segments/{segment}")).json()
            return (found["size"], found["state"]) == (1, "ready")

        await eventually(evaluated, what="the segment is evaluated")
        members = (await admin("GET", f"segments/{segment}/members")).json()
        assert [each["named_by"] for each in members["items"]] == ["zoe"]
        why = (await admin("GET", f"segments/{segment}/explain?distinct_id=zoe")).json()
        assert (why["belongs"], why["rule"]) == (True, None)
        preview = (await admin("POST", "segments/preview", json={"rule": {"not": rule}})).json()
        assert (preview["size"], preview["exact"]) == (0, True)

        (await admin("DELETE", f"segments/{segment}")).problem(409, "SEGMENT_IN_USE")
        (await admin("GET", f"segments/{UNKNOWN}")).problem(404, "SEGMENT_NOT_FOUND")
        (await admin("POST", "segments", json={"name": "Large teams", "rule": {}})).problem(409, "SEGMENT_NAME_TAKEN")
        (await admin("POST", "segments", json={"name": "x", "rule": {"plan": "pro"}})).problem(400, "INVALID")
        wrong = {**BANNER, "targeting": {"segment": UNKNOWN}}
        (await admin("POST", "banners", json=wrong)).problem(400, "SEGMENT_UNKNOWN")
        stale = {"If-Match": '"v9"'}
        changed = await admin("PATCH", f"segments/{segment}", json={"name": "Teams"}, headers=stale)
        changed.problem(412, "PRECONDITION_FAILED")
        audit = (await admin("GET", "audit")).json()["items"]
        assert "segment.create" in {each["action"] for each in audit}
