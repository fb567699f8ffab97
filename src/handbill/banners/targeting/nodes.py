"""A rule as a tree. Each leaf asks one thing about one attribute of the request; a leaf about something that is not
known does not hold, and `not` of it does.

`values` maps an attribute's name to what the request says: strings in lower case (addresses as sent), `moment` as the
minute of the user's week from Monday 00:00, `consent` as a set, `custom:KEY` as sent, `who` as the id that shares of
an audience are drawn by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from handbill.banners.shares import share

Values = Mapping[str, Any]
MINUTES_A_DAY = 1_440
MINUTES_A_WEEK = 7 * MINUTES_A_DAY


@dataclass(frozen=True, slots=True)
class Leaf:
    """`test` gets the attribute's value, never None. `text` is the rule in its own words, and its identity. `cost_us`
    is what patterns take for the worst address; other tests cost next to nothing."""

    attribute: str
    text: str
    test: Callable[[Any], bool]
    cost_us: float = 0.0

    @property
    def attributes(self) -> frozenset[str]:
        return frozenset((self.attribute,))

    def holds(self, values: Values) -> bool:
        value = values.get(self.attribute)
        return value is not None and self.test(value)


@dataclass(frozen=True, slots=True)
class All:
    nodes: tuple[Node, ...]

    @property
    def text(self) -> str:
        return " and ".join(_wrapped(node) for node in self.nodes) or "everybody"

    @property
    def attributes(self) -> frozenset[str]:
        return frozenset().union(*(node.attributes for node in self.nodes))

    @property
    def cost_us(self) -> float:
        return sum(node.cost_us for node in self.nodes)

    def holds(self, values: Values) -> bool:
        return all(node.holds(values) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Any_:
    nodes: tuple[Node, ...]

    @property
    def text(self) -> str:
        return " or ".join(_wrapped(node) for node in self.nodes) or "nobody"

    @property
    def attributes(self) -> frozenset[str]:
        return frozenset().union(*(node.attributes for node in self.nodes))

    @property
    def cost_us(self) -> float:
        return sum(node.cost_us for node in self.nodes)

    def holds(self, values: Values) -> bool:
        return any(node.holds(values) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Not:
    node: Node

    @property
    def text(self) -> str:
        return f"not {_wrapped(self.node)}"

    @property
    def attributes(self) -> frozenset[str]:
        return self.node.attributes

    @property
    def cost_us(self) -> float:
        return self.node.cost_us

    def holds(self, values: Values) -> bool:
        return not self.node.holds(values)


Node = Leaf | All | Any_ | Not


def _wrapped(node: Node) -> str:
    return f"({node.text})" if isinstance(node, All | Any_) else node.text


def clauses(node: Node) -> list[Node]:
    """The parts that must all hold, nested `all`s flattened."""
    if isinstance(node, All):
        return [clause for each in node.nodes for clause in clauses(each)]
    return [node]


# --- the tests of leaves


def one_of(wanted: frozenset[Any]) -> Callable[[Any], bool]:
    return wanted.__contains__


def language(wanted: frozenset[str]) -> Callable[[Any], bool]:
    """`pt` takes every Portuguese, `pt-br` only Brazil's."""
    return lambda value: value in wanted or value.partition("-")[0] in wanted


def any_pattern(patterns: tuple[Callable[[str], bool], ...]) -> Callable[[Any], bool]:
    if len(patterns) == 1:
        return patterns[0]
    return lambda value: any(matches(value) for matches in patterns)


def all_given(wanted: frozenset[str]) -> Callable[[Any], bool]:
    return wanted.issubset


def hours(start: int, end: int) -> Callable[[Any], bool]:
    """From `start` until just before `end`, minutes of the day; over midnight where the end lies before the start."""
    if start < end:
        return lambda moment: start <= moment % MINUTES_A_DAY < end
    return lambda moment: not end <= moment % MINUTES_A_DAY < start


def weekdays(wanted: frozenset[int]) -> Callable[[Any], bool]:
    return lambda moment: moment // MINUTES_A_DAY in wanted


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Whether the user's hour is at least so busy. Its limit can be read, so that it can be explained."""

    level: int

    def __call__(self, value: Any) -> bool:
        return bool(value >= self.level)


def rollout(percent: float, salt: str) -> Callable[[Any], bool]:
    key = salt.encode()
    limit = percent / 100
    return lambda who: share(key, who) < limit
