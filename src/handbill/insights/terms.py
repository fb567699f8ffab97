"""Expressions of the event store's language, made of our own words only; what a caller said is bound, never spliced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handbill.insights.model import Field, Filter, Matching, Measure, Series, path_of

PERSON = "if(empty(o.distinct_id), e.person_id, o.person_id)"
MOMENT = "(toUnixTimestamp64Milli(e.at) * 1000 + e.micros)"
"""When it happened, in microseconds. Events of one moment are ordered by `sequence`, then by `event_id`."""
UNIDENTIFIED = "(e.source = 'banners' and e.distinct_id = concat('event:', e.event_id))"
"""An impression or click of which nobody said whose it was: its distinct id was made of its own id."""
BANNER_EVENTS = frozenset({"$banner_impression", "$banner_click", "$banner_view"})
GROUP_TEXT = 200
"""Longer values of a breakdown are cut to this many characters."""

_NUMBERS = frozenset({"screen_width", "screen_height"})
_COMPARED = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_NEGATED = {"is_not": "is", "not_in": "in", "not_contains": "contains", "not_set": "set"}
_PERCENT = {"p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99"}


class Binder:
    """Parameters by number. The same value of the same type is bound once."""

    def __init__(self, **fixed: Any) -> None:
        self.params: dict[str, Any] = dict(fixed)
        self._known: dict[tuple[str, str], str] = {}
        self._person_values: list[str] = []

    @property
    def person_values(self) -> Sequence[str]:
        """What is looked up in the properties of people, in the order of its places."""
        return tuple(self._person_values)

    def of_person(self, expression: str) -> str:
        """The place of what `expression` finds in the `properties` of a person."""
        if expression not in self._person_values:
            self._person_values.append(expression)
        return f"p.said[{self._person_values.index(expression) + 1}]"

    def add(self, value: Any, kind: str) -> str:
        key = (kind, repr(value))
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = f"p{len(self._known)}"
            self.params[name] = value
        return f"{{{name}:{kind}}}"


def text_of(field: Field, bind: Binder) -> str:
    """What it says, as text; numbers, booleans and lists as their JSON."""
    if field.property is None:
        name = f"e.{field.column}"
        return f"ifNull(toString({name}), '')" if field.column in _NUMBERS else f"toString({name})"
    raw = _raw(field, bind)
    return f"if(startsWith({raw}, '\"'), JSONExtractString({raw}), {raw})"


def said(field: Field, bind: Binder) -> str:
    """Does the event say it at all? null is as good as nothing."""
    if field.property is None:
        return f"isNotNull(e.{field.column})" if field.column in _NUMBERS else f"notEmpty(toString(e.{field.column}))"
    return f"{_raw(field, bind)} not in ('', 'null')"


def number_of(field: Field, bind: Binder) -> str:
    """What it says, as a finite number, or null. Text that reads as a number is one."""
    if field.column in _NUMBERS:
        return f"toFloat64(e.{field.column})"
    number = f"toFloat64OrNull({text_of(field, bind)})"
    return f"if(isFinite({number}), {number}, null)"


def _raw(field: Field, bind: Binder) -> str:
    """The property's JSON, '' where the event has none: always the same expression, so that the engine reads the object
    once a row. A name with dots is looked for twice: as it is, then, where the event has no such name, as a path."""
    source = "properties" if field.of == "person" else "e.properties"
    path = path_of(field.property or "")
    raw = exact = f"JSONExtractRaw({source}, {bind.add(field.property, 'String')})"
    if path:
        names = ", ".join(bind.add(name, "String") for name in path)
        raw = f"if(notEmpty({exact}), {exact}, JSONExtractRaw({source}, {names}))"
    return bind.of_person(raw) if field.of == "person" else raw


def condition(one: Filter, bind: Binder) -> str:
    op = _NEGATED.get(one.op)
    if op is not None:
        positive = Filter(op, one.property, one.column, one.values, one.of)  # type: ignore[arg-type]
        return f"not {condition(positive, bind)}"
    field = one.subject()
    if one.op == "set":
        return f"({said(field, bind)})"
    if one.op == "contains":
        found = f"positionCaseInsensitiveUTF8({text_of(field, bind)}, {bind.add(one.values[0], 'String')}) > 0"
        return f"({said(field, bind)} and {found})"
    if one.op in _COMPARED:
        value = bind.add(float(one.values[0]), "Float64")
        return f"ifNull({number_of(field, bind)} {_COMPARED[one.op]} {value}, 0)"
    return f"({said(field, bind)} and ({_equal(one, field, bind)}))"


def _equal(one: Filter, field: Field, bind: Binder) -> str:
    """Equal to any of the values: texts and booleans as text, numbers as numbers."""
    texts = [_spelt(value) for value in one.values if isinstance(value, str | bool)]
    numbers = [float(value) for value in one.values if not isinstance(value, str | bool)]
    parts = []
    if texts:
        parts.append(f"has({bind.add(texts, 'Array(String)')}, {text_of(field, bind)})")
    if numbers:
        parts.append(f"ifNull(has({bind.add(numbers, 'Array(Float64)')}, {number_of(field, bind)}), 0)")
    return " or ".join(parts)


def _spelt(value: str | bool) -> str:
    return value if isinstance(value, str) else "true" if value else "false"


def all_of(filters: Sequence[Filter], bind: Binder) -> str:
    return " and ".join(condition(one, bind) for one in filters) or "1"


def matching(one: Matching | Series, bind: Binder) -> str:
    """The condition of a series, a step or a cohort, in brackets."""
    named = f"e.event = {bind.add(one.event, 'String')}" if one.event is not None else "1"
    return f"({named} and {all_of(one.filters, bind)})"


def has_unidentified(among: Sequence[Matching | Series]) -> bool:
    """Whether any of these can match an event without a person. Only then a question looks for such events."""
    return any(one.event is None or one.event in BANNER_EVENTS for one in among)


def identified(where: str, among: Sequence[Matching | Series]) -> str:
    """The condition, and that the event is somebody's."""
    return f"{where} and not {UNIDENTIFIED}" if has_unidentified(among) else where


def unidentified(when: str, one: Matching | Series) -> str:
    """How many of the events for which `when` holds are nobody's."""
    return f"countIf({when} and {UNIDENTIFIED})" if has_unidentified([one]) else "toUInt64(0)"


def figure(measure: Measure, of: str | None, when: str, bind: Binder) -> str:
    """One aggregate over the events for which `when` holds."""
    if measure == "count":
        return f"toFloat64(countIf({when}))"
    if measure == "people":
        return f"toFloat64(uniqExactIf({PERSON}, {when}))"
    number = number_of(Field(property=of), bind)
    given, there = f"assumeNotNull({number})", f"{when} and isNotNull({number})"
    if measure == "sum":
        return f"sumIf({given}, {there})"
    if measure in _PERCENT:
        return f"quantileExactInclusiveOrNullIf({_PERCENT[measure]})({given}, {there})"
    return f"{measure}OrNullIf({given}, {there})"
