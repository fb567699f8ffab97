"""The keys of one queue: BullMQ's own names, and ours beside them under `hb:`, all sharing the queue's prefix.

On a Redis Cluster the prefix carries the hash tag (`{bull}`), so that one script may touch all of them.
"""

from __future__ import annotations

import base64

BULLMQ = (
    "wait",
    "active",
    "prioritized",
    "events",
    "stalled",
    "limiter",
    "delayed",
    "paused",
    "meta",
    "pc",
    "marker",
    "completed",
    "failed",
    "repeat",
    "id",
    "stalled-check",
    "waiting-children",
)


class QueueKeys:
    """Every key of one queue, built once."""

    def __init__(self, prefix: str, queue: str) -> None:
        self.prefix = prefix
        self.queue = queue
        self.base = f"{prefix}:{queue}:"
        """What BullMQ's scripts call the key prefix; it ends with a colon."""
        self._known = {name: self.base + name for name in BULLMQ}
        self.tats = self.base + "hb:tats"
        """ZSET tenant -> theoretical arrival time (GCRA) in microseconds of Redis' clock; past ones are removed."""
        self.limits = self.base + "hb:limits"
        """HASH tenant -> "rate:burst:weight" in this queue."""
        self.everywhere = f"{prefix}:hb:limits"
        """HASH tenant -> "rate:burst:weight" in every queue that has no row of its own for it."""
        self._claim = (*self.some(*BULLMQ[:11]), self.tats, self.limits, self.everywhere)

    def __getitem__(self, name: str) -> str:
        return self._known[name]

    def some(self, *names: str) -> tuple[str, ...]:
        return tuple(self._known[name] for name in names)

    @property
    def workers(self) -> str:
        """HASH worker -> 0, or since when (ms) it is silent: those that say that they live."""
        return f"{self.base}hb:workers"

    def alive(self, worker_id: str) -> str:
        """There as long as the worker says that it lives."""
        return f"{self.base}hb:alive:{worker_id}"

    def held(self, worker_id: str) -> str:
        """HASH tenant -> lanes it holds in this worker."""
        return f"{self.base}hb:held:{worker_id}"

    def claim(self, worker_id: str) -> tuple[str, ...]:
        """What the claiming script needs: moveToActive's eleven keys, then our four."""
        return (*self._claim, self.held(worker_id))

    def job(self, wire_id: str) -> str:
        return self.base + wire_id

    def metrics(self, outcome: str) -> str:
        return f"{self.base}metrics:{outcome}"

    def client_name(self, worker: str = "") -> str:
        """The connection name by which BullMQ and Bull Board recognise a worker of this queue."""
        name = base64.b64encode(self.queue.encode()).decode()
        return f"{self.prefix}:{name}" + (f":w:{worker}" if worker else "")
