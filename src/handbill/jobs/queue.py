"""A queue as producers and operators see it. Workers have their own face (worker/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import Any

import msgpack
import msgspec

from handbill.infra.redis import Redis, RedisError
from handbill.jobs import options, scripts
from handbill.jobs.defaults import QueueDefaults, defaults_of
from handbill.jobs.keys import QueueKeys
from handbill.jobs.limits import Limits
from handbill.jobs.model import Added, Counts, Job, JobOptions, Minutes, NewJob, State, read_job, whole
from handbill.jobs.wire import from_wire, to_wire
from handbill.kit.bounds import QUEUES
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Conflict, HandbillError, Invalid, NotFound

BATCH = 1_000
_QUEUE_BYTES = 4_000
"""What a `Queue` takes in memory, mostly the names of its keys."""
Jobs = list[Job]
JobsOrGone = list[Job | None]
Texts = list[str]
_PLAIN = JobOptions()
_ADDERS = {
    "standard": ("addStandardJob-9", "wait paused meta id completed delayed active events marker"),
    "delayed": ("addDelayedJob-6", "marker meta id delayed completed events"),
    "prioritized": ("addPrioritizedJob-9", "marker meta id prioritized delayed completed active events pc"),
}


class Queues:
    """All queues behind one Redis; one per process."""

    def __init__(self, redis: Redis, *, prefix: str = "bull", clock: Clock | None = None) -> None:
        self.redis = redis
        self.prefix = prefix
        self.clock = clock or SystemClock()
        self.limits = Limits(redis, prefix=prefix)
        self._queues: LruCache[str, Queue] = LruCache(QUEUES, lambda name, _: getsizeof(name) + _QUEUE_BYTES)

    def queue(self, name: str) -> Queue:
        found: Queue | None = self._queues.get(name)
        if found is None:
            if not name or ":" in name or "{" in name:
                raise Invalid("a queue's name is not empty and has no ':' or '{'", code="QUEUE_INVALID")
            found = self._queues[name] = Queue(self, name)
        return found

    async def names(self) -> list[str]:
        """Every queue that exists in Redis, whoever made it."""
        head, tail = f"{self.prefix}:", ":meta"
        pattern = "".join(f"\\{c}" if c in "[]*?\\" else c for c in head) + "*" + tail
        found: set[str] = set()
        cursor = b"0"
        while True:
            cursor, keys = await self.redis.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            found.update(key.decode(errors="replace")[len(head) : -len(tail)] for key in keys)
            if cursor == b"0":
                return sorted(found)


class Queue:
    """One queue. Job ids go in and come out as ours; on the wire ':' is '.'."""

    def __init__(self, queues: Queues, name: str) -> None:
        self.name = name
        self.queues = queues
        self.redis = queues.redis
        self.keys = QueueKeys(queues.prefix, name)
        self.defaults: QueueDefaults = defaults_of(name)
        self._adders = {
            kind: (
                self.redis.script(scripts.add(script)),
                (*self.keys.some(*names.split()), *self.keys.some("id", "meta")),
            )
            for kind, (script, names) in _ADDERS.items()
        }

    # --- adding
    async def add(self, name: str, data: Any, *, opts: JobOptions = _PLAIN, tenant_id: int | None = None) -> Added:
        """Add one job. A job with the same id, or a live deduplication, is left as it is, and the answer says so."""
        return (await self.add_many([NewJob(name, data, opts, tenant_id)]))[0]

    async def add_many(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Add jobs in order, a thousand to a round trip. When Redis goes away in between, earlier ones may be in."""
        commands = [self._add_command(job) for job in jobs]
        found: list[Added] = []
        for start in range(0, len(commands), BATCH):
            found += [_added(reply) for reply in await self._send(commands[start : start + BATCH])]
        return found

    def _add_command(self, job: NewJob) -> list[Any]:
        opts = job.opts
        options.check(job.name, opts)
        if opts.job_id is not None:
            opts = msgspec.structs.replace(opts, job_id=to_wire(opts.job_id))
        kind = "delayed" if opts.delay_ms else "prioritized" if opts.priority else "standard"
        script, keys = self._adders[kind]
        base, wire_id = self.keys.base, opts.job_id or ""
        dedup = f"{base}de:{opts.deduplication.id}" if opts.deduplication else None
        head = b"\x99" + msgpack.packb(base) + msgpack.packb(wire_id) + msgpack.packb(job.name)
        tail = b"\xc0\xc0\xc0\xc0" + msgpack.packb(dedup)
        packed = msgpack.packb(options.encode(opts, self.defaults, job.tenant_id))
        data = msgspec.json.encode(job.data)
        return script.command(keys, [base, wire_id, head, tail, data, packed, "0" if job.tenant_id is None else "1"])

    async def _send(self, commands: Sequence[list[Any]]) -> list[Any]:
        """One round trip; commands that a forgetful Redis did not know the script of are sent once more."""
        replies = await self.redis.many(commands, errors=True)
        for at, reply in enumerate(replies):
            if isinstance(reply, RedisError) and reply.code == "NOSCRIPT":
                kind = next(script for script, _ in self._adders.values() if script.digest == commands[at][1])
                await self.redis.call("SCRIPT", "LOAD", kind.source)
                replies[at] = await self.redis.call(*commands[at])
            elif isinstance(reply, Exception):
                raise reply
        return replies

    # --- looking
    async def get(self, job_id: str) -> Job | None:
        wire_id = to_wire(job_id)
        flat = await self.redis.call("HGETALL", self.keys.job(wire_id))
        return read_job(self.name, wire_id, pairs(flat)) if flat else None

    async def state(self, job_id: str) -> str:
        """Where the job is, in BullMQ's words; "unknown" when it is nowhere."""
        wire_id = to_wire(job_id)
        names = ("completed", "failed", "delayed", "active", "wait", "paused", "waiting-children", "prioritized")
        found = await self._run("getStateV2-8", self.keys.some(*names), [wire_id, self.keys.job(wire_id)])
        return bytes(found).decode()

    async def counts(self) -> Counts:
        keys = self.keys
        replies = await self.redis.many(
            [
                ("LLEN", keys["wait"]),
                ("LLEN", keys["paused"]),
                ("ZCARD", keys["prioritized"]),
                ("ZCARD", keys["delayed"]),
                ("LLEN", keys["active"]),
                ("ZCARD", keys["completed"]),
                ("ZCARD", keys["failed"]),
                ("ZCARD", keys["waiting-children"]),
                ("HEXISTS", keys["meta"], "paused"),
            ]
        )
        wait, parked, prioritized, delayed, active, completed, failed, children, paused = replies
        return Counts(wait + parked, prioritized, delayed, active, completed, failed, children, bool(paused))

    async def list(self, state: State, start: int = 0, end: int = 49) -> Jobs:
        """Jobs of one state, `start` to `end` inclusive: the next to run first, or the last to finish first."""
        return [job for job in await self.list_with_gaps(state, start, end) if job is not None]

    async def list_with_gaps(self, state: State, start: int, end: int) -> JobsOrGone:
        """The same, with None for each id whose job is gone: fewer than asked for means the end."""
        ids = await self._ids(state, start, end)
        replies = await self.redis.many([("HGETALL", self.keys.job(wire_id)) for wire_id in ids])
        return [read_job(self.name, w, pairs(flat)) if flat else None for w, flat in zip(ids, replies, strict=True)]

    async def _ids(self, state: State, start: int, end: int) -> Texts:
        key = self.keys["wait" if state == "waiting" else state]
        if state in ("waiting", "active", "paused"):
            found = await self.redis.call("LRANGE", key, -(end + 1), -(start + 1))
            found.reverse()
        elif state in ("completed", "failed"):
            found = await self.redis.call("ZREVRANGE", key, start, end)
        else:
            found = await self.redis.call("ZRANGE", key, start, end)
        return [raw.decode(errors="replace") for raw in found]

    async def oldest_waiting_ms(self) -> int | None:
        """When the job that waits longest at the head of the list was made; None when nothing waits there."""
        found = await self.redis.call("LINDEX", self.keys["wait"], -1)
        if found is None:
            return None
        stamp = await self.redis.call("HGET", self.keys.job(found.decode(errors="replace")), "timestamp")
        return None if stamp is None else whole(stamp, 0)

    async def metrics(self, outcome: str = "completed", minutes: int = 60) -> Minutes:
        """Jobs finished in all and in each of the last minutes."""
        key = self.keys.metrics(outcome)
        head, points, _ = await self._run("getMetrics-2", (key, f"{key}:data"), [0, minutes - 1])
        return Minutes(int(head[0] or 0), tuple(int(point) for point in points))

    # --- operating
    async def pause(self) -> None:
        """No worker starts another job of this queue. Running ones end."""
        await self._pause("wait", "paused", "paused")

    async def resume(self) -> None:
        while await self._pause("paused", "wait", "resumed"):
            continue  # an old producer left more than one batch in the parked list

    async def _pause(self, source: str, target: str, word: str) -> int:
        keys = self.keys.some(source, target, "meta", "prioritized", "events", "delayed", "marker")
        return int(await self._run("pause-7", keys, [word]) or 0)

    async def drain(self, *, delayed: bool = False) -> None:
        """Remove what waits; with `delayed`, what is delayed too. Running and finished jobs stay."""
        keys = self.keys.some("wait", "paused", "delayed", "prioritized", "repeat")
        await self._run("drain-5", keys, [self.keys.base, "1" if delayed else "0"])

    async def promote(self, job_id: str) -> None:
        """A delayed job waits no longer."""
        names = ("delayed", "wait", "paused", "meta", "prioritized", "active", "pc", "events", "marker")
        self._expect(await self._run("promote-9", self.keys.some(*names), [self.keys.base, to_wire(job_id)]), job_id)

    async def retry(self, job_id: str, *, fresh: bool = True) -> None:
        """A failed or completed job runs again; `fresh`: with all its attempts back."""
        wire_id, state = to_wire(job_id), await self.state(job_id)
        if state not in ("failed", "completed"):
            raise self._refusal(-1 if state == "unknown" else -3, job_id)
        job = await self.get(job_id)
        push = "RPUSH" if job is not None and job.opts.get("lifo") else "LPUSH"
        names = ("events", state, "wait", "meta", "active", "marker", "prioritized", "pc")
        field = "failedReason" if state == "failed" else "returnvalue"
        reset = "1" if fresh else "0"
        keys = (self.keys.job(wire_id), *self.keys.some(*names))
        if fresh:
            await self.redis.call("HDEL", self.keys.job(wire_id), "stc", "defa", "hb.abort")
        self._expect(await self._run("reprocessJob-9", keys, [wire_id, push, field, state, reset, reset]), job_id)

    async def remove(self, job_id: str) -> None:
        """Remove a job that is not running, with its logs."""
        wire_id = to_wire(job_id)
        if not await self.redis.call("EXISTS", self.keys.job(wire_id)):
            raise self._refusal(-1, job_id)
        keys = (self.keys.job(wire_id), self.keys["repeat"])
        code = await self._run("removeJob-2", keys, [wire_id, 1, self.keys.base])
        if code == 0:
            raise Conflict(f"job {job_id} is running; it was not removed", code="JOB_LOCKED")
        self._expect(code, job_id)

    async def abort(self, job_id: str, reason: str = "aborted by an operator") -> None:
        """Ask the worker that runs this job to stop it. It hears within a third of the lock's time; the job fails."""
        if await self.state(job_id) != "active":
            raise self._refusal(-3, job_id)
        await self.redis.call("HSET", self.keys.job(to_wire(job_id)), "hb.abort", reason)

    async def obliterate(self, *, force: bool = False) -> None:
        """Remove the queue and all its jobs. It must be paused; running jobs stop it unless forced."""
        while True:
            left = await self._run(
                "obliterate-2", (self.keys["meta"], self.keys.base), [1000, "force" if force else ""]
            )
            if left == -1:
                raise Conflict(f"queue {self.name} is not paused; nothing was removed", code="QUEUE_NOT_PAUSED")
            if left == -2:
                raise Conflict(f"queue {self.name} has running jobs; nothing was removed", code="QUEUE_ACTIVE")
            if left == 0:
                await self.redis.call("DEL", self.keys.tats, self.keys.limits)
                return

    # --- what a running job says
    async def progress(self, job_id: str, value: Any) -> None:
        wire_id = to_wire(job_id)
        keys = (self.keys.job(wire_id), *self.keys.some("events", "meta"))
        self._expect(await self._run("updateProgress-3", keys, [wire_id, msgspec.json.encode(value)]), job_id)

    async def log(self, job_id: str, line: str, *, keep: int | None = 1_000) -> None:
        key = self.keys.job(to_wire(job_id))
        code = await self._run("addLog-2", (key, f"{key}:logs"), [to_wire(job_id), line, "" if keep is None else keep])
        self._expect(code, job_id)

    async def logs(self, job_id: str, start: int = 0, end: int = -1) -> Texts:
        found = await self.redis.call("LRANGE", f"{self.keys.job(to_wire(job_id))}:logs", start, end)
        return [raw.decode(errors="replace") for raw in found]

    # --- inside
    async def _run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return await self.redis.script(scripts.bullmq(script))(keys=keys, args=args)

    def _expect(self, code: Any, job_id: str) -> None:
        if isinstance(code, int) and code < 0:
            raise self._refusal(code, job_id)

    def _refusal(self, code: int, job_id: str) -> HandbillError:
        make = _REFUSALS.get(code)
        if make is None:
            return Conflict(f"the queue refused job {job_id} (code {code}); nothing changed", code="JOB_REFUSED")
        return make(self.name, job_id)


_REFUSALS: dict[int, Callable[[str, str], HandbillError]] = {
    -1: lambda queue, job: NotFound(f"queue {queue} has no job {job}", code="JOB_NOT_FOUND"),
    -2: lambda queue, job: Conflict(f"job {job} is not locked; nothing changed", code="JOB_NOT_LOCKED"),
    -3: lambda queue, job: Conflict(f"job {job} is not in a state that allows this", code="JOB_WRONG_STATE"),
    -6: lambda queue, job: Conflict(f"job {job} is locked by a worker; nothing changed", code="JOB_LOCKED"),
    -8: lambda queue, job: Conflict(f"job {job} belongs to a scheduler; remove that instead", code="JOB_SCHEDULED"),
}


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A reply of HGETALL as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _added(reply: Any) -> Added:
    wire_id, added = reply
    if isinstance(wire_id, int):
        raise Conflict(f"the job was not added (BullMQ says {wire_id})", code="JOB_REFUSED")
    return Added(from_wire(wire_id.decode()), bool(added))
