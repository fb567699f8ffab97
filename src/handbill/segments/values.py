"""What can be asked of one property of a person. Each operator is said twice: for Python and for PostgreSQL's jsonpath.

A list stands for its elements: `tags is "vip"` holds when one of them is. Kinds stay apart: 1, "1" and true differ. A
property that is absent or null passes no operator but `missing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

LIST_MAX = 500
TEXT_MAX = 300
NAME_MAX = 200
Flat = tuple[Any, ...]
"""A property as the tests read it: its one value, or the elements of its list. Truth values are wrapped."""


class Condition(msgspec.Struct, frozen=True):
    """An operator with its value, checked."""

    op: str
    value: Any = None

    @property
    def text(self) -> str:
        return self.op if self.value is None else f"{self.op} {said(self.value)}"


def flat(value: Any) -> Flat:
    """Objects and lists inside of lists are there, but nothing equals them."""
    if isinstance(value, list | tuple):
        return tuple(kept(each) for each in value if _scalar(each) is None)
    return (kept(value),) if _scalar(value) is None else ()


def kept(value: Any) -> Any:
    """A value that is equal only to its own kind: Python takes True for 1."""
    return (value,) if isinstance(value, bool) else value


def said(value: Any) -> str:
    """As JSON writes it: a rule's words are also its identity."""
    return msgspec.json.encode(value).decode()


def condition(value: Any) -> Condition | str:
    """A value, a list of values or {"op", "value"} as a condition; or what is wrong with it, in words."""
    if isinstance(value, list):
        value = {"op": "in", "value": value}
    elif not isinstance(value, dict):
        value = {"op": "eq", "value": value}
    if "op" not in value or not set(value) <= {"op", "value"}:
        return 'must be a value, a list of values, or {"op": ..., "value": ...}'
    op, wanted = value["op"], value.get("value")
    if not isinstance(op, str) or op not in OPERATORS:
        return f"has an op that is not one of {', '.join(OPERATORS)}"
    wrong = OPERATORS[op][0](wanted)
    return wrong if wrong is not None else Condition(op, wanted)


def property_name(name: str) -> str | None:
    """What is wrong with a property's name, or None."""
    if not 1 <= len(name) <= NAME_MAX or not _writable(name):
        return f"must name a property, of 1 to {NAME_MAX} characters"
    return None


def as_id(value: Any) -> UUID | None:
    """A segment's id as a rule writes it."""
    if not isinstance(value, str) or len(value) != 36:
        return None
    try:
        return UUID(value)
    except ValueError:
        return None


def test(wanted: Condition) -> Callable[[Flat], bool]:
    """The condition for a property that is there."""
    made: Callable[[Flat], bool] = OPERATORS[wanted.op][1](wanted.value)
    return made


def path(place: str, wanted: Condition) -> str:
    """The same as a jsonpath predicate that is true or false, never unknown. `place` leads to the property."""
    there = f'{place}.type() != "null"'
    if wanted.op == "exists":
        return there
    predicate = OPERATORS[wanted.op][2](wanted.value)
    some = f'exists({place} ? (@.type() != "array" && ({predicate})))'
    return f"({there} && !{some})" if wanted.op in ("ne", "not_in") else some


# --- what a rule may give

_WORDS = f"must be a text of 1 to {TEXT_MAX} characters"


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool | int | float | str):
        return None
    return "must be a text, a number, or true or false"


def _one(value: Any) -> str | None:
    if isinstance(value, str):
        return None if len(value) <= TEXT_MAX and _writable(value) else f"must have at most {TEXT_MAX} characters"
    return None if isinstance(value, bool) else _number(value)


def _several(value: Any) -> str | None:
    if not isinstance(value, list) or not 1 <= len(value) <= LIST_MAX:
        return f"must be a list of 1 to {LIST_MAX} values"
    return next((wrong for each in value if (wrong := _one(each))), None)


def _number(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and value == value
    return None if good else "must be a text, a number, or true or false"


def _amount(value: Any) -> str | None:
    return "must be a number" if _number(value) else None


def _span(value: Any) -> str | None:
    good = isinstance(value, list) and len(value) == 2 and not any(map(_number, value)) and value[0] <= value[1]
    return None if good else "must be two numbers, the smaller first"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and 1 <= len(value) <= TEXT_MAX and _writable(value) else _WORDS


def _nothing(value: Any) -> str | None:
    return None if value is None else "must not be given"


def _writable(text: str) -> bool:
    """No zero character and no half one: neither fits a database."""
    return "\0" not in text and not any("\ud800" <= sign <= "\udfff" for sign in text)


# --- how it is tested


def _any(passes: Callable[[Any, Any], bool]) -> Callable[[Any], Callable[[Flat], bool]]:
    return lambda wanted: lambda values: any(passes(value, wanted) for value in values)


def _numeric(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Callable[[Flat], bool]]:
    return _any(lambda value, wanted: isinstance(value, int | float) and compare(value, wanted))


def _textual(compare: Callable[[str, str], bool]) -> Callable[[Any], Callable[[Flat], bool]]:
    return _any(lambda value, wanted: isinstance(value, str) and compare(value, wanted))


def _member(wanted: list[Any]) -> Callable[[Flat], bool]:
    chosen = frozenset(map(kept, wanted))
    return lambda values: not chosen.isdisjoint(values)


def _stranger(wanted: list[Any]) -> Callable[[Flat], bool]:
    chosen = frozenset(map(kept, wanted))
    return chosen.isdisjoint


def _equals(wanted: list[Any]) -> str:
    return " || ".join(f"@ == {said(each)}" for each in wanted)


_Wrong = Callable[[Any], str | None]
_Test = Callable[[Any], Callable[[Flat], bool]]
_Path = Callable[[Any], str]
OPERATORS: dict[str, tuple[_Wrong, _Test, _Path]] = {
    "eq": (_one, lambda wanted: _member([wanted]), lambda wanted: _equals([wanted])),
    "ne": (_one, lambda wanted: _stranger([wanted]), lambda wanted: _equals([wanted])),
    "in": (_several, _member, _equals),
    "not_in": (_several, _stranger, _equals),
    "gt": (_amount, _numeric(lambda value, wanted: value > wanted), lambda wanted: f"@ > {said(wanted)}"),
    "gte": (_amount, _numeric(lambda value, wanted: value >= wanted), lambda wanted: f"@ >= {said(wanted)}"),
    "lt": (_amount, _numeric(lambda value, wanted: value < wanted), lambda wanted: f"@ < {said(wanted)}"),
    "lte": (_amount, _numeric(lambda value, wanted: value <= wanted), lambda wanted: f"@ <= {said(wanted)}"),
    "between": (
        _span,
        _numeric(lambda value, wanted: wanted[0] <= value <= wanted[1]),
        lambda wanted: f"@ >= {said(wanted[0])} && @ <= {said(wanted[1])}",
    ),
    "contains": (
        _text,
        _textual(lambda value, wanted: wanted in value),
        lambda wanted: f'@ like_regex {said(wanted)} flag "q"',
    ),
    "starts_with": (
        _text,
        _textual(lambda value, wanted: value.startswith(wanted)),
        lambda wanted: f"@ starts with {said(wanted)}",
    ),
    "exists": (_nothing, lambda _: lambda values: True, lambda _: ""),
    "missing": (_nothing, lambda _: lambda values: False, lambda _: ""),
}
"""By name: what is wrong with a value, the test, the jsonpath. Readers turn `missing` into the reverse of `exists`."""
