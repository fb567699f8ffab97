"""People over real HTTP: an SDK identifies, the worker folds, an operator looks, undoes and merges."""

from __future__ import annotations

from typing import Any

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.captured import SEAL, capturing, new_sender
from tests.kit.processes import free_port, process
from tests.kit.waiting import eventually


async def test_a_login_is_seen_undone_and_made_again(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_WORKER__PORT": str(free_port())}
    sender = await new_sender(database, redis, tenant)
    async with capturing(handbill_env) as api, process("worker", env=env) as worker:
        await worker.log(event="worker-ready")
        login: dict[str, Any] = {
            "event": "$identify",
            "distinct_id": "zoe",
            "properties": {"$anon_distinct_id": "phone", "$set": {"plan": "pro"}},
        }
        sent = {
            "api_key": sender.write_key,
            "batch": [{"event": "see", "distinct_id": "phone", "properties": {}}, login],
        }
        assert (await api("POST", "/batch/", json=sent)).status == 200

        async def page(who: str) -> Any:
            reply = await api("GET", f"/admin/people/find?distinct_id={who}", key=sender.secret_key)
            return reply.json() if reply.status == 200 else None

        async def joined() -> bool:
            found = await page("phone")
            return found is not None and found["person"]["ids"] == 2

        async def waited() -> Any:
            reply = await api("GET", "/admin/people/find?distinct_id=phone&wait=5", key=sender.secret_key)
            answer = reply.json()  # 404 only with less than everything that was sent before
            return answer if reply.status == 200 and answer["complete"] else None

        found = await eventually(waited, what="everything is there within five seconds, or a few times five")
        assert (found["person"]["ids"], found["person"]["named_by"], found["lag"]) == (2, "zoe", None)
        assert await joined()
        for wrong in ("-1", "5.1", "nan", "x"):
            refused = await api("GET", f"/admin/people/find?distinct_id=phone&wait={wrong}", key=sender.secret_key)
            assert [fault["field"] for fault in refused.problem(400, "INVALID")["faults"]] == ["wait"]
        found = await page("phone")
        assert (found["complete"], found["lag"]) == (None, None)
        assert found["person"]["named_by"] == "zoe"
        assert found["person"]["properties"] == {"plan": "pro"}
        edge = found["edges"][0]
        assert (edge["source"], edge["target"], edge["outcome"]) == ("phone", "zoe", "joined")
        undone = await api("POST", f"/admin/people/edges/{edge['edge_id']}/void", key=sender.secret_key)
        assert (undone.status, undone.json()["outcome"]) == (200, "voided")
        assert (await page("phone"))["person"]["named_by"] == "phone"
        merge = {"source": "phone", "target": "zoe"}
        made = await api("POST", "/admin/people/merge", json=merge, key=sender.secret_key)
        assert (made.status, made.json()["person"]["ids"]) == (200, 2)
        names = (await api("GET", "/admin/definitions/names", key=sender.secret_key)).json()
        assert {"$identify", "see"} <= set(names["events"])
        (await api("GET", "/admin/people/find?distinct_id=nobody", key=sender.secret_key)).problem(
            404, "PERSON_NOT_FOUND"
        )
        (await api("POST", "/admin/people/edges/00/void", key=sender.secret_key)).problem(404, "EDGE_NOT_FOUND")
        (
            await api("POST", "/admin/people/merge", json={"source": "null", "target": "zoe"}, key=sender.secret_key)
        ).problem(400, "ILLEGAL_MERGE")
