"""Who gets how much of a cycle. Pure: numbers in, numbers out.

Every lane is filled evenly, like basins joined by a pipe: a lane that wants little leaves its part to the others, so
nobody waits behind a noisy neighbour and nothing lies idle while somebody has work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def fill(wants: Sequence[int], room: int) -> list[int]:
    """Split `room` over lanes that want at most so much each: evenly, and in order when there is not one for each."""
    got = [0] * len(wants)
    hungry = [index for index, want in enumerate(wants) if want > 0]
    while room > 0 and hungry:
        each = max(1, room // len(hungry))
        still: list[int] = []
        for index in hungry:
            part = min(each, wants[index] - got[index], room)
            got[index] += part
            room -= part
            if got[index] < wants[index]:
                still.append(index)
        hungry = still
    return got


def interleave(lanes: Sequence[Sequence[T]]) -> list[T]:
    """One of each lane in turn, each lane in its own order."""
    longest = max((len(lane) for lane in lanes), default=0)
    return [lane[depth] for depth in range(longest) for lane in lanes if depth < len(lane)]


def window(slots: int, active: int, last: int, *, starved: bool, most: int) -> int:
    """How many jobs may wait in the queue: about twice the slots, more only while the workers outrun the relay."""
    usual = 2 * max(slots, active)
    grown = last * 2 if starved else last // 2
    return max(usual, min(grown, most))
