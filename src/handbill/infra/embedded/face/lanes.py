"""Who may run now. Reads and writes wait in lines of their own, first come first served: neither starves the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from handbill.infra.embedded.face.faults import TOO_MANY_QUERIES, refuse


class Lanes:
    """A place is a thread. `killers` has a thread of its own, so a query can be ended while every place is taken."""

    def __init__(self, *, reads: int = 8, writes: int = 4, waiting: int = 256) -> None:
        self._places = {False: asyncio.Semaphore(reads), True: asyncio.Semaphore(writes)}
        self._waiting = {False: 0, True: 0}
        self._limit = waiting
        self.threads = ThreadPoolExecutor(max_workers=reads + writes, thread_name_prefix="query")
        self.killers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kill")

    def waiting(self, *, writes: bool) -> int:
        return self._waiting[writes]

    async def enter(self, *, writes: bool) -> Callable[[object], None]:
        """Wait for a place; call what is returned to leave it."""
        if self._waiting[writes] >= self._limit:
            reason = f"{self._limit} queries are waiting already: try again"
            raise refuse(TOO_MANY_QUERIES, "TOO_MANY_SIMULTANEOUS_QUERIES", reason)
        self._waiting[writes] += 1
        try:
            await self._places[writes].acquire()
        finally:
            self._waiting[writes] -= 1
        return lambda _: self._places[writes].release()
