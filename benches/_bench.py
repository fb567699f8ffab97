"""The frame of every bench: options, rounds, the check of its own result, and the one JSON line at the end.

    async def body(options: Options) -> Result: ...

    if __name__ == "__main__":
        main("hello", body)

Rounds alternate between the value and its limit, so that a machine that warms up or slows down treats both alike; the
median of the rounds counts. A bench whose own result is wrong raises Wrong and exits with 1: a fast wrong answer has
no speed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 3


class Wrong(Exception):
    """The bench did not get the result it must get; its speed means nothing."""


@dataclass(frozen=True)
class Options:
    """`quick`: preloads scaled down, under a minute in all."""

    quick: bool = False

    def scaled(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Result:
    """`ratio` is value / limit. `detail` says what was sent, what was there before, and every further figure."""

    value: float
    unit: str
    limit: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.value / self.limit if self.limit else 0.0


@dataclass(frozen=True)
class Rounds:
    """Medians of alternating rounds, and the rounds themselves for the detail."""

    value: float
    limit: float
    values: list[float]
    limits: list[float]

    def detail(self) -> dict[str, list[float]]:
        return {"rounds": [rounded(v) for v in self.values], "limit_rounds": [rounded(v) for v in self.limits]}


Measure = Callable[[], Awaitable[float]]


async def alternating(value: Measure, limit: Measure, rounds: int = ROUNDS) -> Rounds:
    """value, limit, limit, value, value, limit: neither always comes first."""
    values: list[float] = []
    limits: list[float] = []
    for number in range(rounds):
        pair = [(value, values), (limit, limits)]
        for measure, into in pair if number % 2 == 0 else reversed(pair):
            into.append(await measure())
    return Rounds(statistics.median(values), statistics.median(limits), values, limits)


def require(truth: bool, what: str) -> None:
    """The bench's check of its own result."""
    if not truth:
        raise Wrong(what)


def say(text: str) -> None:
    """Progress goes to stderr: stdout ends with the JSON line."""
    print(text, file=sys.stderr, flush=True)


def rounded(number: float) -> float:
    """Four figures are more than two shared cores can promise."""
    return float(f"{number:.4g}")


def line(name: str, result: Result, options: Options) -> str:
    return json.dumps(
        {
            "bench": name,
            "value": rounded(result.value),
            "unit": result.unit,
            "limit": rounded(result.limit),
            "ratio": rounded(result.ratio),
            "detail": {"quick": options.quick, **result.detail},
        }
    )


def main(name: str, body: Callable[[Options], Coroutine[Any, Any, Result]]) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benches.{name.replace('-', '_')}")
    parser.add_argument("--quick", action="store_true", help="preloads scaled down; under a minute")
    chosen = Options(quick=parser.parse_args().quick)
    try:
        result = asyncio.run(body(chosen))
    except Wrong as error:
        say(f"{name}: the result is wrong: {error}")
        sys.exit(1)
    print(line(name, result, chosen), flush=True)
