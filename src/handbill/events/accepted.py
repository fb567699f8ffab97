"""Until all that was accepted is counted: whoever forgets somebody must not be overtaken by what was said before."""

from __future__ import annotations

import asyncio

from handbill.events.store import S
from handbill.infra.journal.lanes import Lanes, later
from handbill.infra.journal.port import START, Journal
from handbill.infra.postgres import Database
from handbill.kit.errors import Busy

_PATIENCE_S = 15.0
_LOOK_EVERY_S = 0.05


class Accepted:
    def __init__(self, database: Database, journal: Journal, lanes: Lanes, patience_s: float = _PATIENCE_S) -> None:
        self._database = database
        self._journal = journal
        self._lanes = lanes
        self._patience_s = patience_s

    async def counted(self) -> None:
        """Returns when every lane's cursor has passed what its journal held at the call.

        Raises Busy when that takes too long, and at once when nobody works on any lane that is behind.
        """
        ends = {lane: await self._journal.end(lane) for lane, _ in self._lanes.all()}
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            ends, owned = await self._behind(ends)
            if not ends:
                return
            if not owned or asyncio.get_running_loop().time() > deadline:
                raise Busy(
                    "Events that were accepted are not counted yet; nothing was erased. Ask again when the workers "
                    "have caught up.",
                    code="HISTORY_BEHIND",
                    retry_after=10,
                )
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _behind(self, ends: dict[str, str]) -> tuple[dict[str, str], bool]:
        """The lanes that have not come so far, and whether anybody works on one of them."""
        async with self._database.worker() as tx:
            rows = {row["lane"]: row for row in await tx.fetch(S.lanes_at_work, list(ends))}
        behind = {}
        for lane, end in ends.items():
            cursor = rows[lane]["cursor"] if lane in rows else START
            if later(end, cursor) and await self._waits(lane, cursor, end):
                behind[lane] = end
        return behind, any(lane in rows and rows[lane]["owned"] for lane in behind)

    async def _waits(self, lane: str, cursor: str, end: str) -> bool:
        """The end may be the mark of an entry that came and went, to keep the ids growing."""
        entries = await self._journal.read(lane, cursor, events=1)
        return bool(entries) and not later(entries[0].id, end)
