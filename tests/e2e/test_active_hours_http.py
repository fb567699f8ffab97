"""Smart scheduling over real HTTP: switched on, learnt from events, decided, explained, exported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.captured import SEAL, capturing, new_sender
from tests.kit.processes import free_port, process
from tests.kit.waiting import eventually

BANNER: dict[str, Any] = {"x_times": 9, "y_hours": 1, "z_duration_sec": 1, "targeting": {"active_hours": True}}


async def test_a_banner_waits_for_its_users_hours_and_says_so(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_WORKER__PORT": str(free_port())}
    sender = await new_sender(database, redis, tenant)
    async with capturing(handbill_env) as api, process("worker", env=env) as worker:
        await worker.log(event="worker-ready")

        async def admin(method: str, path: str, **options: Any) -> Any:
            return await api(method, f"/admin/{path}", key=sender.secret_key, **options)

        deciding = (await admin("GET", "deciding")).json()
        assert deciding["smart_scheduling"] is False
        wrong = {**BANNER, "targeting": {"not": {"active_hours": True}}}
        refused = (await admin("POST", "banners", json=wrong)).problem(400, "INVALID")
        assert refused["faults"][0]["field"] == "targeting.not.active_hours"
        on = {"smart_scheduling": True, "ranking": ["active_hour", "priority"]}
        switched = await admin("PATCH", "deciding", json=on)
        assert (switched.json()["smart_scheduling"], switched.json()["ranking"]) == (True, ["active_hour", "priority"])
        again = await admin("PATCH", "deciding", json={"ranking": []})
        assert again.json()["smart_scheduling"] is True, "what is left out stays"
        banner = (await admin("POST", "banners", json=BANNER)).json()["banner_id"]

        # Twelve hours from now, whenever this runs: the hour of the test is as quiet as can be.
        busy = datetime.now(UTC) + timedelta(hours=12)
        batch: list[dict[str, Any]] = [
            {
                "event": "seen", "distinct_id": "zoe", "timestamp": (busy - timedelta(days=day)).isoformat(),
                "properties": {"$timezone": "Asia/Kathmandu"},
            }
            for day in range(1, 31)
        ]  # fmt: skip

        async def sees(who: str) -> bool:
            reply = await api("POST", "/v1/decide", json={"user_id": who}, headers={"X-Write-Key": sender.write_key})
            return bool(reply.json()["decisions"][0]["banners"])

        async def closed() -> bool:
            return not await sees("zoe")

        # A change of the person has the profile written at once; events alone wait for minutes.
        batch[-1]["properties"]["$set"] = {"plan": "pro"}
        sent = await api("POST", "/batch/", json={"api_key": sender.write_key, "batch": batch})
        assert sent.status == 200
        await eventually(closed, what="the banner waits for its user's hours")
        assert await sees("somebody else")

        reply = await api("POST", "/v1/decide?explain=1", key=sender.secret_key, json={"user_id": "zoe"})
        verdict = next(each for each in reply.json()["explain"] if each["banner_id"] == banner)
        assert verdict["reason"] == "TARGETING"
        assert verdict["rule"].startswith("the user is usually active at ")
        assert "(Asia/Kathmandu); it is " in verdict["rule"]
        later = datetime.fromisoformat(verdict["next_eligible_at"])
        assert timedelta(0) < later - datetime.now(UTC) <= timedelta(hours=24)
