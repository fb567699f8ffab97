"""Death at a generated crash point. Points are counted in a first run, so none is picked by hand.

In process, for a coroutine: `enumerate_points(attempt, check)` dies at every point in turn.
With a real process: `crashing("worker", at=17, env=...)`, which dies by SIGKILL at its 17th point.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from handbill.kit import crashpoints
from tests.kit.processes import Process, program


class Died(BaseException):
    """The process would be gone here. A BaseException, so that no `except Exception` of the product survives it."""


@contextlib.contextmanager
def dying_at(number: int, only: str = "") -> Iterator[list[str]]:
    """Within the block, raise Died at the number-th crash point (from 1; 0 = never) and at every later one.

    Every later one too: a dead process reaches nothing, and clean-up code must not finish work that a real death
    would have left undone. Yields the list of points seen so far. `only` limits the count to names containing it.
    """
    seen: list[str] = []
    before = crashpoints.hook

    def hook(name: str) -> None:
        if only not in name:
            return
        if number and len(seen) >= number:
            raise Died(f"dead since point {number}")
        seen.append(name)
        if len(seen) == number:
            raise Died(f"point {number}: {name}")

    crashpoints.install(hook)
    try:
        yield seen
    finally:
        crashpoints.install(before)


async def enumerate_points(
    attempt: Callable[[], Awaitable[None]],
    check: Callable[[int, str], Awaitable[None]],
    *,
    only: str = "",
    what: str = "this",
    limit: int = 500,
) -> int:
    """Run `attempt` with a death at point 1, then 2, ... until it gets through alive; after each, run `check`.

    `attempt` must build its own adapters (a dead process leaves broken ones) or tolerate those that Died went through.
    `check(number, name)` recovers and asserts the law. Prints and returns the number of points.
    """
    for number in range(1, limit + 1):
        with dying_at(number, only) as seen:
            with contextlib.suppress(Died):
                await attempt()
            died = len(seen) >= number
        await check(number, seen[-1] if seen else "")
        if not died:
            print(f"crash points of {what}: {number - 1}")
            return number - 1
    raise AssertionError(f"{what} has more than {limit} crash points: it may never end")


def crashing(
    *args: str,
    at: int = 0,
    points: Path | None = None,
    only: str = "",
    env: Mapping[str, str] | None = None,
) -> AbstractAsyncContextManager[Process]:
    """`handbill ARGS` that dies by SIGKILL at its at-th crash point; `points` = a file for their names."""
    options = ["--at", str(at)]
    if points is not None:
        options += ["--count", str(points)]
    if only:
        options += ["--only", only]
    return program(sys.executable, "-m", "tests.kit.crashing", *options, "--", *args, env=env)
