"""Cron: job schedulers in BullMQ's format. A scheduler owns one delayed job, that of its next slot.

The worker that claims that job puts the following one in place before it runs it. The job's id is the scheduler and
the slot, so a slot fires once however many workers there are. After a downtime the slot that was missed is still
there, fires once, and the next one is computed from now: missed slots do not pile up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import msgspec
from cronsim import CronSim, CronSimError

from handbill.jobs import options, scripts
from handbill.jobs.model import Job, JobOptions, whole
from handbill.jobs.payloads import loose_json, restore_bytes
from handbill.jobs.queue import Queue, Queues, pairs
from handbill.kit.clock import from_ms, to_ms
from handbill.kit.errors import Conflict, Fault, Invalid
from handbill.kit.telemetry import logs
from handbill.kit.zones import find_zone

_log = logs.get("jobs.cron")

COLLISION = -10
TRIES = 5


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job that comes back: at the times of a cron pattern (5 fields, or 6 with seconds first), or every so often.

    `jitter_ms` spreads the slots: each is late by a part of it that depends only on the scheduler and the slot.
    """

    id: str
    queue: str
    name: str
    cron: str | None = None
    every_ms: int | None = None
    zone: str = "UTC"
    jitter_ms: int = 0
    data: Any = msgspec.field(default_factory=dict)
    opts: JobOptions = JobOptions()
    tenant_id: int | None = None


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler as it stands in Redis."""

    id: str
    queue: str
    name: str
    cron: str | None
    every_ms: int | None
    zone: str | None
    next_ms: int
    fired: int


def next_slot(pattern: str, zone: str | None, after_ms: int) -> int | None:
    """The first time of the pattern after the given one, in milliseconds; None when there is none in fifty years."""
    try:
        where = _zone(zone) if zone else UTC
        after = from_ms(after_ms).astimezone(where)
        found: datetime = next(CronSim(pattern, after))
    except StopIteration:
        return None
    except (CronSimError, ValueError) as error:
        raise Invalid(
            f"not a schedule: {pattern!r} in {zone or 'UTC'}",
            code="SCHEDULE_INVALID",
            faults=[Fault("cron", str(error) or type(error).__name__)],
        ) from error
    return to_ms(found.astimezone(UTC))


def _zone(name: str) -> ZoneInfo:
    zone = find_zone(name)
    if zone is None:
        raise ValueError("the time zone must be an IANA name, like Europe/Paris")
    return zone


def late_by(scheduler: str, slot_ms: int, jitter_ms: int) -> int:
    """The part of the jitter that this slot gets: the same for everybody who computes it."""
    if jitter_ms <= 0:
        return 0
    digest = hashlib.sha256(f"{scheduler}:{slot_ms}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % jitter_ms


class Schedulers:
    """Puts schedules in place and moves them on."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._redis = queues.redis
        self._add = self._redis.script(scripts.bullmq("addJobScheduler-11"))
        self._update = self._redis.script(scripts.bullmq("updateJobScheduler-12"))
        self._remove = self._redis.script(scripts.bullmq("removeJobScheduler-3"))

    async def ensure(self, schedules: Sequence[Schedule]) -> list[str]:
        """Make Redis hold these. What stands as wanted is left alone, so that a missed slot still fires."""
        changed = []
        for schedule in schedules:
            if not await self._stands(schedule):
                await self.upsert(schedule)
                changed.append(schedule.id)
        return changed

    async def upsert(self, schedule: Schedule) -> str:
        """Write it anew and queue its next slot; the id of that slot's job."""
        _check(schedule)
        queue = self._queues.queue(schedule.queue)
        now = await self._redis.time_ms()
        slot = await self._lost_slot(queue, schedule)
        for _ in range(TRIES):
            if slot is None:
                slot = _first(schedule, now)
            reply = await self._put(queue, schedule, slot, now)
            if isinstance(reply, list):
                return bytes(reply[0]).decode()
            if reply != COLLISION or schedule.cron is None:
                break
            now, slot = slot, None  # that slot has already run: take the one after it
        raise Conflict(f"schedule {schedule.id}: its next slots are taken by other jobs", code="SCHEDULE_TAKEN")

    async def remove(self, queue: str, scheduler: str) -> bool:
        keys = self._queues.queue(queue).keys
        gone = await self._remove(keys=keys.some("repeat", "delayed", "events"), args=[scheduler, keys.base])
        return bool(gone == 0)

    async def list(self, queue: str) -> list[Scheduled]:
        keys = self._queues.queue(queue).keys
        flat = await self._redis.call("ZRANGE", keys["repeat"], 0, -1, "WITHSCORES")
        found = []
        for raw, score in zip(flat[::2], flat[1::2], strict=True):
            fields = pairs(await self._redis.call("HGETALL", f"{keys['repeat']}:{raw.decode()}"))
            every = fields.get(b"every")
            found.append(
                Scheduled(
                    id=raw.decode(),
                    queue=queue,
                    name=fields.get(b"name", b"").decode(),
                    cron=_text(fields.get(b"pattern")),
                    every_ms=None if every is None else whole(every, 0),
                    zone=_text(fields.get(b"tz")),
                    next_ms=whole(score, 0),
                    fired=max(whole(fields.get(b"ic"), 1) - 1, 0),
                )
            )
        return found

    async def advance(self, job: Job) -> str | None:
        """Called for a scheduler's job that was just claimed: queue the next slot. Safe to call twice.

        Without options that can be read, nobody can tell the slot: the schedule is put back when it is next declared.
        """
        if job.scheduler is None or (job.unreadable is not None and not job.opts):
            return None
        repeat = job.opts.get("repeat")
        repeat = repeat if isinstance(repeat, dict) else {}
        now = await self._redis.time_ms()
        count = whole(repeat.get("count"), 1) + 1
        limit, end = whole(repeat.get("limit"), 0), whole(repeat.get("endDate"), 0)
        if (limit and count > limit) or (end and now > end):
            return None
        slot = self._next(job, repeat, max(now, whole(job.opts.get("prevMillis"), 0)))
        if slot is None:
            return None
        queue = self._queues.queue(job.queue)
        opts = {**job.opts, "repeat": {**repeat, "count": count}}
        return await self._move_on(queue, job, _slot_opts(opts, job.scheduler, slot, now), slot, now)

    def _next(self, job: Job, repeat: dict[str, Any], after: int) -> int | None:
        pattern = repeat.get("pattern")
        if not isinstance(pattern, str):
            return after  # `every`: BullMQ's script computes the slot itself
        zone = repeat.get("tz")
        try:
            slot = next_slot(pattern, zone if isinstance(zone, str) else None, after)
        except Invalid as error:
            _log.error("schedule-unreadable", queue=job.queue, scheduler=job.scheduler, reason=str(error.faults))
            return None
        return None if slot is None else slot + late_by(job.scheduler or "", slot, whole(job.opts.get("jitter"), 0))

    async def _move_on(self, queue: Queue, job: Job, opts: dict[str, Any], slot: int, now: int) -> str | None:
        names = ("repeat", "delayed", "wait", "paused", "meta", "prioritized", "marker", "id", "events", "pc")
        keys = (*queue.keys.some(*names), queue.keys.job(job.wire_id), queue.keys["active"])
        data = msgspec.json.encode(restore_bytes(job.data))
        args = [slot, job.scheduler or "", data, msgpack.packb(opts), now, queue.keys.base, job.wire_id]
        reply = await self._update(keys=keys, args=args)
        return None if reply is None else bytes(reply).decode()

    async def _stands(self, schedule: Schedule) -> bool:
        """Is it there as wanted, with the job of its next slot in place?"""
        keys = self._queues.queue(schedule.queue).keys
        score, flat = await self._redis.many(
            [("ZSCORE", keys["repeat"], schedule.id), ("HGETALL", f"{keys['repeat']}:{schedule.id}")]
        )
        if score is None:
            return False
        fields = pairs(flat)
        every = None if schedule.every_ms is None else str(schedule.every_ms)
        same = (
            _text(fields.get(b"name")) == schedule.name
            and _text(fields.get(b"pattern")) == schedule.cron
            and _text(fields.get(b"every")) == every
            and _text(fields.get(b"tz")) == schedule.zone
            and loose_json(fields.get(b"data"), {}) == msgspec.to_builtins(schedule.data)
            and loose_json(fields.get(b"opts"), {}) == self._template(schedule)
        )
        return same and bool(await self._redis.call("EXISTS", keys.job(f"repeat:{schedule.id}:{whole(score, 0)}")))

    async def _lost_slot(self, queue: Queue, schedule: Schedule) -> int | None:
        """A slot that the scheduler still owes although its job is gone (drained, removed): it is queued again."""
        score = await self._redis.call("ZSCORE", queue.keys["repeat"], schedule.id)
        pattern = await self._redis.call("HGET", f"{queue.keys['repeat']}:{schedule.id}", "pattern")
        if score is None or schedule.cron is None or _text(pattern) != schedule.cron:
            return None
        slot = whole(score, 0)
        there = await self._redis.call("EXISTS", queue.keys.job(f"repeat:{schedule.id}:{slot}"))
        return None if there else slot

    async def _put(self, queue: Queue, schedule: Schedule, slot: int, now: int) -> Any:
        template = self._template(schedule)
        repeat: dict[str, Any] = {"count": 1, "tz": schedule.zone}
        known: dict[str, Any] = {"name": schedule.name, "tz": schedule.zone}
        if schedule.cron is not None:
            repeat["pattern"] = known["pattern"] = schedule.cron
        else:
            repeat["every"] = known["every"] = schedule.every_ms
            if offset := late_by(schedule.id, 0, min(schedule.jitter_ms, (schedule.every_ms or 1) - 1)):
                repeat["offset"] = known["offset"] = offset
        opts = _slot_opts({**template, "repeat": repeat}, schedule.id, slot, now)
        names = ("repeat", "delayed", "wait", "paused", "meta", "prioritized", "marker", "id", "events", "pc", "active")
        data = msgspec.json.encode(schedule.data)
        packed = [msgpack.packb(known), schedule.id, data, msgpack.packb(template), msgpack.packb(opts)]
        return await self._add(keys=queue.keys.some(*names), args=[slot, *packed, now, queue.keys.base, ""])

    def _template(self, schedule: Schedule) -> dict[str, Any]:
        defaults = self._queues.queue(schedule.queue).defaults
        found = options.encode(schedule.opts, defaults, schedule.tenant_id)
        return {**found, "jitter": schedule.jitter_ms} if schedule.jitter_ms else found


def _first(schedule: Schedule, now: int) -> int:
    if schedule.cron is None:
        return now
    slot = next_slot(schedule.cron, schedule.zone, now)
    if slot is None:
        raise Invalid(f"schedule {schedule.id} never fires", code="SCHEDULE_INVALID", faults=[Fault("cron", "no slot")])
    return slot + late_by(schedule.id, slot, schedule.jitter_ms)


def _slot_opts(opts: dict[str, Any], scheduler: str, slot: int, now: int) -> dict[str, Any]:
    return {
        **opts,
        "jobId": f"repeat:{scheduler}:{slot}",
        "delay": max(slot - now, 0),
        "timestamp": now,
        "prevMillis": slot,
        "repeatJobKey": scheduler,
    }


def _check(schedule: Schedule) -> None:
    faults = []
    if not schedule.id or ":" in schedule.id:
        faults.append(Fault("id", "not empty, and without ':'"))
    if (schedule.cron is None) == (schedule.every_ms is None):
        faults.append(Fault("cron", "either a cron pattern or every_ms, not both"))
    if schedule.every_ms is not None and schedule.every_ms < 1:
        faults.append(Fault("every_ms", "at least 1"))
    if schedule.jitter_ms < 0:
        faults.append(Fault("jitter_ms", "not below 0"))
    if faults:
        raise Invalid("the schedule was not written", code="SCHEDULE_INVALID", faults=faults)
    options.check(schedule.name, schedule.opts)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")
