"""Files that take for ever to read: functions for the pool of processes that spin where the file holds a mark."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from handbill.contacts import parse, understand
from handbill.contacts.model import Plan
from handbill.contacts.sources import Bounds
from handbill.jobs.worker import CpuPool

MARK = "spin-for-ever"
EAT, ABORT, WAIT = "eat-memory", "abort-process", "wait-for-ever"
"""What the reader of a head does instead of reading it, if the file holds the mark."""


def spin(path: str) -> None:
    """Use CPU time without end, having left the id of this process beside the file."""
    Path(f"{path}.spinning").write_text(str(os.getpid()))
    while True:
        pass


def allocate(size: int) -> int:
    """More memory than a process may have."""
    return len(bytearray(size))


def process_id(_: object = None) -> int:
    return os.getpid()


def parse_or_spin(task: parse.Task, rows: range, reject: str | None = None) -> parse.Parsed:
    """As `parse.parse`, but a marked row among these never ends, unless it is only to be rejected."""
    for row, (_, original) in enumerate(parse.cells_of(task), task.first):
        if reject is None and row in rows and MARK in original:
            spin(task.path)
    return parse.parse(task, rows, reject)


def propose_or_misbehave(
    path: str, name: str, bounds: Bounds, region: str | None, like: Plan | None, member: str | None
) -> Plan:
    """As `understand.proposal`, but a marked file takes all CPU time, all memory or all time, or ends the process."""
    text = Path(path).read_text()
    Path(f"{path}.process").write_text(str(os.getpid()))
    if MARK in text:
        spin(path)
    if WAIT in text:
        signal.pause()
    if ABORT in text:
        os.abort()
    if EAT in text:
        allocate(4 << 30)
    return understand.proposal(path, name, bounds, region, like, member)


class HeadPool:
    """A pool in which the reader of heads is replaced by the one above."""

    def __init__(self, size: int) -> None:
        self.pool = CpuPool(size, memory_bytes=2 << 30)

    async def run(self, function: Any, *args: Any, cpu_s: float, wall_s: float) -> Any:
        replaced = propose_or_misbehave if function is understand.proposal else function
        return await self.pool.run(replaced, *args, cpu_s=cpu_s, wall_s=wall_s)


class SpinningPool:
    """A pool in which the parser of chunks is replaced by the one above."""

    def __init__(self, size: int) -> None:
        self.pool = CpuPool(size)
        self.limits: list[float | None] = []

    async def run(self, function: Any, *args: Any, cpu_s: float | None = None) -> Any:
        self.limits.append(cpu_s)
        return await self.pool.run(parse_or_spin if function is parse.parse else function, *args, cpu_s=cpu_s)
