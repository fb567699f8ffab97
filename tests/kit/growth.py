"""Whether the CPU time of a call grows faster than its input. Only the CPU of this thread counts.

What else the machine does costs CPU too: caches are lost, a core is shared. It comes and goes in waves that are longer
than a measurement. So sizes are measured in turn, round after round, and the least of each is compared: it only falls
towards the true cost, while a quadratic call stays at four times as much however often it is measured.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
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
LEAST_ROUNDS, MOST_ROUNDS = 3, 25
LARGEST_BLOCK = 31 << 20
"""glibc asks the kernel for each block above a threshold, and that raises the threshold up to 32 MB when one is
freed. Sizes on both sides of it would differ by the kernel's page faults as well: 2.6 times as much was seen."""


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
            size = min(size, limit // 2)
    except TooSlow:
        return f"takes more than {BUDGET_S:g} s of CPU at a size of about {size}"
    once, twice = make(size), make(2 * size)
    wrong = doubling([lambda: call(once), lambda: call(twice)])
    return wrong and f"{size} and {2 * size}: {wrong}"


def doubling(calls: Sequence[Callable[[], object]], slack_s: float = CHEAP_S) -> str | None:
    """What is wrong with the growth of calls whose input doubles from each to the next, or None."""
    least = [float("inf")] * len(calls)
    bytes(LARGEST_BLOCK)
    for done in range(1, MOST_ROUNDS + 1):
        for place, call in enumerate(calls):
            try:
                with _budget():
                    least[place] = min(least[place], _cpu(lambda call: call(), call, runs=1))
            except TooSlow:
                return f"input {place} takes more than {BUDGET_S:g} s of CPU"
        pairs = list(itertools.pairwise(least))
        if done >= LEAST_ROUNDS and all(twice <= RATIO * once + slack_s for once, twice in pairs):
            return None
    return ", ".join(f"{spent * 1e3:.2f} ms" for spent in least)


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
