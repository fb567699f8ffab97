"""When the segments look at changed people: behind every batch that may have changed one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from handbill.events.model import CapturedEvent, Impression, Row
from handbill.segments.keeper import Keeper
from handbill.segments.sink import SegmentsSink

EVENT = Row(0, b"", CapturedEvent(1, "e", 1, 1, "see", "ann", "own"), b"")
VIEWED = Row(0, b"", Impression(1, "i", 1, 1, 1), b"")


class Woken(Keeper):
    def __init__(self) -> None:
        self.pokes = 0

    def poke(self) -> None:
        self.pokes += 1


@pytest.mark.parametrize(
    ("survivors", "refused", "pokes"),
    [([EVENT], [], 1), ([VIEWED], [EVENT], 1), ([], [EVENT], 1), ([VIEWED], [VIEWED], 0), ([], [], 0)],
)
async def test_a_batch_of_product_events_wakes_them_also_one_of_copies(
    survivors: Sequence[Row], refused: Sequence[Row], pokes: int
) -> None:
    """A copy may give its event a smaller sequence, and so change a person."""
    keeper = Woken()
    await SegmentsSink(keeper).project(survivors, refused)
    assert keeper.pokes == pokes
