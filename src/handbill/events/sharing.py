"""A noisy tenant's lane leaves time to the others, as long as they have work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from handbill.events.store import EventStore
from handbill.infra.journal.lanes import Lanes, later
from handbill.infra.journal.port import START, Journal
from handbill.infra.postgres import Database

STEP_S = 0.1
"""After so long of a pause it is asked again whether others still wait."""


class MainLanes:
    """The lanes of everybody, whichever worker owns them."""

    def __init__(self, database: Database, store: EventStore, journal: Journal, lanes: Lanes) -> None:
        self._database = database
        self._store = store
        self._journal = journal
        self._names = [lane for lane, _ in lanes.all() if not lanes.is_overflow(lane)]

    async def have_work(self) -> bool:
        """Is there a lane with events that are not counted yet?"""
        async with self._database.worker() as tx:
            cursors = await self._store.cursors(tx)
        for lane in self._names:
            if later(await self._journal.end(lane), cursors.get(lane, START)):
                return True
        return False


async def leave_time(
    worked_s: float, share: float, others_wait: Callable[[], Awaitable[bool]], pause: Callable[[float], Awaitable[None]]
) -> None:
    """Pause until the work was `share` of the time, or nobody waits any more."""
    left = worked_s * (1 / share - 1)
    while left > 0 and await others_wait():
        step = min(left, STEP_S)
        await pause(step)
        left -= step
