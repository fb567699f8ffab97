"""Run every case with every library and print what came of it. Exit code 1 when one failed; none is skipped."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from handbill.infra.embedded.redis import start_redis
from handbill.infra.redis import Redis
from handbill.jobs.queue import Queues
from handbill.kit.telemetry import logs
from tests.interop import defaults, order, producers, sdks
from tests.interop.cases import CASES
from tests.interop.node import Node, installed

LIBRARIES = ("bullmq5", "bullmq6")


async def run(library: str, home: Path, url: str, only: str) -> tuple[int, int]:
    passed = failed = 0
    redis = Redis(url, timeout=30)
    await redis.start()
    async with Node.running(home, library, url) as node:
        print(f"--- {library} {node.version}")
        for one in CASES:
            if only not in one.__name__:
                continue
            began = time.perf_counter()
            try:
                await asyncio.wait_for(one(node, Queues(redis).queue(f"{library}-{one.__name__}")), 120)
                passed += 1
                word = "ok    "
            except Exception:
                failed += 1
                word = "FAILED"
                traceback.print_exc()
            print(f"{word} {one.__name__.replace('_', ' ')} ({time.perf_counter() - began:.1f} s)", flush=True)
    await redis.stop()
    return passed, failed


async def main() -> int:
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("Node and npm are needed to prove that Node's programs work with us; no case was run.")
        return 1
    logs.configure("error")
    home = installed()
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    place = Path(tempfile.mkdtemp(prefix="hb-interop-"))
    os.chmod(place, 0o755)
    engine = await start_redis(place / "redis", port=None, durable=False)
    passed = failed = 0
    try:
        for library in LIBRARIES:
            good, bad = await run(library, home, engine.url, only)
            passed, failed = passed + good, failed + bad
    finally:
        await engine.stop()
        shutil.rmtree(place, ignore_errors=True)
    for suite in (sdks, defaults, order, producers):
        good, bad = await suite.run(home, only)
        passed, failed = passed + good, failed + bad
    print(f"interop: {passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
