"""Which column of a CSV file is which part of an event, and a row of it as one element of `POST /v1/events`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from handbill.events.dialects.own_wire import ContextIn
from handbill.kit.errors import Fault, Invalid
from handbill.kit.untrusted_json import UNREADABLE

FIELDS = ("event", "distinct_id", "timestamp", "event_id", "anonymous_id", "properties")
REQUIRED = ("event", "distinct_id", "timestamp")
_GROUPS = {"properties": "properties", "set": "$set", "set_once": "$set_once", "context": "context"}
_ALIASES = {"id": "event_id", "uuid": "event_id", "messageId": "event_id", "userId": "distinct_id"}
_TYPES = ("text", "number", "boolean", "json")
_NUMBER_CHARACTERS = frozenset("+-0123456789.eE")
_LARGEST_WHOLE = 2**53
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


class Target(msgspec.Struct, frozen=True):
    """A field of an event, or a member of one of its objects. `type` none: what the cell looks like."""

    field: str
    member: str | None = None
    type: str | None = None


class CsvMapping(msgspec.Struct, frozen=True):
    """`columns` by place; `left_out` names those that are no part of an event."""

    columns: tuple[tuple[int, Target], ...]
    values: tuple[tuple[Target, str], ...]
    left_out: tuple[str, ...]
    width: int


class MappingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping as a JSON file: fields by the names of columns, and values of fields that no column has."""

    columns: dict[str, str] = {}
    values: dict[str, str] = {}


class BadRow(Exception):
    """A row that is no event."""


def csv_mapping(names: Sequence[str], columns: Mapping[str, str], values: Mapping[str, str]) -> CsvMapping:
    """Columns that are not in `columns` are taken by their own names. Raises Invalid, naming each fault."""
    faults = [Fault(name, "is no column of the file") for name in columns if name not in names]
    faults += [Fault(name, "stands twice in the first line") for name in columns if names.count(name) > 1]
    placed: list[tuple[int, Target]] = []
    left_out: list[str] = []
    for place, name in enumerate(names):
        target = _target(columns.get(name, name))
        if target is not None:
            placed.append((place, target))
        elif columns.get(name):
            faults.append(Fault(name, f"cannot be `{columns[name]}`: {_allowed()}"))
        elif name not in columns:
            left_out.append(name)
    fixed: list[tuple[Target, str]] = []
    for name, value in values.items():
        target = _target(name)
        if target is None:
            faults.append(Fault(name, f"is no field: {_allowed()}"))
        else:
            fixed.append((target, value))
    faults += _missing_or_twice([target for _, target in placed], [target for target, _ in fixed])
    if faults:
        raise Invalid("The columns cannot be read as events; nothing was imported.", code="MAPPING", faults=faults)
    return CsvMapping(tuple(placed), tuple(fixed), tuple(left_out), len(names))


def row_json(mapping: CsvMapping, cells: Sequence[str]) -> bytes:
    """One element of `POST /v1/events`; empty cells say nothing. Raises BadRow."""
    if len(cells) != mapping.width:
        raise BadRow(f"It has {len(cells)} cells, the first line has {mapping.width}.")
    event: dict[str, Any] = {}
    person: dict[str, dict[str, Any]] = {}
    pairs = [*mapping.values, *((target, cells[place]) for place, target in mapping.columns)]
    for target, cell in pairs:
        if cell == "":
            continue
        if target.member is None:
            event[target.field] = _field(target, cell)
        elif target.field in ("$set", "$set_once"):
            person.setdefault(target.field, {})[target.member] = _value(target, cell)
        else:
            group = event.setdefault(target.field, {})
            group[target.member] = cell if target.field == "context" else _value(target, cell)
    if person:
        event["user_properties"] = person
    return _encode(event)


def _target(text: str) -> Target | None:
    name, _, kind = text.rpartition(":")
    if not name or kind not in _TYPES:
        name, kind = text, ""
    name = _ALIASES.get(name, name)
    if name in FIELDS:
        return Target(name, None, kind or None)
    group, _, member = name.partition(".")
    group = group.removeprefix("$")
    if group not in _GROUPS or not member or (group == "context" and member not in ContextIn.__struct_fields__):
        return None
    return Target(_GROUPS[group], member, kind or None)


def _allowed() -> str:
    return f"it must be {', '.join(FIELDS)}, properties.NAME, set.NAME, set_once.NAME or context.NAME"


def _missing_or_twice(placed: Sequence[Target], fixed: Sequence[Target]) -> list[Fault]:
    named = [(target.field, target.member) for target in (*placed, *fixed)]
    faults = [Fault(field, "is in no column and has no value") for field in REQUIRED if (field, None) not in named]
    twice = sorted({name for name in named if named.count(name) > 1}, key=str)
    if ("properties", None) in named and any(field == "properties" and member for field, member in named):
        faults.append(Fault("properties", "is a column of its own beside columns of single properties"))
    return faults + [Fault(".".join(filter(None, name)), "is given by more than one column or value") for name in twice]


def _field(target: Target, cell: str) -> Any:
    if target.field == "properties":
        return _json(cell)
    if target.field == "timestamp":
        number = _number(cell.strip()) if target.type != "text" else None
        return cell if number is None else number
    return cell


def _value(target: Target, cell: str) -> Any:
    match target.type:
        case "text":
            return cell
        case "json":
            return _json(cell)
        case "number":
            number = _number(cell.strip())
            if number is None:
                raise BadRow(f"`{target.member}` is no number.")
            return number
        case "boolean":
            truth = _truth(cell)
            if truth is None:
                raise BadRow(f"`{target.member}` is neither true nor false.")
            return truth
    return _guessed(cell)


def _guessed(cell: str) -> Any:
    """What the cell looks like. A number with leading zeros, or too long for one, is an id."""
    number = _number(cell)
    if number is not None:
        return number
    return cell == "true" if cell in ("true", "false") else cell


def _truth(cell: str) -> bool | None:
    word = cell.strip().lower()
    return True if word in ("true", "1", "yes", "t") else False if word in ("false", "0", "no", "f") else None


def _number(cell: str) -> int | float | None:
    """A number as JSON writes it, as long as a program that reads JSON can hold it exactly."""
    if len(cell) > 40 or not _NUMBER_CHARACTERS.issuperset(cell):
        return None
    try:
        value = _anything.decode(cell)
    except UNREADABLE:
        return None
    return value if type(value) is float or abs(value) <= _LARGEST_WHOLE else None


def _json(cell: str) -> Any:
    try:
        return msgspec.Raw(bytes(_raw.decode(cell)))
    except UNREADABLE:
        raise BadRow("A cell that should be JSON is none.") from None


_raw = msgspec.json.Decoder(msgspec.Raw)
