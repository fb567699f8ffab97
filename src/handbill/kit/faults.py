"""Every fault of a body, not only the first: msgspec stops at one, a person filling in a form wants them all.

It runs only after a body was refused, so it may take its time.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

from handbill.kit.errors import Fault
from handbill.kit.untrusted_json import UNREADABLE

MOST = 50


def faults_of(body: bytes, kind: Any) -> list[Fault]:
    """What is wrong with a JSON body that should be a `kind`; empty if nothing is."""
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE as error:
        return [Fault("", f"not valid JSON: {error}")]
    return faults_in(value, kind)[:MOST]


def faults_in(value: Any, kind: Any, at: str = "") -> list[Fault]:
    """The same for a value already decoded."""
    struct = _struct(kind)
    if struct is None or not isinstance(value, dict):
        return _one(value, kind, at)
    found: list[Fault] = []
    hints = get_type_hints(struct, include_extras=True)
    known = fields(struct)
    for field in known:
        place = f"{at}.{field.encode_name}" if at else field.encode_name
        if field.encode_name in value:
            found += faults_in(value[field.encode_name], hints[field.name], place)
        elif field.required:
            found.append(Fault(place, "is required"))
    if struct.__struct_config__.forbid_unknown_fields:
        names = {field.encode_name for field in known}
        found += [Fault(f"{at}.{name}" if at else name, "is not a known field") for name in value if name not in names]
    if not found:
        found = _one(value, kind, at)  # a rule of the whole, if no part broke one
    joint = getattr(struct, "joint_faults", None)  # rules over several fields, which have names of their own
    if joint is not None:
        found += [Fault(f"{at}.{fault.field}" if at else fault.field, fault.reason) for fault in joint(value)]
    return found


def _one(value: Any, kind: Any, at: str) -> list[Fault]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        if reason.startswith("Invalid enum value") and (words := _words(kind)):
            reason = f"must be one of {', '.join(words)}"
        return [Fault(at + path.rstrip("`") if at else path.rstrip("`").lstrip("."), reason)]
    return []


def _words(kind: Any) -> list[str]:
    """The words that a type allows, wherever in it they stand: msgspec says which was wrong, not which are right."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in _words(part)]


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The struct inside a type: itself, or the only one of a union (`Struct | None`, `Struct | UnsetType`)."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    inner = [struct for part in get_args(kind) if (struct := _struct(part)) is not None]
    return inner[0] if len(inner) == 1 and not str(kind).startswith(("list", "dict", "tuple", "set")) else None
