"""One chunk within limits: rows that take too long or too much memory are isolated by halving, and rejected.

The process that exceeds a limit is ended by the pool, so a chunk costs its own process and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from handbill.contacts import parse, reasons
from handbill.jobs.model import CpuLimitExceeded

Cpu = Callable[..., Awaitable[Any]]
"""Runs a plain function of plain values in another process; `cpu_s` limits its CPU time."""

LEAST_S = 1.0
BUDGET, BUDGET_S = 2, 20 * LEAST_S
"""CPU time that halving one chunk may cost: twice its limit, and some seconds. Then a half that fails is rejected."""


async def parse_within_limits(cpu: Cpu, task: parse.Task, rows: int, cpu_s: float) -> tuple[parse.Parsed, int]:
    """The parsed chunk, and how many times a limit was exceeded.

    Each half has half of the limit. Raises CpuLimitExceeded if not even the ends of the records are found in time.
    """
    waiting = [(range(task.first, task.first + rows), cpu_s)]
    done: list[parse.Parsed] = []
    spent, exceeded = 0.0, 0
    while waiting:
        part, limit = waiting.pop()
        try:
            done.append(await cpu(parse.parse, task, part, cpu_s=limit))
        except CpuLimitExceeded:
            spent += limit
            exceeded += 1
            if len(part) <= 1 or spent >= BUDGET * cpu_s + BUDGET_S:
                done.append(await cpu(parse.parse, task, part, reasons.TOO_SLOW, cpu_s=cpu_s))
                continue
            middle, half = part.start + len(part) // 2, max(limit / 2, LEAST_S)
            waiting += [(range(middle, part.stop), half), (range(part.start, middle), half)]
    return joined(done), exceeded


def joined(parts: list[parse.Parsed]) -> parse.Parsed:
    """The results of several ranges of rows as one."""
    if len(parts) == 1:
        return parts[0]
    repairs: Counter[str] = Counter()
    for part in parts:
        repairs.update(part.repairs)
    return parse.Parsed(
        b"".join(part.staged for part in parts),
        b"".join(part.found for part in parts),
        sum(part.rows for part in parts),
        sum(part.valid for part in parts),
        sum(part.rejected for part in parts),
        sum(part.blank for part in parts),
        sum(part.noted for part in parts),
        dict(repairs),
    )
