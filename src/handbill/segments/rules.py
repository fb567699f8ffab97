"""Rules over people as operators write them, read into a tree with every fault named by its place.

A rule is an object; all of its entries must hold. `all`, `any` and `not` nest; every other entry asks one thing:

    {"person.plan": ["pro", "team"], "person.seats": {"op": "gte", "value": 5},
     "created": {"within_days": 30}, "not": {"segment": "0190163d-8694-739b-aea5-966c26f8ad91"}}

A tree is held against one person in Python, and against a million by its jsonpath in PostgreSQL; both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.kit.bounds import RULE_DEPTH
from handbill.kit.clock import to_ms
from handbill.kit.errors import Fault
from handbill.segments.values import (
    LIST_MAX,
    TEXT_MAX,
    Condition,
    as_id,
    condition,
    flat,
    path,
    property_name,
    said,
    test,
)

CONDITIONS_MAX = 100
WHOLE_MAX = 500
"""Conditions of a rule together with those of the segments it names."""
DAY_MS = 86_400_000
PREFIX = "person."


class Person(msgspec.Struct, frozen=True):
    """What rules know of somebody. `created` is in milliseconds."""

    properties: Mapping[str, Any]
    created: int = 0
    ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Leaf:
    """`spans` are ages, in ms, at which the answer changes by itself; `ids`: it asks for the person's ids."""

    text: str
    path: str
    holds: Callable[[Person, int], bool]
    spans: tuple[int, ...] = ()
    ids: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """All of them, or any of them."""

    every: bool
    nodes: tuple[Node, ...]

    @property
    def text(self) -> str:
        return _joined([_wrapped(node) for node in self.nodes], " and " if self.every else " or ", self.every)

    @property
    def path(self) -> str:
        if not self.nodes:
            return "1 == 1" if self.every else "1 == 0"
        return (" && " if self.every else " || ").join(f"({node.path})" for node in self.nodes)

    def holds(self, person: Person, now_ms: int) -> bool:
        return (all if self.every else any)(node.holds(person, now_ms) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Not:
    node: Node

    @property
    def text(self) -> str:
        return f"not {_wrapped(self.node)}"

    @property
    def path(self) -> str:
        return f"!({self.node.path})"

    def holds(self, person: Person, now_ms: int) -> bool:
        return not self.node.holds(person, now_ms)


Node = Leaf | Group | Not


def leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Not):
        yield from leaves(node.node)
    else:
        for each in node.nodes:
            yield from leaves(each)


def failed(node: Node, person: Person, now_ms: int) -> Node | None:
    """The first part that must hold and does not."""
    if isinstance(node, Group) and node.every:
        return next((found for each in node.nodes if (found := failed(each, person, now_ms))), None)
    return None if node.holds(person, now_ms) else node


def read(rule: Any, others: Mapping[UUID, Any], *, at: str = "rule", own: UUID | None = None) -> tuple[Node, Reader]:
    """The tree of a rule and who read it: with `faults`, the tree is for nobody. `others` are the tenant's segments."""
    reader = Reader(others, own)
    node = reader.rule(rule, at, 1)
    return (_NOBODY if reader.faults else node), reader


class Reader:
    def __init__(self, others: Mapping[UUID, Any], own: UUID | None) -> None:
        self.faults: list[Fault] = []
        self.unknown: set[str] = set()
        """Segments that are named and not there."""
        self.named: set[UUID] = set()
        """Segments the rule itself names."""
        self._others = others
        self._inside: list[UUID] = [own] if own is not None else []
        self._own = len(self._inside)
        self._conditions = 0
        self._whole = 0

    def rule(self, rule: Any, at: str, depth: int) -> Node:
        if not isinstance(rule, dict):
            return self._wrong(at, "must be an object of conditions")
        if depth > RULE_DEPTH:
            return self._wrong(at, f"is nested deeper than {RULE_DEPTH}")
        found = tuple(self._entry(str(name), value, f"{at}.{name}", depth) for name, value in rule.items())
        return found[0] if len(found) == 1 else Group(True, found)

    def _entry(self, name: str, value: Any, at: str, depth: int) -> Node:
        if name in ("all", "any"):
            if not isinstance(value, list) or not 1 <= len(value) <= LIST_MAX:
                return self._wrong(at, "must be a list of rules, with at least one")
            inner = tuple(self.rule(each, f"{at}[{place}]", depth + 1) for place, each in enumerate(value))
            return Group(name == "all", inner)
        if name == "not":
            return Not(self.rule(value, at, depth + 1))
        if not self._room(at):
            return _NOBODY
        if name.startswith(PREFIX):
            return self._property(name[len(PREFIX) :], value, at)
        known = {"distinct_id": self._ids, "created": self._created, "segment": self._segments}.get(name)
        if known is None:
            return self._wrong(at, "is none of all, any, not, person.NAME, segment, created, distinct_id")
        return known(value, at)

    def _room(self, at: str) -> bool:
        """Whether one more condition may stand here."""
        self._whole += 1
        if self._whole == WHOLE_MAX + 1:
            self._wrong(at, f"makes more than {WHOLE_MAX} conditions with those of the segments it names")
        if len(self._inside) == self._own:
            self._conditions += 1
            if self._conditions == CONDITIONS_MAX + 1:
                self._wrong(at, f"is one condition too many: at most {CONDITIONS_MAX}")
        return self._whole <= WHOLE_MAX

    # --- conditions

    def _property(self, name: str, value: Any, at: str) -> Node:
        wrong = property_name(name)
        if wrong is not None:
            return self._wrong(at, wrong)
        wanted = condition(value)
        if isinstance(wanted, str):
            return self._wrong(at, wanted)
        if wanted.op == "missing":
            return Not(_of_property(name, Condition("exists")))
        return _of_property(name, wanted)

    def _ids(self, value: Any, at: str) -> Node:
        wanted = value if isinstance(value, list) else [value]
        if not 1 <= len(wanted) <= LIST_MAX or not all(isinstance(each, str) for each in wanted):
            return self._wrong(at, f"must be an id, or a list of 1 to {LIST_MAX}")
        if any(not 1 <= len(each) <= TEXT_MAX or property_name(each[:200]) for each in wanted):
            return self._wrong(at, f"must be ids of 1 to {TEXT_MAX} characters")
        chosen = frozenset(wanted)
        equal = " || ".join(f"@ == {said(each)}" for each in sorted(chosen))
        words = ", ".join(sorted(chosen)[:5])
        return Leaf(
            f"has the id {words}", f"exists($.i[*] ? ({equal}))", lambda person, _: not chosen.isdisjoint(person.ids),
            ids=True,
        )  # fmt: skip

    def _created(self, value: Any, at: str) -> Node:
        if not isinstance(value, dict) or not value or not set(value) <= set(_CREATED):
            return self._wrong(at, f"must be an object with {', '.join(_CREATED)}")
        return Group(True, tuple(self._moment(name, each, f"{at}.{name}") for name, each in value.items()))

    def _moment(self, name: str, value: Any, at: str) -> Node:
        if name in ("within_days", "older_than_days"):
            good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 36_500
            return _aged(name, round(value * DAY_MS)) if good else self._wrong(at, "must be days, up to 36,500")
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) and len(value) <= 40 else None
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None or not 1970 <= moment.year <= 9998:
            return self._wrong(at, "must be a time with its zone, like 2026-04-01T00:00:00Z")
        ms = to_ms(moment)
        if name == "after":
            return Leaf(f"created from {value} on", f"$.c >= {ms}", lambda person, _: person.created >= ms)
        return Leaf(f"created before {value}", f"$.c < {ms}", lambda person, _: person.created < ms)

    def _segments(self, value: Any, at: str) -> Node:
        wanted = value if isinstance(value, list) else [value]
        if not 1 <= len(wanted) <= 20:
            return self._wrong(at, "must be the id of a segment, or a list of 1 to 20")
        return Group(False, tuple(self._segment(each, at) for each in wanted))

    def _segment(self, value: Any, at: str) -> Node:
        segment = as_id(value)
        if segment is None or (segment not in self._others and segment not in self._inside):
            self.unknown.add(str(value)[:100])
            return self._wrong(at, f"{str(value)[:100]} names no segment of yours")
        if len(self._inside) == self._own:
            self.named.add(segment)
        if segment in self._inside:
            return self._wrong(at, f"{segment} leads back to itself")
        if self._whole > WHOLE_MAX:
            return _NOBODY
        self._inside.append(segment)
        inner = self.rule(self._others[segment], at, 1)
        self._inside.pop()
        return inner

    def _wrong(self, at: str, reason: str) -> Node:
        self.faults.append(Fault(at, reason))
        return _NOBODY


_CREATED = ("after", "before", "within_days", "older_than_days")
_NOBODY = Group(False, ())


def _of_property(name: str, wanted: Condition) -> Leaf:
    passes = test(wanted)

    def holds(person: Person, _: int) -> bool:
        value = person.properties.get(name)
        return value is not None and passes(flat(value))

    return Leaf(f"{PREFIX}{name} {wanted.text}", path(f"$.p.{said(name)}", wanted), holds)


def _aged(name: str, span: int) -> Leaf:
    days = f"{span / DAY_MS:g} days"
    if name == "within_days":
        return Leaf(
            f"created within {days}", f"$.c > $now - {span}", lambda person, now: person.created > now - span, (span,)
        )
    return Leaf(
        f"created more than {days} ago", f"$.c <= $now - {span}", lambda person, now: person.created <= now - span,
        (span,),
    )  # fmt: skip


def _wrapped(node: Node) -> str:
    return f"({node.text})" if isinstance(node, Group) and len(node.nodes) > 1 else node.text


def _joined(parts: list[str], word: str, every: bool) -> str:
    return word.join(parts) or ("everybody" if every else "nobody")
