"""What the log proves, counted from the log alone: nobody twice, never too fast, never too far. For tests and soaks.

It knows nothing of the limits that let the messages in, and would find them wrong.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from handbill.fake_graph.model import Logged

SHOWN = 100
SECOND_MS = 1_000
DAY_MS = 86_400_000


class Audit(msgspec.Struct, frozen=True):
    """`taken` counts accepted and lost alike: both reached the person. `silent`: the sender was told nothing, or
    nothing that it could trust; so many unknown messages are the server's own fault."""

    taken: int
    silent: int
    refused: dict[str, int]
    twice: int
    twice_examples: tuple[tuple[str, str], ...]
    """(our note, address) of messages that were taken more than once."""
    most_in_a_second: dict[str, int]
    """By number: the fullest second, wherever it began."""
    most_to_one_person: int
    """The most that one pair talked beyond what six seconds each had paid for."""
    most_people_in_a_day: dict[str, int]
    """By portfolio: different people in any 24 hours, answers within the service window left out."""


def audit(log: Sequence[Logged], portfolios: dict[str, str], interval_ms: int = 6_000) -> Audit:
    """`portfolios`: the portfolio of each number."""
    taken = [line for line in log if line.outcome in ("accepted", "lost")]
    copies = Counter((line.opaque, line.to) for line in taken)
    repeated = [key for key, count in copies.items() if count > 1]
    return Audit(
        taken=len(taken),
        silent=sum(line.outcome in ("lost", "dropped") for line in log),
        refused=dict(Counter(str(line.code) for line in log if line.outcome == "refused")),
        twice=sum(copies[key] - 1 for key in repeated),
        twice_examples=tuple(repeated[:SHOWN]),
        most_in_a_second=_fullest_second(taken),
        most_to_one_person=_deepest_debt(taken, interval_ms),
        most_people_in_a_day=_most_people(taken, portfolios),
    )


def _fullest_second(taken: Sequence[Logged]) -> dict[str, int]:
    recent: dict[str, deque[int]] = {}
    most: dict[str, int] = {}
    for line in taken:
        times = recent.setdefault(line.number, deque())
        times.append(line.at_ms)
        while times[0] <= line.at_ms - SECOND_MS:
            times.popleft()
        most[line.number] = max(most.get(line.number, 0), len(times))
    return most


def _deepest_debt(taken: Sequence[Logged], interval_ms: int) -> int:
    """A bucket that fills by one with each message and leaks one per interval: how full it ever was, rounded up."""
    buckets: dict[tuple[str, str], tuple[int, int]] = {}
    deepest = 0
    for line in taken:
        at_ms, level = buckets.get((line.number, line.to), (line.at_ms, 0))
        level = max(level - (line.at_ms - at_ms), 0) + interval_ms
        buckets[(line.number, line.to)] = (line.at_ms, level)
        deepest = max(deepest, level)
    return -(-deepest // interval_ms)


def _most_people(taken: Sequence[Logged], portfolios: dict[str, str]) -> dict[str, int]:
    recent: dict[str, deque[tuple[int, str]]] = {}
    present: dict[str, Counter[str]] = {}
    most: dict[str, int] = {}
    for line in taken:
        if line.answer:
            continue
        portfolio = portfolios.get(line.number, "")
        days, people = recent.setdefault(portfolio, deque()), present.setdefault(portfolio, Counter())
        days.append((line.at_ms, line.to))
        people[line.to] += 1
        while days[0][0] <= line.at_ms - DAY_MS:
            _, gone = days.popleft()
            people[gone] -= 1
            if not people[gone]:
                del people[gone]
        most[portfolio] = max(most.get(portfolio, 0), len(people))
    return most
