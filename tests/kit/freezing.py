"""Freezing an engine: its processes exist, its connections stay open, and nothing is answered."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP for the process and all its children, from the top, so that it makes no new ones; SIGCONT at the end."""
    stopped: list[int] = []
    try:
        _send(pid, signal.SIGSTOP, stopped)
        for child in children_of(pid):
            _send(child, signal.SIGSTOP, stopped)
        yield
    finally:
        for each in reversed(stopped):
            _send(each, signal.SIGCONT, [])


def children_of(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, wanted = [], [pid]
    while wanted:
        below = parents.get(wanted.pop(), [])
        found += below
        wanted += below
    return found


def _send(pid: int, number: int, done: list[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        done.append(pid)
