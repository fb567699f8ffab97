"""Depth and age of every queue, for Prometheus. Tenants by internal number: the largest, the rest as `other`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from handbill.infra.postgres import Database
from handbill.jobs import store
from handbill.jobs.queue import Queues
from handbill.kit.telemetry import logs, metrics

_log = logs.get("gauges")
TOP = 20


class Gauges:
    def __init__(self, database: Database, queues: Queues, names: Callable[[], Awaitable[Sequence[str]]]) -> None:
        self._database = database
        self._queues = queues
        self._names = names
        self._shown: set[tuple[str, str]] = set()

    async def measure(self) -> None:
        """Measure every queue. Raises the error of a queue that cannot be measured when the others have been."""
        names = await self._names()
        async with self._database.worker() as tx:
            dead = await store.open_dead_counts(tx)
        shown: set[tuple[str, str]] = set()
        trouble: Exception | None = None
        for name in names:
            metrics.DEAD_LETTERS_OPEN.labels(name).set(dead.get(name, 0))
            try:
                shown |= await self._measure(name)
            except Exception as error:  # noqa: BLE001 - raised below, after the other queues had their turn
                _log.error("gauges.queue_failed", queue=name, error=f"{type(error).__name__}: {error}")
                trouble = error
        for label in self._shown - shown:
            metrics.OUTBOX_PENDING.remove(*label)
            metrics.OUTBOX_OLDEST_SECONDS.remove(*label)
        self._shown = shown
        if trouble is not None:
            raise trouble

    async def _measure(self, name: str) -> set[tuple[str, str]]:
        counts = await self._queues.queue(name).counts()
        for state in ("waiting", "prioritized", "delayed", "active", "failed"):
            metrics.QUEUE_DEPTH.labels(name, state).set(getattr(counts, state))
        async with self._database.worker() as tx:
            return _show(name, await store.lanes_depth(tx, name, 1_000_000))


def _show(queue: str, lanes: Sequence[tuple[int, int, float]]) -> set[tuple[str, str]]:
    """`lanes` comes deepest first."""
    numbers: dict[str, tuple[int, float]] = {}
    for place, (lane, depth, age) in enumerate(lanes):
        label = ("system" if lane == 0 else str(lane)) if place < TOP else "other"
        had = numbers.get(label, (0, 0.0))
        numbers[label] = (had[0] + depth, max(had[1], age))
    for label, (depth, age) in numbers.items():
        metrics.OUTBOX_PENDING.labels(queue, label).set(depth)
        metrics.OUTBOX_OLDEST_SECONDS.labels(queue, label).set(age)
    return {(queue, label) for label in numbers}
