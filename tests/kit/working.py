"""A worker on a queue of the test's own, and waiting for a job's state."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from handbill.jobs.model import Backoff, Job
from handbill.jobs.queue import Queue
from handbill.jobs.worker import JobWorker
from tests.kit.waiting import eventually

AT_ONCE = Backoff("fixed", delay_ms=0)


@contextlib.asynccontextmanager
async def working(queue: Queue, handlers: Mapping[str, Any] | Any, **how: Any) -> AsyncIterator[JobWorker]:
    how.setdefault("concurrency", 4)
    named = handlers if isinstance(handlers, Mapping) else {"*": handlers}
    worker = JobWorker(queue.queues, queue.name, named, **how)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def reaches(queue: Queue, job_id: str, state: str) -> Job:
    async def there() -> bool:
        return await queue.state(job_id) == state

    await eventually(there, what=f"{job_id} is {state}")
    job = await queue.get(job_id)
    assert job is not None
    return job
