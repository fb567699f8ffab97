"""One worker in a process of its own, for the bench `jobs`.

`python -m benches._jobs_rival ours|official URL QUEUE N LANES` prints jobs a second, from start to the
end of the last job.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvloop

from handbill.infra.redis import Redis
from handbill.jobs.model import Job
from handbill.jobs.queue import Queues
from handbill.jobs.worker import JobContext, JobWorker
from handbill.kit.telemetry import logs


async def ours(url: str, name: str, count: int, lanes: int) -> float:
    """As shipped: events, lock renewal, sweep, metrics and retention on."""
    logs.configure("error")
    redis = Redis(url, timeout=30)
    await redis.start()
    ran, last = 0, asyncio.Event()

    async def handler(job: Job, _: JobContext) -> int:
        nonlocal ran
        ran += 1
        if ran == count:
            last.set()
        return 1

    queue = Queues(redis).queue(name)
    worker = JobWorker(queue.queues, name, {"n": handler}, concurrency=lanes)
    began = time.perf_counter()
    await worker.start()
    await last.wait()
    while (await queue.counts()).active:
        await asyncio.sleep(0.001)
    took = time.perf_counter() - began
    await worker.stop()
    await redis.stop()
    return count / took


async def official(url: str, name: str, count: int, lanes: int) -> float:
    from bullmq import Worker

    ran, last = 0, asyncio.Event()

    async def handler(job: Any, token: str) -> int:
        nonlocal ran
        ran += 1
        if ran == count:
            last.set()
        return 1

    began = time.perf_counter()
    worker = Worker(name, handler, {"connection": url, "concurrency": lanes})
    await last.wait()
    took = time.perf_counter() - began
    await worker.close()
    return count / took


if __name__ == "__main__":
    which = {"ours": ours, "official": official}[sys.argv[1]]
    print(uvloop.run(which(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))), flush=True)
