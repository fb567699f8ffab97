"""Lock renewal from a thread with a loop and a connection of its own.

A handler that blocks the main loop must not lose its job: the thread goes on renewing, so the job is not taken for
stalled and run a second time. One thread serves all workers of a process that share a Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import msgpack

from handbill.infra.redis import Connection, Redis, RedisError
from handbill.jobs import scripts
from handbill.jobs.keys import QueueKeys
from handbill.kit import task_health
from handbill.kit.errors import HandbillError
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry import logs

_log = logs.get("jobs.renewal")

PARTS = 3
"""A lock is renewed each time a third of it has passed: two renewals may fail before it is lost."""
ALIVE_MS = 4_000
"""A worker with jobs that has not said that it lives for so long may be dead (release_dead.lua)."""


class Holdings:
    """The locks one worker holds, written by its loop and read by the thread."""

    def __init__(
        self, keys: QueueKeys, worker_id: str, lock_ms: int, *, lost: Callable[[Sequence[str]], None],
        aborted: Callable[[Sequence[tuple[str, str]]], None],
    ) -> None:  # fmt: skip
        self.keys = keys
        self.worker_id = worker_id
        self.lock_ms = lock_ms
        self.beat_due = 0.0
        self.is_announced = False
        self.tokens: dict[str, str] = {}
        """wire id -> token. Only whole-dict operations, which the interpreter does in one step."""
        self.due = time.monotonic() + lock_ms / 1000 / PARTS
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._aborted = aborted

    def report(self, lost: Sequence[str], aborted: Sequence[tuple[str, str]]) -> None:
        """Called in the thread; the worker hears in its own loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            if lost:
                self._loop.call_soon_threadsafe(self._lost, lost)
            if aborted:
                self._loop.call_soon_threadsafe(self._aborted, aborted)


class Renewal:
    """The thread. It starts with the first member and ends with the last."""

    _shared: ClassVar[dict[Redis, Renewal]] = {}

    @classmethod
    def of(cls, redis: Redis) -> Renewal:
        """The one that serves this Redis; forgotten with its last member."""
        return cls._shared.setdefault(redis, cls(redis))

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._members: list[Holdings] = []
        self._thread: threading.Thread | None = None
        self.health = TaskHealth("lock-renewal")
        self._stop = threading.Event()
        self._script = scripts.own("renew")
        self._beat_script = scripts.own("beat")

    def join(self, member: Holdings) -> None:
        self._members = [*self._members, member]
        if self._thread is None:
            self._stop = threading.Event()
            task_health.register(self.health)
            self._thread = threading.Thread(target=self._main, args=(self._stop,), name="lock-renewal", daemon=True)
            self._thread.start()

    async def leave(self, member: Holdings) -> None:
        self._members = [other for other in self._members if other is not member]
        thread = self._thread
        if not self._members and thread is not None:
            self._shared.pop(self._redis, None)
            self._thread = None
            self._stop.set()
            await asyncio.to_thread(thread.join)
            task_health.unregister(self.health)

    def _main(self, stop: threading.Event) -> None:
        """Until `stop`. Whatever ends the loop, another begins: every lock of this process would be lost with it."""
        while not stop.is_set():
            try:
                asyncio.run(self._renewing(stop))
            except BaseException as error:  # noqa: BLE001 - nobody else would notice the end of this thread
                self.health.failed(error)
                _log.exception("renewal.thread_failed")
                stop.wait(0.1)

    async def _renewing(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                async with self._redis.connection() as connection:
                    while not stop.is_set():
                        await self._round(connection)
                        self.health.succeeded()
                        await asyncio.sleep(self._pause())
            except (HandbillError, RedisError) as error:
                self.health.failed(error)
                _log.warning("lock-renewal-waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 (every lock of this process would be lost with the thread)
                self.health.failed(error)
                _log.exception("renewal.round_failed")
            await asyncio.sleep(0.1)

    def _pause(self) -> float:
        """Until the next lock is due, but never so long that a stop or a new member waits."""
        now = time.monotonic()
        return min(max(min((m.due for m in self._members), default=now + 1) - now, 0.01), 0.1)

    async def _round(self, connection: Connection) -> None:
        for member in self._members:
            if time.monotonic() >= member.beat_due:
                await self._try(self._announce, connection, member)
            if time.monotonic() >= member.due:
                await self._try(self._renew_held, connection, member)
                member.due = time.monotonic() + member.lock_ms / 1000 / PARTS

    async def _try(
        self, work: Callable[[Connection, Holdings], Awaitable[None]], connection: Connection, member: Holdings
    ) -> None:
        try:
            await work(connection, member)
        except RedisError as error:  # this queue's keys are not what they should be; the others' locks are kept
            _log.error("renewal.queue_refused", queue=member.keys.queue, reason=str(error))

    async def _announce(self, connection: Connection, member: Holdings) -> None:
        """Say that this worker lives, whatever its own loop does: who stops saying so loses its jobs within seconds.

        Only while it has jobs: each word of it is a write that Redis brings to its disk.
        """
        member.beat_due = time.monotonic() + ALIVE_MS / 1000 / PARTS
        if member.tokens:
            keys = (member.keys.workers, member.keys.alive(member.worker_id))
            await connection.call("EVAL", self._beat_script, 2, *keys, member.worker_id, ALIVE_MS, timeout=5)
            member.is_announced = True
            return
        if member.is_announced:
            await connection.call("HDEL", member.keys.workers, member.worker_id, timeout=5)
            member.is_announced = False
        member.beat_due = 0.0  # at the next round, should it have a job by then

    async def _renew_held(self, connection: Connection, member: Holdings) -> None:
        held = list(member.tokens.items())
        if held:
            lost, aborted = await self._renew(connection, member, held)
            current = member.tokens
            member.report(
                [wire_id for wire_id in lost if current.get(wire_id) == dict(held)[wire_id]],
                [(wire_id, reason) for wire_id, reason in aborted if wire_id in current],
            )

    async def _renew(
        self, connection: Connection, member: Holdings, held: Sequence[tuple[str, str]]
    ) -> tuple[list[str], list[tuple[str, str]]]:
        packed = msgpack.packb([word for pair in held for word in pair])
        keys = member.keys
        reply: Any = await connection.call(
            "EVAL", self._script, 2, keys["stalled"], keys["active"], keys.base, member.lock_ms, packed, timeout=5
        )
        lost, flat = reply
        words = [word.decode(errors="replace") for word in flat]
        return [raw.decode(errors="replace") for raw in lost], list(zip(words[::2], words[1::2], strict=True))
