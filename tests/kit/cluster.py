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
from tests.kit.processes import free_port
from tests.kit.waiting import eventually

_BUS = 10_000  # the cluster's own port lies so far above the clients'


@asynccontextmanager
async def one_node_cluster() -> AsyncIterator[str]:
    """The URL of a cluster that owns all slots; gone at the end."""
    for _ in range(50):
        port = free_port()
        if port + _BUS > 65_535:
            continue
        async with redis_node(port, clustered=True) as url:
            if url is None:
                continue
            async with opened(url, timeout=30, cluster_allowed=True) as redis:
                await redis.call("CLUSTER", "ADDSLOTS", *range(16_384))
                await eventually(lambda: _whole(redis))
            yield url
            return
    raise AssertionError("no two free ports for a cluster node in fifty tries")


@asynccontextmanager
async def redis_node(port: int, *, clustered: bool) -> AsyncIterator[str | None]:
    """The URL of a Redis on this port, with cluster mode on or off; None when a port it needs is taken."""
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
    process = subprocess.Popen(
        [program, *options, "--dir", home], stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    url = f"redis://127.0.0.1:{port}/0"
    try:
        answer = await eventually(lambda: _answers(process, url))
        yield url if answer == "yes" else None
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        shutil.rmtree(home, ignore_errors=True)


async def _answers(process: subprocess.Popen[bytes], url: str) -> str:
    if process.poll() is not None:
        return "ended"  # one of its ports was taken after all
    async with opened(url, timeout=30, cluster_allowed=True) as redis:
        try:
            text: bytes = await redis.call("INFO", "server")
        except RedisAway:
            return ""
        return "yes" if b"process_id:%d\r" % process.pid in text else ""


async def _whole(redis: Redis) -> bool:
    return b"cluster_state:ok" in await redis.call("CLUSTER", "INFO")
