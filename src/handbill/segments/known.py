"""What a decision asks about its user, answered beside the caps; and an absent value brought back in the background."""

from __future__ import annotations

import asyncio
from typing import Any

from handbill.infra.postgres import Database
from handbill.kit.bounds import PROFILE_MARKS
from handbill.kit.caches import LruCache
from handbill.kit.errors import HandbillError
from handbill.kit.telemetry import logs, metrics
from handbill.segments import store
from handbill.segments.projection import ProjectionKeys, named, opened
from handbill.segments.projector import Projector

_log = logs.get("segments")


class Known:
    """`at_once` bounds the questions to PostgreSQL under way, `waiting` those that may wait for their turn."""

    def __init__(
        self, database: Database, projector: Projector, keys: ProjectionKeys, *, at_once: int = 8, waiting: int = 1_000
    ) -> None:
        self._database = database
        self._projector = projector
        self._keys = keys
        self._turn = asyncio.Semaphore(at_once)
        self._waiting = waiting
        self._filling: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._marks: LruCache[int, tuple[bytes, frozenset[str]]] = LruCache(PROFILE_MARKS)

    def keys(self, tenant_id: int, user: str) -> tuple[bytes, bytes]:
        """The two keys to read beside the caps."""
        return self._keys.mark(tenant_id), self._keys.value(tenant_id, user)

    def read(
        self, tenant_id: int, user: str, found: tuple[bytes | None, ...], needs: frozenset[str]
    ) -> tuple[dict[str, Any], frozenset[str]]:
        """What targeting reads of this user, and the needs nobody can answer for now. `found` are the keys' values."""
        if len(found) != 2:  # Redis did not answer
            return {}, needs
        mark, value = found
        if mark is None:
            if value is not None:
                return opened(value, needs), frozenset()
            self.ask(tenant_id, user)
            return {}, needs
        missing = needs - self._named(tenant_id, mark)
        return opened(value, needs - missing), missing

    def ask(self, tenant_id: int, user: str) -> None:
        """Bring one value back from PostgreSQL, once however many ask; when too many wait, this one is left out."""
        key = (tenant_id, user)
        if key in self._filling:
            return
        if len(self._filling) >= self._waiting:
            metrics.PROJECTION_FILLS.labels("left").inc()
            return
        task = self._filling[key] = asyncio.create_task(self._fill(tenant_id, user), name="projection-fill")
        task.add_done_callback(lambda _: self._filling.pop(key, None))

    async def stop(self) -> None:
        tasks = list(self._filling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, tenant_id: int, user: str) -> None:
        try:
            async with self._turn, self._database.tenant(tenant_id) as tx:
                needs = await store.needs(tx, tenant_id)
                if not all(needs.values()):  # nobody's value was ever whole: the walk comes first
                    metrics.PROJECTION_FILLS.labels("left").inc()
                    return
                there = await self._projector.fill(tx, tenant_id, user, needs)
            metrics.PROJECTION_FILLS.labels("filled" if there else "nobody").inc()
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: its end must be counted and logged
            metrics.PROJECTION_FILLS.labels("failed").inc()
            code = error.code if isinstance(error, HandbillError) else f"{type(error).__name__}: {error}"
            _log.warning("projection-fill-failed", tenant=tenant_id, code=code)

    def _named(self, tenant_id: int, mark: bytes) -> frozenset[str]:
        cached: tuple[bytes, frozenset[str]] | None = self._marks.get(tenant_id)
        if cached is None or cached[0] != mark:
            cached = self._marks[tenant_id] = (mark, named(mark))
        return cached[1]
