"""Operators over a caller's own key-values. Texts, numbers and truth values are kept apart: 1, "1" and true differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LIST_MAX = 500
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class Operator:
    """`wrong` says what is wrong with the value a rule gives, or None; `make` builds the test."""

    wrong: Callable[[Any], str | None]
    make: Callable[[Any], Callable[[Any], bool]]


def custom_test(op: str, wanted: Any) -> Callable[[Any], bool]:
    return OPERATORS[op].make(wanted)


def kept(value: Any) -> Any:
    """A value that is equal only to its own kind: Python takes True for 1."""
    return (value,) if isinstance(value, bool) else value


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _TEXT_MAX):
        return None
    return f"must be a text of at most {_TEXT_MAX} characters, a number, or true or false"


def _scalars(value: Any) -> str | None:
    if not isinstance(value, list) or not 1 <= len(value) <= _LIST_MAX:
        return f"must be a list of 1 to {_LIST_MAX} values"
    return next((reason for each in value if (reason := _scalar(each))), None)


def _number(value: Any) -> str | None:
    return None if _is_number(value) else "must be a number"


def _text(value: Any) -> str | None:
    good = isinstance(value, str) and 1 <= len(value) <= _TEXT_MAX
    return None if good else f"must be a text of 1 to {_TEXT_MAX} characters"


def _nothing(value: Any) -> str | None:
    return None if value is None else "must not be given"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numeric(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Callable[[Any], bool]]:
    return lambda wanted: lambda value: _is_number(value) and compare(value, wanted)


def _textual(compare: Callable[[str, str], bool]) -> Callable[[Any], Callable[[Any], bool]]:
    return lambda wanted: lambda value: isinstance(value, str) and compare(value, wanted)


def _member(wanted: list[Any]) -> Callable[[Any], bool]:
    chosen = frozenset(map(kept, wanted))
    return lambda value: kept(value) in chosen


def _stranger(wanted: list[Any]) -> Callable[[Any], bool]:
    inside = _member(wanted)
    return lambda value: not inside(value)


OPERATORS: dict[str, Operator] = {
    "eq": Operator(_scalar, lambda wanted: _member([wanted])),
    "ne": Operator(_scalar, lambda wanted: _stranger([wanted])),
    "in": Operator(_scalars, _member),
    "not_in": Operator(_scalars, _stranger),
    "gt": Operator(_number, _numeric(lambda value, wanted: value > wanted)),
    "gte": Operator(_number, _numeric(lambda value, wanted: value >= wanted)),
    "lt": Operator(_number, _numeric(lambda value, wanted: value < wanted)),
    "lte": Operator(_number, _numeric(lambda value, wanted: value <= wanted)),
    "contains": Operator(_text, _textual(lambda value, wanted: wanted in value)),
    "starts_with": Operator(_text, _textual(lambda value, wanted: value.startswith(wanted))),
    "exists": Operator(_nothing, lambda _: lambda value: True),
}
"""A key the request does not carry makes every operator false, `ne` and `not_in` too; wrap in `not` for the reverse."""
