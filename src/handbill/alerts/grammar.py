"""The small language of alert conditions. PromQL (promql.py) and our own evaluation (evaluation.py) are derived of it.

A value is a number per group of labels. A test compares values and says which groups are in trouble.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""The labels of one group, sorted by name; empty for "all together"."""
Operator: TypeAlias = Literal[">", ">=", "<", "<=", "=="]
Aggregation: TypeAlias = Literal["max", "min", "sum"]


class Match(msgspec.Struct, frozen=True):
    """A label must equal a value (or, with `=~` and `!~`, match a regular expression as a whole)."""

    label: str
    operator: Literal["=", "!=", "=~", "!~"]
    value: str


class Latest(msgspec.Struct, frozen=True, tag=True):
    """The last value of a gauge, aggregated over the processes and by labels.

    `absent` is the value where there is no such series; without it there is no group then.
    """

    metric: str
    aggregation: Aggregation = "max"
    by: tuple[str, ...] = ()
    match: tuple[Match, ...] = ()
    absent: float | None = None


class Increase(msgspec.Struct, frozen=True, tag=True):
    """How much a counter grew within a window, summed by labels; a restart of its process is no loss.

    A series that appears at a process that was seen before has grown from 0.
    """

    metric: str
    window_s: int
    by: tuple[str, ...] = ()
    match: tuple[Match, ...] = ()


class Ratio(msgspec.Struct, frozen=True, tag=True):
    """One increase divided by another. Where the lower one is 0 there is no value."""

    numerator: Increase
    denominator: Increase

    @property
    def by(self) -> tuple[str, ...]:
        return self.numerator.by


class Quantile(msgspec.Struct, frozen=True, tag=True):
    """A quantile of a histogram's observations within a window, interpolated as Prometheus does."""

    metric: str
    quantile: float
    window_s: int
    match: tuple[Match, ...] = ()

    @property
    def by(self) -> tuple[str, ...]:
        return ()


class SecondsSince(msgspec.Struct, frozen=True, tag=True):
    """How long ago the time in a gauge (seconds since 1970) was; negative for a time that is still to come."""

    timestamp: Latest

    @property
    def by(self) -> tuple[str, ...]:
        return self.timestamp.by


Value: TypeAlias = Latest | Increase | Ratio | Quantile | SecondsSince


class Compare(msgspec.Struct, frozen=True, tag=True):
    """True for the groups whose value compares like this with a number, or with another value of the same group."""

    left: Value
    operator: Operator
    right: float | Increase

    @property
    def by(self) -> tuple[str, ...]:
        return self.left.by


class Both(msgspec.Struct, frozen=True, tag=True):
    """True for the groups for which both are; the value is that of the first."""

    first: Compare
    second: Compare

    @property
    def by(self) -> tuple[str, ...]:
        return self.first.by


class Unless(msgspec.Struct, frozen=True, tag=True):
    """True for the groups of the first for which none of the exceptions is."""

    first: Compare
    exceptions: tuple[Compare, ...]

    @property
    def by(self) -> tuple[str, ...]:
        return self.first.by


class Absent(msgspec.Struct, frozen=True, tag=True):
    """True where there is no such series at all."""

    metric: str
    match: tuple[Match, ...]

    @property
    def by(self) -> tuple[str, ...]:
        return ()


Test: TypeAlias = Compare | Both | Unless | Absent


def comparisons(test: Test) -> tuple[Compare, ...]:
    """Every comparison in a test."""
    match test:
        case Compare():
            return (test,)
        case Both():
            return (test.first, test.second)
        case Unless():
            return (test.first, *test.exceptions)
        case Absent():
            return ()


def values(test: Test) -> tuple[Value, ...]:
    """Every value that a test compares."""
    found: list[Value] = []
    for one in comparisons(test):
        found.append(one.left)
        if isinstance(one.right, Increase):
            found.append(one.right)
    return tuple(found)


def metrics(test: Test) -> frozenset[str]:
    """The names of all series that a test reads."""
    if isinstance(test, Absent):
        return frozenset((test.metric,))
    return frozenset(name for value in values(test) for name in _value_metrics(value))


def _value_metrics(value: Value) -> tuple[str, ...]:
    match value:
        case Ratio():
            return (value.numerator.metric, value.denominator.metric)
        case Quantile():
            return (f"{value.metric}_bucket",)
        case SecondsSince():
            return (value.timestamp.metric,)
        case Latest() | Increase():
            return (value.metric,)


def window_s(test: Test) -> int:
    """The longest window of a test: for so long it remembers what is over."""
    return max((_value_window(value) for value in values(test)), default=0)


def _value_window(value: Value) -> int:
    match value:
        case Increase() | Quantile():
            return value.window_s
        case Ratio():
            return max(value.numerator.window_s, value.denominator.window_s)
        case Latest() | SecondsSince():
            return 0
