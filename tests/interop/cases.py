"""The cases. Each gets a Node with one library, a fresh queue of ours, and asserts what both sides see."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.model import Deduplication, Job, JobOptions, NewJob, Unrecoverable
from handbill.jobs.queue import Queue
from handbill.jobs.worker import JobContext, JobWorker
from tests.interop.node import Node, Refused
from tests.kit.waiting import eventually

Case = Callable[[Node, Queue], Awaitable[None]]
CASES: list[Case] = []


def case(one: Case) -> Case:
    CASES.append(one)
    return one


class Seen:
    """A handler that notes what it ran and fails jobs named `fail`."""

    def __init__(self) -> None:
        self.data: list[Any] = []
        self.ids: Counter[str] = Counter()

    async def __call__(self, job: Job, ctx: JobContext) -> Any:
        self.data.append(job.data)
        self.ids[job.id] += 1
        if job.name == "fail":
            raise ValueError(f"no luck in attempt {ctx.attempt}")
        if job.name == "never":
            raise Unrecoverable("it cannot work")
        if job.name == "talk":
            await ctx.progress({"half": True})
            await ctx.log("a line from Python")
        return {"python": job.data}


@contextlib.asynccontextmanager
async def ours(queue: Queue, concurrency: int = 1, **how: Any) -> AsyncIterator[Seen]:
    seen = Seen()
    worker = JobWorker(queue.queues, queue.name, {"*": seen}, concurrency=concurrency, **how)
    await worker.start()
    try:
        yield seen
    finally:
        await worker.stop()


async def reaches(node: Node, queue: Queue, job_id: str, state: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def there() -> bool:
        found.clear()
        found.update(await node("job", queue=queue.name, id=job_id) or {})
        return found.get("state") == state

    await eventually(there, what=f"job {job_id} is {state}; {found}")
    return found


@case
async def node_adds_and_reads_our_result(node: Node, queue: Queue) -> None:
    made = await node("add", queue=queue.name, name="n", data={"x": [1, "é"]})
    async with ours(queue) as seen:
        done = await reaches(node, queue, made["id"], "completed")
    assert seen.data == [{"x": [1, "é"]}]
    assert done["returnvalue"] == {"python": {"x": [1, "é"]}}
    assert done["attemptsMade"] == 1
    assert done["finishedOn"] >= done["processedOn"] >= done["timestamp"]


@case
async def duplicate_ids_in_both_directions(node: Node, queue: Queue) -> None:
    await node("add", queue=queue.name, name="n", data=1, opts={"jobId": "theirs"})
    assert not (await queue.add("n", 2, opts=JobOptions(job_id="theirs"))).added
    assert (await queue.add("n", 3, opts=JobOptions(job_id="ours:3"))).added
    again = await node("add", queue=queue.name, name="n", data=4, opts={"jobId": "ours.3"})
    assert again["id"] == "ours.3"
    async with ours(queue) as seen:
        await reaches(node, queue, "ours.3", "completed")
    assert seen.data == [1, 3]


@case
async def node_refuses_the_colon_that_we_map(node: Node, queue: Queue) -> None:
    with pytest.raises(Refused, match=":"):
        await node("add", queue=queue.name, name="n", data=1, opts={"jobId": "a:b"})
    added = await queue.add("n", 1, opts=JobOptions(job_id="sync:a:b:c:d"))
    assert added.id == "sync:a:b:c:d"
    assert (await node("job", queue=queue.name, id="sync.a.b.c.d"))["state"] == "waiting"


@case
async def priorities_run_in_their_order(node: Node, queue: Queue) -> None:
    for priority in (5, 1, 3, 0, 2):
        await node("add", queue=queue.name, name="n", data=priority, opts={"priority": priority})
    await queue.add("n", 4, opts=JobOptions(priority=4))
    async with ours(queue) as seen:
        await eventually(lambda: len(seen.data) == 6)
    assert seen.data == [0, 1, 2, 3, 4, 5]


@case
async def delays_end_in_their_order(node: Node, queue: Queue) -> None:
    async with ours(queue) as seen:
        for delay in (400, 100, 250):
            await node("add", queue=queue.name, name="n", data=delay, opts={"delay": delay})
        await eventually(lambda: len(seen.data) == 3)
    assert seen.data == [100, 250, 400]


@case
async def lifo_goes_first(node: Node, queue: Queue) -> None:
    for n in (1, 2):
        await node("add", queue=queue.name, name="n", data=n)
    await node("add", queue=queue.name, name="n", data=3, opts={"lifo": True})
    await queue.add("n", 4, opts=JobOptions(lifo=True))
    async with ours(queue) as seen:
        await eventually(lambda: len(seen.data) == 4)
    assert seen.data == [4, 3, 1, 2]


@case
async def exponential_backoff_uses_up_the_attempts(node: Node, queue: Queue) -> None:
    opts = {"attempts": 3, "backoff": {"type": "exponential", "delay": 20}}
    made = await node("add", queue=queue.name, name="fail", data=1, opts=opts)
    async with ours(queue) as seen:
        job = await reaches(node, queue, made["id"], "failed")
    assert len(seen.data) == 3
    assert job["attemptsMade"] == 3
    assert job["failedReason"] == "no luck in attempt 3"
    assert len(job["stacktrace"]) == 3
    assert "ValueError" in job["stacktrace"][0]


@case
async def a_custom_backoff_type_is_understood(node: Node, queue: Queue) -> None:
    opts = {"attempts": 3, "backoff": {"type": "list", "delays": [10, 30]}}
    made = await node("add", queue=queue.name, name="fail", data=1, opts=opts)
    strange = await node(
        "add", queue=queue.name, name="fail", data=2, opts={"attempts": 2, "backoff": {"type": "moon", "delay": 10}}
    )
    async with ours(queue) as seen:
        await reaches(node, queue, made["id"], "failed")
        await reaches(node, queue, strange["id"], "failed")
    assert Counter(seen.data) == {1: 3, 2: 2}


@case
async def unrecoverable_ends_at_once(node: Node, queue: Queue) -> None:
    made = await node("add", queue=queue.name, name="never", data=1, opts={"attempts": 5})
    async with ours(queue):
        job = await reaches(node, queue, made["id"], "failed")
    assert job["attemptsMade"] == 1


@case
async def deduplication_in_both_directions(node: Node, queue: Queue) -> None:
    first = await node("add", queue=queue.name, name="n", data=1, opts={"deduplication": {"id": "d"}})
    second = await queue.add("n", 2, opts=JobOptions(deduplication=Deduplication("d")))
    assert (second.id, second.added) == (first["id"], False)
    ours_ = await queue.add("n", 3, opts=JobOptions(deduplication=Deduplication("e", ttl_ms=60_000)))
    theirs = await node("add", queue=queue.name, name="n", data=4, opts={"deduplication": {"id": "e", "ttl": 60_000}})
    assert theirs["id"] == ours_.id
    async with ours(queue) as seen:
        await eventually(lambda: len(seen.data) == 2)
        await reaches(node, queue, first["id"], "completed")
        assert (await queue.add("n", 5, opts=JobOptions(deduplication=Deduplication("d")))).added
        await eventually(lambda: len(seen.data) == 3)
    assert seen.data == [1, 3, 5]


@case
async def a_scheduler_of_node_ticks_on_our_worker(node: Node, queue: Queue) -> None:
    template = {"name": "tick", "data": {"t": 1}}
    async with ours(queue, concurrency=3) as seen:
        await node("schedule", queue=queue.name, id="every", repeat={"every": 100}, template=template)
        await eventually(lambda: len(seen.ids) >= 4)
        assert (await node("schedulers", queue=queue.name))[0]["key"] == "every"
        await node("unschedule", queue=queue.name, id="every")
    assert set(seen.ids.values()) == {1}
    assert all(data == {"t": 1} for data in seen.data)


@case
async def a_cron_scheduler_of_node_with_seconds_and_zone(node: Node, queue: Queue) -> None:
    repeat = {"pattern": "*/1 * * * * *", "tz": "Asia/Kathmandu"}
    async with ours(queue) as seen:
        await node("schedule", queue=queue.name, id="sec", repeat=repeat, template={"name": "tick", "data": 1})
        await eventually(lambda: len(seen.ids) >= 3)
        await node("unschedule", queue=queue.name, id="sec")
    slots = sorted(int(job_id.split(":")[2]) for job_id in seen.ids)
    assert all(slot % 1_000 == 0 for slot in slots)
    assert set(seen.ids.values()) == {1}


@case
async def our_scheduler_ticks_on_nodes_worker(node: Node, queue: Queue) -> None:
    await Schedulers(queue.queues).upsert(Schedule(id="ours", queue=queue.name, name="tick", every_ms=100))
    await node("work", queue=queue.name, concurrency=2)

    async def ticked() -> bool:
        return (await queue.counts()).completed >= 3

    await eventually(ticked)
    await node("unwork")
    assert [one["key"] for one in await node("schedulers", queue=queue.name)] == ["ours"]


@case
async def node_waits_for_our_result(node: Node, queue: Queue) -> None:
    await node("listen", queue=queue.name)
    good = await node("add", queue=queue.name, name="n", data=7)
    bad = await node("add", queue=queue.name, name="fail", data=8)
    waits = asyncio.gather(
        node("finished", queue=queue.name, id=good["id"]),
        node("finished", queue=queue.name, id=bad["id"]),
        return_exceptions=True,
    )
    async with ours(queue):
        done, failed = await waits
    assert done == {"python": 7}
    assert isinstance(failed, Refused)
    assert "no luck" in str(failed)


@case
async def progress_and_logs_are_seen(node: Node, queue: Queue) -> None:
    made = await node("add", queue=queue.name, name="talk", data=1)
    async with ours(queue):
        job = await reaches(node, queue, made["id"], "completed")
    assert job["progress"] == {"half": True}
    assert await node("logs", queue=queue.name, id=made["id"]) == ["a line from Python"]


@case
async def nodes_worker_runs_our_jobs(node: Node, queue: Queue) -> None:
    added = await queue.add_many([NewJob("n", i, tenant_id=i % 3 or None) for i in range(20)])
    await node("work", queue=queue.name, concurrency=3)
    for one in added:
        await reaches(node, queue, one.id, "completed")
    await node("unwork")
    job = await queue.get(added[0].id)
    assert job is not None
    assert job.result == {"node": 0}


@case
async def both_workers_share_one_queue(node: Node, queue: Queue) -> None:
    await node("work", queue=queue.name, concurrency=5)
    keep = {"removeOnComplete": False}
    async with ours(queue, concurrency=5) as seen:
        await node("addBulk", queue=queue.name, jobs=[{"name": "n", "data": i, "opts": keep} for i in range(400)])

        async def done() -> bool:
            return (await queue.counts()).completed == 400

        await eventually(done)
    await node("unwork")
    assert set(seen.ids.values()) <= {1}
    jobs = await queue.list("completed", 0, 399)
    assert Counter(next(iter(job.result)) for job in jobs)["python"] == len(seen.ids)


@case
async def node_pauses_and_resumes_us(node: Node, queue: Queue) -> None:
    async with ours(queue) as seen:
        await node("pause", queue=queue.name)
        await node("add", queue=queue.name, name="n", data=1)
        assert (await queue.counts()).paused
        assert seen.data == []
        await node("resume", queue=queue.name)
        await eventually(lambda: seen.data == [1])
    await queue.pause()
    await queue.add("n", 2)
    counts = await node("counts", queue=queue.name)
    assert counts["waiting"] + counts.get("paused", 0) == 1
    await queue.resume()


@case
async def our_workers_are_listed_by_name(node: Node, queue: Queue) -> None:
    async with ours(queue, name="press-1"), ours(queue, name="press-2"):

        async def listed() -> bool:
            names = await node("workers", queue=queue.name)
            return any("press-1" in name for name in names) and any("press-2" in name for name in names)

        await eventually(listed)


@case
async def node_retries_a_job_we_failed(node: Node, queue: Queue) -> None:
    made = await node("add", queue=queue.name, name="fail", data=1)
    async with ours(queue) as seen:
        await reaches(node, queue, made["id"], "failed")
        await node("retry", queue=queue.name, id=made["id"])
        await eventually(lambda: len(seen.data) == 2)
        await reaches(node, queue, made["id"], "failed")


@case
async def node_removes_and_promotes_ours(node: Node, queue: Queue) -> None:
    one = await queue.add("n", 1)
    two = await queue.add("n", 2, opts=JobOptions(delay_ms=3_600_000))
    await node("remove", queue=queue.name, id=one.id)
    await node("promote", queue=queue.name, id=two.id)
    async with ours(queue) as seen:
        await reaches(node, queue, two.id, "completed")
    assert seen.data == [2]


@case
async def kept_and_removed_as_asked(node: Node, queue: Queue) -> None:
    gone = await node("add", queue=queue.name, name="n", data=1, opts={"removeOnComplete": True})
    for n in range(5):
        await node("add", queue=queue.name, name="n", data=n, opts={"removeOnComplete": 2})
    async with ours(queue) as seen:
        await eventually(lambda: len(seen.data) == 6)
    assert await node("job", queue=queue.name, id=gone["id"]) is None
    assert (await node("counts", queue=queue.name))["completed"] == 2
    assert await node("metrics", queue=queue.name, outcome="completed") == 6


@case
async def a_flow_runs_children_first(node: Node, queue: Queue) -> None:
    children = [{"name": "child", "queueName": queue.name, "data": f"c{n}"} for n in range(3)]
    tree = {"name": "parent", "queueName": queue.name, "data": "p", "children": children}
    parent = await node("flow", tree=tree)
    async with ours(queue, concurrency=4) as seen:
        await reaches(node, queue, parent, "completed")
    assert sorted(seen.data[:3]) == ["c0", "c1", "c2"]
    assert seen.data[3] == "p"


@case
async def bull_board_lists_shows_retries_and_pauses(node: Node, queue: Queue) -> None:
    port = await node("board", queues=[queue.name])
    added = await queue.add("fail", {"why": "board"}, opts=JobOptions(attempts=1, job_id="for:board"))
    api = f"http://127.0.0.1:{port}/api/queues"
    async with ours(queue) as seen, aiohttp.ClientSession() as http:
        await eventually(lambda: len(seen.data) == 1)
        await reaches(node, queue, "for.board", "failed")
        async with http.get(api, params={"activeQueue": queue.name, "status": "failed"}) as reply:
            (listed,) = (await reply.json())["queues"]
        assert listed["counts"]["failed"] == 1
        assert listed["jobs"][0]["id"] == "for.board"
        async with http.get(f"{api}/{queue.name}/for.board") as reply:
            shown = (await reply.json())["job"]
        assert "ValueError: no luck" in shown["stacktrace"][0]
        assert shown["failedReason"] == "no luck in attempt 1"
        async with http.put(f"{api}/{queue.name}/for.board/retry") as reply:
            assert reply.status < 300, await reply.text()
        await eventually(lambda: len(seen.data) == 2)
        async with http.put(f"{api}/{queue.name}/pause") as reply:
            assert reply.status < 300
        assert (await queue.counts()).paused
        async with http.put(f"{api}/{queue.name}/resume") as reply:
            assert reply.status < 300
        assert not (await queue.counts()).paused
    assert added.id == "for:board"
