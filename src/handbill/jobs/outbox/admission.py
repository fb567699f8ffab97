"""How much may enter a queue now. The backlog waits in PostgreSQL, where it can be shared out; a queue keeps it short.

A job without a rate token would stand in the queue and take the place of one that can run. So a lane is admitted only
as far as its tokens reach within the next second, and the start script takes the token itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Protocol

import msgspec

from handbill.infra.redis import Redis
from handbill.jobs.outbox import shares
from handbill.jobs.records import Lane

LOOK_AT = 1000
"""Jobs near the head of a queue that are looked at one by one: far more than we ever put there ourselves."""
FLOOD = 200
"""Other programs' jobs in the list from which on ours are added in front: the claim looks only so deep."""


class Allowances(Protocol):
    """How many jobs each tenant may start within the horizon; no token is taken."""

    async def peek(self, queue: str, tenants: Sequence[int | None], horizon_ms: int) -> Sequence[int]: ...


class View(msgspec.Struct, frozen=True):
    """A queue as the relay finds it: all that waits, what runs, ours among the waiting, and ours by lane."""

    waiting: int
    active: int
    ours: int
    lanes: Mapping[int, int]

    @property
    def flooded(self) -> bool:
        """Others have added so much directly that ours would be out of sight behind it."""
        return self.waiting - self.ours > FLOOD


class Admission:
    def __init__(self, redis: Redis, allowances: Allowances, *, prefix: str = "bull", horizon_ms: int = 1000) -> None:
        self._look = redis.script(resources.files("handbill.jobs.outbox").joinpath("look.lua").read_text())
        self._allowances = allowances
        self._prefix = prefix
        self._horizon_ms = horizon_ms
        self._windows: dict[str, int] = {}

    async def look(self, queue: str) -> View:
        base = f"{self._prefix}:{queue}:"
        keys = [base + part for part in ("wait", "paused", "active", "prioritized")]
        waiting, active, ours, *pairs = await self._look(keys=keys, args=[base, LOOK_AT])
        lanes = {int(lane): int(count) for lane, count in zip(pairs[::2], pairs[1::2], strict=True)}
        return View(int(waiting), int(active), int(ours), lanes)

    def room(self, queue: str, view: View, slots: int, most: int) -> int:
        """Free places in the queue's window."""
        last = self._windows.get(queue, 0)
        now = shares.window(slots, view.active, last, starved=view.ours == 0 and last > 0, most=most)
        self._windows[queue] = now
        return max(0, min(now - view.ours, most))

    async def wants(self, queue: str, view: View, lanes: Sequence[Lane], most: int) -> list[int]:
        """How many jobs each lane may send now, by its tokens and by what already waits."""
        if not lanes:
            return []
        tokens = await self._allowances.peek(queue, [lane.tenant_id for lane in lanes], self._horizon_ms)
        return [
            max(0, min(allowed - view.lanes.get(lane.number, 0), most)) if lane.due else 0
            for lane, allowed in zip(lanes, tokens, strict=True)
        ]
