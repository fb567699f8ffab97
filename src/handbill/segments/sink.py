"""The segments' place behind the pipeline: whoever was folded is looked at right away."""

from __future__ import annotations

from collections.abc import Sequence

from handbill.events.model import Row
from handbill.infra.postgres import Tx
from handbill.segments.service import Keeper


class SegmentsSink:
    """Writes nothing itself: the marks are made with the people. It stands behind the people's sink and only wakes."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Nothing must exist before the transaction."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        """Nothing to write."""

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        if any(row.event.kind == "capture" for row in (*survivors, *refused)):  # a copy may have corrected a person
            self._keeper.poke()
