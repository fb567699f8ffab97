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
    home = Path(tempfile.mkdtemp(prefix="hbc-"))
    process, url = await _started(home)
    try:
        async with opened(url, timeout=30) as redis:
            await redis.call("CLUSTER", "ADDSLOTS", *range(16_384))
            await eventually(lambda: _whole(redis))
        yield url
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        shutil.rmtree(home, ignore_errors=True)


async def _started(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    program, _ = embedded._program(None)
    for attempt in range(50):
        port = free_port()
        if port + _BUS > 65_535:
            continue
        options = f"--port {port} --bind 127.0.0.1 --cluster-enabled yes --save --appendonly no".split()
        options[options.index("--save") + 1 : options.index("--save") + 1] = [""]
        here = home / str(attempt)
        here.mkdir()
        process = subprocess.Popen(
            [program, *options, "--dir", here], stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
        )
        url = f"redis://127.0.0.1:{port}/0"
        if await eventually(lambda p=process, u=url: _answers(p, u)) == "yes":  # type: ignore[misc]
            return process, url
    raise AssertionError("no two free ports for a cluster node in fifty tries")


async def _answers(process: subprocess.Popen[bytes], url: str) -> str:
    if process.poll() is not None:
        return "ended"  # one of its ports was taken after all
    async with opened(url, timeout=30) as redis:
        try:
            text: bytes = await redis.call("INFO", "server")
        except RedisAway:
            return ""
        return "yes" if b"process_id:%d\r" % process.pid in text else ""


async def _whole(redis: Redis) -> bool:
    return b"cluster_state:ok" in await redis.call("CLUSTER", "INFO")
