"""Long computations on the event loop, cut into turns: others run in between, such as whoever renews a lease."""

from __future__ import annotations

import asyncio

STEPS_PER_TURN = 500
BYTES_PER_TURN = 256 << 10


class Turns:
    """Gives others their turn on the loop after a bounded amount of work, in steps or in bytes."""

    __slots__ = ("_bytes", "_bytes_per_turn", "_steps", "_steps_per_turn")

    def __init__(self, *, steps: int = STEPS_PER_TURN, size: int = BYTES_PER_TURN) -> None:
        self._steps_per_turn = steps
        self._bytes_per_turn = size
        self._steps = self._bytes = 0

    async def count(self, size: int, steps: int = 1) -> None:
        """So much was done just now. Others may run before this returns."""
        self._steps += steps
        self._bytes += size
        if self._steps >= self._steps_per_turn or self._bytes >= self._bytes_per_turn:
            self._steps = self._bytes = 0
            await asyncio.sleep(0)
