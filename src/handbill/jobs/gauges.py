"""Depth and age of every queue, for Prometheus. Tenants by internal number: the largest, the rest as `other`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from handbill.infra.postgres import Database
from handbill.jobs import store
from handbill.jobs.queue import Queues
from handbill.kit.telemetry import metrics

TOP = 20


class Gauges:
    def __init__(self, database: Database, queues: Queues, names: Callable[[], Awaitable[Sequence[str]]]) -> None:
        self._database = database
        self._queues = queues
        self._names = names
        self._shown: set[tuple[str, str]] = set()

    async def measure(self) -> None:
        names = await self._names()
        async with self._database.worker() as tx:
            lanes = {name: await store.lanes_depth(tx, name, 1_000_000) for name in names}
            dead = await store.open_dead_counts(tx)
        shown: set[tuple[str, str]] = set()
        for name in names:
            shown |= _show(name, lanes[name])
            metrics.DEAD_LETTERS_OPEN.labels(name).set(dead.get(name, 0))
            counts = await self._queues.queue(name).counts()
            for state in ("waiting", "prioritized", "delayed", "active", "failed"):
                metrics.QUEUE_DEPTH.labels(name, state).set(getattr(counts, state))
        for label in self._shown - shown:
            metrics.OUTBOX_PENDING.remove(*label)
            metrics.OUTBOX_OLDEST_SECONDS.remove(*label)
        self._shown = shown


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
