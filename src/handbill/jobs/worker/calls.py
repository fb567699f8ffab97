"""What a worker says to Redis about jobs: claim one, settle one and claim the next, renew, sweep.

Each call is one script, so each is done or not done. When the reply is lost nobody knows which; the call is then made
again with `again`, and the script finds out: a settled job is not settled twice, a job that was claimed for our token
is handed to us and not left lying.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import msgspec

from handbill.infra.redis import Script
from handbill.jobs import options, scripts
from handbill.jobs.defaults import Limit
from handbill.jobs.model import Job, read_job
from handbill.jobs.payloads import fault_of_id, fault_of_parent, show_bytes
from handbill.jobs.queue import Queue, pairs
from handbill.kit.telemetry import logs

_log = logs.get("jobs.worker")

LOOK = 256
"""How far the claim looks into the waiting jobs for one that may start."""
TRACE_LINES = 10
CONFIRM_MS = 2_000
"""A worker is dead when it is silent for so long after it was first found silent."""
NEVER = 1 << 30


class Claimed(msgspec.Struct, frozen=True):
    """A job with the token of its lock, or none and when to look again (0: no reason to)."""

    token: str
    job: Job | None
    wait_ms: int = 0
    due_ms: int = 0


class Settled(msgspec.Struct, frozen=True):
    """0: written. 1: a first try whose reply was lost had written it. Below 0: not written, the job is not ours."""

    verdict: int
    next: Claimed


class Calls:
    """One worker's calls on one queue."""

    def __init__(self, queue: Queue, worker_id: str, *, name: str, slots: int, lock_ms: int, limit: Limit) -> None:
        self._queue = queue
        self._redis = queue.redis
        self._keys = queue.keys
        self._id = worker_id
        self._name = name
        self._lock_ms = lock_ms
        self._serial = 0
        self._claim_keys = queue.keys.claim(worker_id)
        self._how: bytes = msgpack.packb(
            {"rate": limit.rate, "burst": limit.burst, "weight": limit.weight, "slots": slots, "look": LOOK}
        )
        self._claim = self._redis.script(scripts.claim())
        self._finish = self._redis.script(scripts.settle("moveToFinished-14"))
        self._delay = self._redis.script(scripts.settle("moveToDelayed-11"))
        self._retry = self._redis.script(scripts.settle("retryJob-11"))
        self._back = self._redis.script(scripts.settle("moveJobFromActiveToWait-9"))
        self._sweep = self._redis.script(scripts.sweep())
        self._release_dead = self._redis.script(scripts.own("release_dead"))
        self._detach_script = self._redis.script(scripts.own("detach"))
        finish = ("wait", "active", "prioritized", "events", "stalled", "limiter", "delayed", "paused", "meta", "pc")
        self._finish_keys = queue.keys.some(*finish)
        self._metrics_minutes = 1_440
        self.saw_tenant = False

    def token(self) -> str:
        """A token no other claim has, so that a claim whose reply was lost can be found again."""
        self._serial += 1
        return f"{self._id}:{self._serial}"

    async def claim(self, token: str, *, again: bool = False) -> Claimed:
        args: list[Any] = [self._keys.base, self._claim_opts(token), self._how, "1" if again else "0"]
        return await self._read(token, await self._claim(keys=self._claim_keys, args=args))

    async def finish(
        self, job: Job, token: str, next_token: str | None, *, value: bytes | str, failed: bool,
        traces: Sequence[str] = (), again: bool = False,
    ) -> Settled:  # fmt: skip
        """Completed with a JSON value, or failed for good with a reason and the tracebacks so far."""
        target, field = ("failed", "failedReason") if failed else ("completed", "returnvalue")
        wanted = job.opts.get("removeOnFail" if failed else "removeOnComplete")
        defaults = self._queue.defaults
        packed = msgpack.packb(
            {
                "token": token,
                "name": self._name,
                "keepJobs": options.keep_jobs(wanted, defaults.keep_failed if failed else defaults.keep_completed),
                "lockDuration": self._lock_ms,
                "attempts": job.attempts,
                "attemptsMade": job.attempts_made,
                "maxMetricsSize": self._metrics_minutes,
                "fpof": bool(job.opts.get("fpof")),
                "cpof": bool(job.opts.get("cpof")),
                "idof": bool(job.opts.get("idof")),
                "rdof": bool(job.opts.get("rdof")),
            }
        )
        keys = (
            *self._finish_keys,
            self._keys[target],
            self._keys.job(job.wire_id),
            self._keys.metrics(target),
            self._keys["marker"],
        )
        args: list[Any] = [job.wire_id, "", field, value, target, "", self._keys.base, packed]
        if traces:
            args.append(_fields(str(value), traces))
        return await self._settle(self._finish, job, token, next_token, keys, args, stamp=2, again=again, fetch_at=6)

    async def delay(
        self, job: Job, token: str, next_token: str | None, *, delay_ms: int, reason: str, traces: Sequence[str],
        free: bool, again: bool = False,
    ) -> Settled:  # fmt: skip
        """Try again in `delay_ms`; `free`: without using an attempt."""
        fields = _fields(reason, traces)
        if delay_ms <= 0 and not free:
            names = ("meta", "events", "delayed", "prioritized", "pc", "marker", "stalled")
            keys = (*self._keys.some("active", "wait", "paused"), self._keys.job(job.wire_id), *self._keys.some(*names))
            push = "RPUSH" if job.opts.get("lifo") else "LPUSH"
            args: list[Any] = [self._keys.base, "", push, job.wire_id, token, fields]
            return await self._settle(self._retry, job, token, next_token, keys, args, stamp=2, again=again)
        rest = self._keys.some("events", "meta", "stalled", "wait", "limiter", "pc")
        keys = (*self._keys.some("marker", "active", "prioritized", "delayed"), self._keys.job(job.wire_id), *rest)
        args = [self._keys.base, "", job.wire_id, token, max(delay_ms, 1), "1" if free else "0", fields, "0"]
        return await self._settle(self._delay, job, token, next_token, keys, args, stamp=2, again=again)

    async def hand_back(self, job: Job, token: str, *, again: bool = False) -> Settled:
        """To the head of the wait list, as if it had never been claimed; no attempt is used."""
        names = ("active", "wait", "stalled", "paused", "meta", "limiter", "prioritized", "marker", "events")
        args = [job.wire_id, token, self._keys.job(job.wire_id)]
        return await self._settle(self._back, job, token, None, self._keys.some(*names), args, stamp=0, again=again)

    async def sweep(self, every_ms: int) -> list[str]:
        """Take back jobs whose worker is gone; at most one sweep per `every_ms` over all workers."""
        names = ("stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events", "repeat")
        found = await self._sweep(keys=self._keys.some(*names), args=[NEVER, self._keys.base, "", every_ms])
        return [raw.decode(errors="replace") for raw in found]

    async def release_dead(self) -> list[str]:
        """Take the locks of workers that died a moment ago; the next sweep gives their jobs back at once."""
        keys = (self._keys.workers, *self._keys.some("active", "stalled", "stalled-check"))
        found = await self._release_dead(keys=keys, args=[self._keys.base, CONFIRM_MS])
        return [raw.decode(errors="replace") for raw in found]

    async def leave(self) -> None:
        """This worker has no jobs any more and ends: nobody needs to look after it."""
        await self._redis.many(
            [["HDEL", self._keys.workers, self._id], ["DEL", self._keys.alive(self._id)]], atomic=True
        )

    async def wake(self) -> None:
        """Set the marker: some worker with a free lane looks once. Harmless when there is nothing."""
        await self._redis.call("ZADD", self._keys["marker"], 0, "0")

    async def mark_mixed(self) -> None:
        """From now on the claim looks at tenants. Our own adds say so themselves; another program's do not."""
        await self._redis.call("HSET", self._keys["meta"], "hb.tenants", 1)

    async def recount(self, held: dict[str, int]) -> None:
        """Write down anew how many lanes each tenant holds here; only called when no claim is under way."""
        key = self._keys.held(self._id)
        commands: list[list[Any]] = [["DEL", key]]
        if held:
            commands.append(["HSET", key, *(word for pair in held.items() for word in pair)])
            commands.append(["EXPIRE", key, 86_400])
        await self._redis.many(commands, atomic=True)

    # --- inside
    def _claim_opts(self, token: str) -> bytes:
        packed: bytes = msgpack.packb({"token": token, "lockDuration": self._lock_ms, "name": self._name})
        return packed

    async def _settle(
        self, script: Script, job: Job, token: str, next_token: str | None, keys: Sequence[str], args: Sequence[Any], *,
        stamp: int, again: bool, fetch_at: int = 0,
    ) -> Settled:  # fmt: skip
        fetch = next_token is not None
        next_token = token if fetch_at or next_token is None else next_token
        head: list[Any] = [
            self._keys.base,
            self._claim_opts(next_token) if fetch else b"",
            self._how,
            "1" if again else "0",
            "1" if fetch else "0",
            "" if job.tenant_id is None else str(job.tenant_id),
            job.wire_id,
            token,
            self._lock_ms,
            stamp,
            fetch_at,
        ]
        verdict, *rest = await script(keys=(*self._claim_keys, *keys), args=[*head, *args])
        return Settled(verdict, await self._read(next_token, rest))

    async def _read(self, token: str, reply: Sequence[Any]) -> Claimed:
        flat, wire_id, wait, due = reply
        if not isinstance(flat, list):
            return Claimed(token, None, int(wait), int(due))
        fields = pairs(flat)
        if (reason := _fault_of_links(wire_id, fields)) is not None:
            wire_id = await self._detach(token, wire_id, reason)
            if wire_id is None:
                return Claimed(token, None)
            fields[b"defa"] = reason.encode()
        job = read_job(self._queue.name, wire_id.decode(), fields)
        self.saw_tenant = self.saw_tenant or job.tenant_id is not None
        return Claimed(token, job)

    async def _detach(self, token: str, wire_id: bytes, reason: str) -> bytes | None:
        """Give the job an id that can be read, and take away a link that cannot; None: it is another worker's now."""
        _log.warning("job.unreadable", queue=self._queue.name, reason=reason)
        replaced = "0" if fault_of_id(wire_id) is None else "1"
        keys = self._keys.some("active", "stalled")
        found: bytes | None = await self._detach_script(
            keys=keys, args=[self._keys.base, wire_id, token, replaced, reason]
        )
        return found


def _fault_of_links(wire_id: bytes, fields: dict[bytes, bytes]) -> str | None:
    if (fault := fault_of_id(wire_id)) is not None:
        return f"The job's id cannot be read ({fault}); it begins with {show_bytes(wire_id)}"
    if (fault := fault_of_parent(fields)) is not None:
        return f"The job's parent cannot be read ({fault}); it begins with {show_bytes(fields[b'parent'])}"
    return None


def _fields(reason: str, traces: Sequence[str]) -> bytes:
    text = msgspec.json.encode(list(traces)[-TRACE_LINES:]).decode()
    packed: bytes = msgpack.packb(["failedReason", reason, "stacktrace", text])
    return packed
