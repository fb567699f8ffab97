"""`python -m tests.kit.show_process BOARD SLOT SKEW_S -- <handbill args>`: the product by the board's clock.

Only the shared clock is replaced, the one that Redis sets in real life; the machine's own clock is set wrong by SKEW_S
seconds, so that a decision that looked at it would be seen. A worker waits with its commits while the board says so.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.show_board import Board


def install(board: Board, slot: int, skew_s: int) -> None:
    from handbill.banners.catalogue import Catalogue, Snapshot
    from handbill.caps.sink import CapsSink
    from handbill.events.pipeline.commit import Commit
    from handbill.infra.redis.shared_clock import SharedClock

    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + skew_s
    time.time_ns = lambda: wall_ns() + skew_s * 1_000_000_000
    SharedClock.now_ms = lambda self: board.now_ms  # type: ignore[method-assign]
    swap, commit, project = Catalogue._swap, Commit.__call__, CapsSink.project

    def told_swap(self: Catalogue, snapshot: Snapshot) -> None:
        swap(self, snapshot)
        if snapshot.tenant_id == board.tenant:
            board.tell_version(slot, self.tenant(snapshot.tenant_id).version)

    async def held_commit(self: Commit, batch: Any) -> Any:
        while board.hold:
            await asyncio.sleep(0.005)  # sleeps: in the product's process, while the test holds it
        return await commit(self, batch)

    async def told_project(self: CapsSink, survivors: Sequence[Any], refused: Sequence[Any]) -> None:
        await project(self, survivors, refused)
        mine = [row for row in (*survivors, *refused) if row.event.kind == "view" and row.event.tenant == board.tenant]
        board.projected += len(mine)

    Catalogue._swap = told_swap  # type: ignore[method-assign]
    Commit.__call__ = held_commit  # type: ignore[method-assign]
    CapsSink.project = told_project  # type: ignore[method-assign]


def main() -> None:
    place, slot, skew_s, dashes, *args = sys.argv[1:]
    assert dashes == "--"
    install(Board(Path(place)), int(slot), int(skew_s))

    from handbill.cli import main as handbill

    sys.argv = ["handbill", *args]
    handbill()


if __name__ == "__main__":
    main()
