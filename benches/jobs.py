"""No-op jobs a second: our worker, the official Python worker and Node's, each in a process of its own, in turn."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import sys

from benches._bench import Options, Result, main, require, rounded, say
from handbill.infra.redis import Redis
from handbill.jobs.defaults import QueueDefaults
from handbill.jobs.model import JobOptions, Keep, NewJob
from handbill.jobs.queue import Queues
from tests.interop.node import installed
from tests.kit.stack import stack

BAR = ">= 5 x the Python worker (vs_python), >= 0.8 x Node (vs_node)"
LANES = 50
PAYLOAD = {
    "bannerPublicId": "019b0b5f-1111-7000-8000-000000000001",
    "placementPublicId": "019b0b5f-2222-7000-8000-000000000002",
    "sessionId": "sess_1",
    "deviceType": "mobile",
    "occurredAt": "2026-06-19T10:15:30.000Z",
}
ROUNDS = 3
_number = itertools.count()


async def measure(redis: Redis, url: str, rival: str, count: int) -> float:
    """Fill a fresh queue, let one worker empty it, and check that every job is done."""
    name = f"bench-{next(_number)}"
    queue = Queues(redis).queue(name)
    opts = JobOptions(keep_completed=Keep(count=100), keep_failed=Keep(count=50))
    await queue.add_many([NewJob("n", PAYLOAD, opts) for _ in range(count)])
    if rival == "node":
        command = ["node", "bench.js", "bullmq5", url, name, str(count), str(LANES)]
        home = installed()
    else:
        command = [sys.executable, "-m", "benches._jobs_rival", rival, url, name, str(count), str(LANES)]
        home = None
    child = await asyncio.create_subprocess_exec(*command, cwd=home, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(child.communicate(), 300)
    counts = await queue.counts()
    require(child.returncode == 0, f"{rival} ended with {child.returncode}")
    require(counts.waiting == 0, f"{rival} left {counts.waiting} jobs waiting")
    require(rival != "ours" or counts.active == 0, f"{rival} left {counts.active} jobs active")
    require(rival != "ours" or (await queue.metrics()).total == count, "not every job of ours was counted as completed")
    found = float(out.decode().split()[-1])
    say(f"{rival}: {found:,.0f} jobs/s")
    return found


async def body(options: Options) -> Result:
    counts = {
        "ours": options.scaled(40_000, 10_000),
        "official": options.scaled(8_000, 2_500),
        "node": options.scaled(40_000, 10_000),
    }
    if shutil.which("node") is None or shutil.which("npm") is None:
        say("no Node here: its worker is left out")
        del counts["node"]
    rates: dict[str, list[float]] = {rival: [] for rival in counts}
    async with stack(postgres=False) as built:
        redis = Redis(built.redis_url, timeout=30)
        await redis.start()
        for turn in range(ROUNDS):
            for rival in list(counts) if turn % 2 == 0 else reversed(list(counts)):
                rates[rival].append(await measure(redis, built.redis_url, rival, counts[rival]))
        await redis.stop()
    medians = {rival: statistics.median(found) for rival, found in rates.items()}
    detail = {
        "vs_python": rounded(medians["ours"] / medians["official"]),
        "vs_node": rounded(medians["ours"] / medians["node"]) if "node" in medians else None,
        "jobs": counts,
        "lanes": LANES,
        "payload_bytes": len(str(PAYLOAD)),
        "rounds": {rival: [rounded(one) for one in found] for rival, found in rates.items()},
        "keep_completed": QueueDefaults().keep_completed.count,
    }
    return Result(medians["ours"], "jobs/s", medians["official"], detail)


if __name__ == "__main__":
    main("jobs", body)
