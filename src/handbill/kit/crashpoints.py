"""Named moments at which a process may die. Adapters report each one; only a crash test listens.

Every await on an engine passes `before:NAME` and `after:NAME`. In production the hook is None and a point costs
one comparison. The tests install a hook that counts the points of a run, prints their number, and kills the process
at the n-th.
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str], None]

hook: Hook | None = None


def install(new: Hook | None) -> None:
    global hook
    hook = new


def reached(name: str) -> None:
    if hook is not None:
        hook(name)
