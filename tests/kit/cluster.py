"""A Redis Cluster of one node: enough to refuse commands whose keys do not share a slot."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from handbill.infra.embedded import redis as embedded
from handbill.infra.redis import Redis, RedisAway
from handbill.infra.redis.client import opened
from tests.kit.leash import die_with_parent
from tests.kit.processes import free_cluster_port
from tests.kit.waiting import eventually


@asynccontextmanager
async def one_node_cluster() -> AsyncIterator[str]:
    """The URL of a cluster that owns all slots; gone at the end."""
    async with redis_node(free_cluster_port(), clustered=True) as url:
        async with opened(url, timeout=30, cluster_allowed=True) as redis:
            await redis.call("CLUSTER", "ADDSLOTS", *range(16_384))
            await eventually(lambda: _whole(redis))
        yield url


@asynccontextmanager
async def redis_node(port: int, *, clustered: bool) -> AsyncIterator[str]:
    """The URL of a Redis on this port, with cluster mode on or off."""
    home = Path(tempfile.mkdtemp(prefix="hbc-"))
    program, _ = embedded._program(None)
    mode = "yes" if clustered else "no"
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--cluster-enabled",
        mode,
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    process = subprocess.Popen([program, *options, "--dir", home], preexec_fn=die_with_parent)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        await eventually(lambda: _answers(process, url))
        yield url
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        shutil.rmtree(home, ignore_errors=True)


async def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None, "Redis ended; its output is above"
    async with opened(url, timeout=30, cluster_allowed=True) as redis:
        try:
            text: bytes = await redis.call("INFO", "server")
        except RedisAway:
            return False
        return b"process_id:%d\r" % process.pid in text


async def _whole(redis: Redis) -> bool:
    return b"cluster_state:ok" in await redis.call("CLUSTER", "INFO")
