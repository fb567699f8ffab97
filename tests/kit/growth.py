"""Whether the CPU time of a call grows faster than its input. Only the CPU of this thread counts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

RATIO = 2.5
"""Twice the input may take this much more; a quadratic call takes 4."""
CHEAP_S = 0.001
"""What takes less at the limit of its input is fast enough, however it grows."""
FLOOR_S = 0.005
"""What is compared takes at least this long, or the difference is noise."""
SCREEN = 1 << 14
"""Sizes grow up to here: a quadratic call is above the floor by then."""
BUDGET_S = 1.5
"""One measurement that takes longer is not linear at any size used here."""


class TooSlow(Exception):
    """One call took BUDGET_S."""


def growth(make: Callable[[int], T], call: Callable[[T], object], limit: int) -> str | None:
    """What is wrong with the growth of `call(make(size))` for sizes up to `limit`, or None."""
    size = 128
    try:
        with _budget():
            while (spent := _cpu(call, make(size), runs=1)) < FLOOR_S and size < min(limit, SCREEN):
                size = min(2 * size, limit)
            if spent < (CHEAP_S if size == limit else FLOOR_S):
                return None
            return _compared(make, call, min(size, limit // 2), limit)
    except TooSlow:
        return f"takes more than {BUDGET_S:g} s of CPU at a size of about {size}"


def _compared(make: Callable[[int], T], call: Callable[[T], object], size: int, limit: int) -> str | None:
    """Two sizes in a row must fail: one may be a disturbance of the machine."""
    seen = []
    for _ in range(2):
        once, twice = _cpu(call, make(size), runs=3), _cpu(call, make(2 * size), runs=3)
        seen.append(f"{size}: {once * 1e3:.2f} ms, {2 * size}: {twice * 1e3:.2f} ms")
        if twice <= RATIO * once or twice < CHEAP_S:
            return None
        size = min(2 * size, limit // 2)
    return "; ".join(seen)


def _cpu(call: Callable[[T], object], value: T, runs: int) -> float:
    best = float("inf")
    for _ in range(runs):
        begin = time.thread_time()
        call(value)
        best = min(best, time.thread_time() - begin)
    return best


@contextmanager
def _budget() -> Iterator[None]:
    """A signal by CPU time ends even a pattern that would run for years: the engine looks at signals now and then."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, BUDGET_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
