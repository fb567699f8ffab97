"""The wake-up: a connection that waits on BullMQ's marker, and a bell that it, timers and lanes ring.

Only a worker with a free lane may take the marker, or it would swallow a wake-up meant for another; one taken while
the last lane filled is put back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from handbill.infra.redis import Redis
from handbill.jobs.keys import QueueKeys
from handbill.kit import task_health

BLOCK_S = 5.0


class Doorbell:
    def __init__(self, redis: Redis, keys: QueueKeys, client_name: str, free: Callable[[], bool]) -> None:
        self._redis = redis
        self._keys = keys
        self._client_name = client_name
        self._free = free
        self._rung = asyncio.Event()
        self._hungry = asyncio.Event()
        self._hungry.set()
        self._timers: set[asyncio.TimerHandle] = set()
        self.listening = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    def ring_in(self, ms: int) -> None:
        """Ring when a token or a delayed job is due. Early by less than a millisecond costs one look in vain."""
        loop = asyncio.get_running_loop()

        def rung() -> None:
            self._timers.discard(timer)
            self._rung.set()

        timer = loop.call_later(max(ms, 1) / 1000, rung)
        self._timers.add(timer)

    def lanes_changed(self) -> None:
        """The number of free lanes changed: listen to the marker only while there is one."""
        if self._free():
            self._hungry.set()
        else:
            self._hungry.clear()

    async def wait(self, at_most_s: float) -> None:
        """Until somebody rings, or for so long: a marker lost with its worker must not stop a queue."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._rung.wait()
        except TimeoutError:
            return

    def answer(self) -> None:
        """About to look: what rings from here on is news. Pending timers are dropped, the look sets new ones."""
        self._rung.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def listen(self) -> None:
        """Until an error. Each time it begins the bell rings once: whatever came before was not heard."""
        async with self._redis.connection() as connection:
            await connection.call("CLIENT", "SETNAME", self._client_name)
            self.listening.set()
            self.ring()
            while True:
                await self._wait_for_room()
                found = await connection.call("BZPOPMIN", self._keys["marker"], BLOCK_S, timeout=BLOCK_S + 10)
                task_health.report_success()
                if found is None:
                    continue
                if not self._free():
                    await self._redis.call("ZADD", self._keys["marker"], 0, "0")
                self.ring()

    async def _wait_for_room(self) -> None:
        """Until a lane is free; a worker that is full for long is no silent one."""
        while not self._hungry.is_set():
            task_health.heartbeat()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hungry.wait(), BLOCK_S)
