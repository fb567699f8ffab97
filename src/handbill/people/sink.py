"""People's place in the pipeline's transaction; the folding follows the commit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from handbill.events.model import CapturedEvent, Row
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.people import store
from handbill.people.definitions import Remembered
from handbill.people.folding import Folder
from handbill.people.gather import Gathered


class PeopleSink:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._folder = Folder(database)
        self._clock = clock
        self._remembered = Remembered(random.random)

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Nothing must exist before the transaction."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int) -> None:
        gathered = Gathered(_captured(rows))
        if not gathered.ids:
            return
        await store.write(tx, gathered)
        await store.write_definitions(tx, self._remembered.news(gathered.seen.seen(), self._clock.now_ms()))

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        """Who they are now, for everybody about whom the batch said something new."""
        events = list(_captured(survivors))
        for tenant_id in sorted({event.tenant for event in events}):
            await self._folder.fold(tenant_id)
        if events:
            self._remembered.learn(Gathered(events).seen.seen().items(), self._clock.now_ms())


def _captured(rows: Iterable[Row]) -> Iterable[CapturedEvent]:
    return (row.event for row in rows if type(row.event) is CapturedEvent)
