"""Evaluates conditions over metrics pages in memory, as Prometheus would, without extrapolation.

Memory is bounded: the last value of each series that a condition reads, and at most about 60 sums per window and group.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from handbill.alerts.condition import Condition
from handbill.alerts.grammar import (
    Absent,
    Aggregation,
    Both,
    Compare,
    Increase,
    Labels,
    Latest,
    Match,
    Quantile,
    Ratio,
    SecondsSince,
    Test,
    Unless,
    Value,
    values,
)

Groups = Mapping[Labels, float]
_BUCKETS = 60
_FORGET_S = 3_600.0
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}


class Sample(msgspec.Struct, frozen=True):
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Page(msgspec.Struct, frozen=True):
    """What one process reported at one moment; nothing if it did not answer."""

    job: str
    instance: str
    is_up: bool
    samples: Sequence[Sample] = ()

    @property
    def target(self) -> tuple[str, str]:
        return (self.job, self.instance)


class Evaluator:
    """Keeps what the windows of the conditions need; `observe` must be called at growing times."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._conditions = tuple(conditions)
        self._windows: dict[Increase, _Window] = {}
        for condition in self._conditions:
            for value in values(condition.test):
                for increase in _increases(value):
                    self._windows.setdefault(increase, _Window(increase))
        self._seen: set[tuple[str, str]] = set()

    def observe(self, now: float, wall: float, pages: Sequence[Page]) -> dict[str, dict[Labels, float]]:
        """The groups in trouble of each condition, with their values. `now` counts seconds, `wall` is since 1970."""
        series: dict[str, list[tuple[tuple[str, str], Sample]]] = {}
        for page in pages:
            labels = {"job": page.job, "instance": page.instance}
            series.setdefault("up", []).append((page.target, Sample("up", labels, float(page.is_up))))
            for sample in page.samples if page.is_up else ():
                joined = Sample(sample.name, {**sample.labels, **labels}, sample.value)
                series.setdefault(sample.name, []).append((page.target, joined))
        for window in self._windows.values():
            window.observe(now, series.get(window.metric, ()), self._seen)
        self._seen |= {page.target for page in pages if page.is_up}
        moment = _Moment(now, wall, {name: [one for _, one in found] for name, found in series.items()}, self._windows)
        return {one.name: moment.check(one.test) for one in self._conditions}


class _Window:
    """The growth of one counter, by group, within its window."""

    def __init__(self, increase: Increase) -> None:
        self.metric = increase.metric
        self._increase = increase
        self._last: dict[tuple[tuple[str, str], Labels], tuple[float, float]] = {}
        self._sums: dict[Labels, deque[list[float]]] = {}

    def observe(self, now: float, found: Iterable[tuple[tuple[str, str], Sample]], seen: set[tuple[str, str]]) -> None:
        for target, sample in found:
            if math.isnan(sample.value) or not _matches(sample.labels, self._increase.match):
                continue
            key = (target, tuple(sorted(sample.labels.items())))
            last = self._last.get(key)
            self._last[key] = (now, sample.value)
            self._add(now, _group(sample.labels, self._increase.by), _growth(last, sample.value, target in seen))
        forget = now - max(_FORGET_S, self._increase.window_s)
        for gone in [key for key, (when, _) in self._last.items() if when < forget]:
            del self._last[gone]

    def _add(self, now: float, group: Labels, growth: float) -> None:
        """Each sum has the time of its first and of its last growth; it counts until the last one leaves the window."""
        sums = self._sums.setdefault(group, deque())
        if sums and now - sums[-1][0] < self._increase.window_s / _BUCKETS:
            sums[-1][1] = now
            sums[-1][2] += growth
        else:
            sums.append([now, now, growth])

    def groups(self, now: float) -> dict[Labels, float]:
        for group, sums in list(self._sums.items()):
            while sums and sums[0][1] <= now - self._increase.window_s:
                sums.popleft()
            if not sums:
                del self._sums[group]
        grown = {group: math.fsum(one[2] for one in sums) for group, sums in self._sums.items()}
        if not grown and not self._increase.by:
            grown[()] = 0.0
        return grown


def _growth(last: tuple[float, float] | None, value: float, was_seen: bool) -> float:
    """A lower value than the last is a counter that began again at 0, with its process."""
    if last is None:
        return value if was_seen else 0.0
    return value if value < last[1] else value - last[1]


class _Moment:
    """Everything known at one evaluation."""

    def __init__(
        self, now: float, wall: float, series: Mapping[str, Sequence[Sample]], windows: Mapping[Increase, _Window]
    ) -> None:
        self._now = now
        self._wall = wall
        self._series = series
        self._windows = windows

    def check(self, test: Test) -> dict[Labels, float]:
        match test:
            case Compare():
                return self._compare(test)
            case Both():
                second = self._compare(test.second)
                return {group: value for group, value in self._compare(test.first).items() if group in second}
            case Unless():
                excepted = {group for one in test.exceptions for group in self._compare(one)}
                return {group: value for group, value in self._compare(test.first).items() if group not in excepted}
            case Absent():
                found = any(_matches(one.labels, test.match) for one in self._series.get(test.metric, ()))
                return {} if found else {(): 1.0}

    def _compare(self, test: Compare) -> dict[Labels, float]:
        compare = _COMPARE[test.operator]
        left = self._value(test.left)
        if isinstance(test.right, Increase):
            right = self._value(test.right)
            return {group: value for group, value in left.items() if compare(value, right.get(group, 0.0))}
        limit = test.right
        return {group: value for group, value in left.items() if compare(value, limit)}

    def _value(self, value: Value) -> Groups:
        match value:
            case Latest():
                return self._latest(value)
            case Increase():
                return self._windows[value].groups(self._now)
            case Ratio():
                below = self._value(value.denominator)
                above = self._value(value.numerator)
                return {group: above[group] / size for group, size in below.items() if size > 0 and group in above}
            case Quantile():
                grown = self._windows[_buckets_of(value)].groups(self._now)
                found = histogram_quantile(value.quantile, {float(dict(one)["le"]): n for one, n in grown.items()})
                return {} if found is None else {(): found}
            case SecondsSince():
                return {group: self._wall - when for group, when in self._latest(value.timestamp).items()}

    def _latest(self, value: Latest) -> dict[Labels, float]:
        found: dict[Labels, list[float]] = {}
        for sample in self._series.get(value.metric, ()):
            if not math.isnan(sample.value) and _matches(sample.labels, value.match):
                found.setdefault(_group(sample.labels, value.by), []).append(sample.value)
        if not found and value.absent is not None:
            return {(): value.absent}
        return {group: _aggregate(value.aggregation, numbers) for group, numbers in found.items()}


def histogram_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """The quantile of cumulative buckets (upper bound -> count), linear within a bucket; None without observations."""
    bounds = sorted(buckets)
    total = buckets.get(math.inf, 0.0)
    if total <= 0 or len(bounds) < 2:
        return None
    rank = quantile * total
    index = next((place for place, bound in enumerate(bounds) if buckets[bound] >= rank), len(bounds) - 1)
    if bounds[index] == math.inf:
        return bounds[index - 1]
    low, below = (bounds[index - 1], buckets[bounds[index - 1]]) if index else (0.0, 0.0)
    inside = buckets[bounds[index]] - below
    return bounds[index] if inside <= 0 else low + (bounds[index] - low) * (rank - below) / inside


def _aggregate(aggregation: Aggregation, numbers: Sequence[float]) -> float:
    if aggregation == "sum":
        return math.fsum(numbers)
    return max(numbers) if aggregation == "max" else min(numbers)


def _increases(value: Value) -> tuple[Increase, ...]:
    match value:
        case Increase():
            return (value,)
        case Ratio():
            return (value.numerator, value.denominator)
        case Quantile():
            return (_buckets_of(value),)
        case Latest() | SecondsSince():
            return ()


def _buckets_of(value: Quantile) -> Increase:
    return Increase(f"{value.metric}_bucket", value.window_s, ("le",), value.match)


def _group(labels: Mapping[str, str], by: Sequence[str]) -> Labels:
    return tuple(sorted((name, labels[name]) for name in by if name in labels))


def _matches(labels: Mapping[str, str], match: Sequence[Match]) -> bool:
    return all(_matches_one(labels.get(one.label, ""), one) for one in match)


def _matches_one(text: str, match: Match) -> bool:
    if match.operator in ("=", "!="):
        return (text == match.value) == (match.operator == "=")
    return any(fnmatchcase(text, one) for one in _as_wildcards(match.value)) == (match.operator == "=~")


def _as_wildcards(pattern: str) -> list[str]:
    """The alternatives of a pattern. Ours know only `|`, `.` and `.*`, which a test checks."""
    return [one.replace(".*", "*").replace(".", "?") for one in pattern.split("|")]
