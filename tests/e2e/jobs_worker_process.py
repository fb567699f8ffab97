"""A worker as a process of its own, for the tests that kill it.

    python -m tests.e2e.jobs_worker_process URL QUEUE CONCURRENCY LOCK_MS STALLED_MS

It keeps its own books in Redis, apart from the queue: the hash `QUEUE:ran` counts executions per job.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import uvloop

from handbill.infra.redis import Redis
from handbill.jobs.model import Job
from handbill.jobs.queue import Queues
from handbill.jobs.worker import JobContext, JobWorker


async def main(url: str, name: str, concurrency: int, lock_ms: int, stalled_ms: int) -> None:
    redis = Redis(url, timeout=30)
    await redis.start()

    async def count(job: Job, _: JobContext) -> str:
        await redis.call("HINCRBY", f"{name}:ran", job.id, 1)
        await asyncio.sleep(job.data / 1000)  # sleeps: the work of the handler under test
        return "done"

    async def block(job: Job, _: JobContext) -> str:
        """What no handler should do: it stops the whole loop."""
        await redis.call("HINCRBY", f"{name}:ran", job.id, 1)
        print("blocking", flush=True)
        time.sleep(job.data / 1000)  # sleeps: what no handler should do is the point of the test
        return "done"

    worker = JobWorker(
        Queues(redis),
        name,
        {"count": count, "block": block},
        concurrency=concurrency,
        lock_ms=lock_ms,
        stalled_ms=stalled_ms,
    )
    await worker.start()
    print("ready", flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    await worker.stop()
    await redis.stop()
    print("stopped", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6])))
