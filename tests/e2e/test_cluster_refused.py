"""A Redis in cluster mode is refused: by every process that starts, by doctor, and when it takes another's place."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from handbill.infra.redis import Redis, RedisAway, RedisCluster
from tests.kit.cluster import one_node_cluster, redis_node
from tests.kit.processes import free_cluster_port, free_port, handbill, process
from tests.kit.waiting import eventually


async def test_no_process_starts_on_a_cluster_and_doctor_fails(handbill_env: dict[str, str]) -> None:
    async with one_node_cluster() as url:
        env = {
            **handbill_env,
            "HANDBILL_REDIS__URL": url,
            "HANDBILL_CLICKHOUSE__URL": f"http://127.0.0.1:{free_port()}",
        }
        for command in ("up", "api", "worker"):
            code, output = await handbill(command, env=env)
            assert code == 1, output
            assert "cluster mode" in output
            assert "single primary" in output
            assert "Traceback" not in output
        code, output = await handbill("doctor", "--json", env=env)
        assert code == 1, output
        (finding,) = [one for one in json.loads(output) if one["subject"] == "redis"]
        assert finding["status"] == "fail"
        assert "cluster mode" in finding["detail"]


@pytest.fixture
def port() -> int:
    return free_cluster_port()


async def test_a_cluster_that_takes_the_place_of_redis_makes_a_process_unready(
    handbill_env: dict[str, str], port: int
) -> None:
    env = {**handbill_env, "HANDBILL_REDIS__URL": f"redis://127.0.0.1:{port}/0"}
    base = f"http://127.0.0.1:{env['HANDBILL_API__PORT']}"
    async with aiohttp.ClientSession() as http:

        async def redis_part() -> dict[str, Any]:
            async with http.get(f"{base}/ready") as reply:
                found: dict[str, Any] = (await reply.json())["parts"]["redis"]
                return {**found, "status": reply.status}

        async def is_part(**wanted: object) -> bool:
            found = await redis_part()
            return all(found[name] == value for name, value in wanted.items())

        async with AsyncExitStack() as running:
            async with redis_node(port, clustered=False):
                api = await running.enter_async_context(process("api", env=env))
                await api.log(event="api-ready")
                assert await is_part(ok=True, status=200)
            async with redis_node(port, clustered=True):
                await eventually(lambda: is_part(ok=False, detail={"code": "REDIS_CLUSTER"}, status=503))
            async with redis_node(port, clustered=False):
                await eventually(lambda: is_part(ok=True, status=200))


async def test_a_client_that_was_connected_calls_a_cluster_away(port: int) -> None:
    redis = Redis(f"redis://127.0.0.1:{port}/0", timeout=30)
    try:
        async with redis_node(port, clustered=False):
            await redis.start()
            await redis.call("SET", "a", 1)
        async with redis_node(port, clustered=True):

            async def is_refused() -> bool:
                try:
                    await redis.health()
                except RedisCluster:
                    return True
                except RedisAway:
                    return False
                return False

            await eventually(is_refused)
            with pytest.raises(RedisAway):  # as in any outage: decisions fall back, events are answered 503
                await redis.call("SET", "a", 1)
    finally:
        await redis.stop()
