"""One process of many leads. Leadership is a session lock in PostgreSQL: it ends with the connection, however we die.

A leader that lost its connection learns of it within `beat_s`; for that long two may lead. So leader-only chores are
written to be harmless when done twice: leadership saves work, it does not protect anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from handbill.infra.postgres import Database, Session
from handbill.jobs import store
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs, metrics

_log = logs.get("leader")


class Led(Protocol):
    """A chore that only the leader runs."""

    name: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def lock_key(name: str) -> int:
    """The lock's number: 63 bits of the name's digest."""
    return int.from_bytes(blake2b(f"leader:{name}".encode(), digest_size=8).digest(), "big") >> 1


class LeaderChore(BackgroundTask):
    """Stands for election; runs its tasks while it leads, stops them when it does not."""

    def __init__(
        self,
        database: Database,
        chores: Sequence[Led],
        *,
        name: str = "leader",
        beat_s: float = 2.0,
        health: TaskHealth | None = None,
    ) -> None:
        super().__init__(name, self._stand_on_session, health=health)
        self.leads = asyncio.Event()
        self._database = database
        self._chores = tuple(chores)
        self._beat_s = beat_s

    async def _stand_on_session(self) -> None:
        async with self._database.session() as session:
            await self._stand(session)

    async def _stand(self, session: Session) -> None:
        """Wait for the lock on one connection, then lead on it until it breaks."""
        while not await session.try_lock(lock_key(self.name)):
            self.health.heartbeat()
            self.ready.set()
            await asyncio.sleep(self._beat_s)
        try:
            await self._lead(session)
        finally:
            self.leads.clear()
            metrics.LEADER.labels(self.name).set(0)
            await self._stop_all()

    async def _lead(self, session: Session) -> None:
        _log.info("leader-elected", election=self.name)
        metrics.LEADER.labels(self.name).set(1)
        for chore in self._chores:
            await chore.start()
        self.leads.set()
        self.ready.set()
        while True:
            await asyncio.sleep(self._beat_s)
            await store.leader_alive(session)
            self.health.heartbeat()

    async def _stop_all(self) -> None:
        for chore in reversed(self._chores):
            try:
                await chore.stop()
            except Exception as error:  # noqa: BLE001 - the others must still be stopped: another process leads now
                _log.error("leader.task_stop_failed", task=chore.name, error=f"{type(error).__name__}: {error}")
