"""The place of active hours in the pipeline's transaction: counts of what people did. It writes nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from handbill.active_hours import store
from handbill.active_hours.gather import gather
from handbill.events.model import Row
from handbill.infra.postgres import Tx
from handbill.kit.clock import Clock


class ActiveHoursSink:
    """`learns` says without asking anybody whether a tenant has smart scheduling switched on."""

    def __init__(self, learns: Callable[[int], bool], clock: Clock) -> None:
        self._learns = learns
        self._clock = clock

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Nothing must exist before the transaction."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        learning = {tenant for tenant in {row.event.tenant for row in rows} if self._learns(tenant)}
        activities = gather(rows, learning.__contains__) if learning else {}
        if activities:
            await store.add(tx, activities, self._clock.now())

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        """The keeper of the segments writes profiles: it takes the marks that stand in the rows."""
