"""Every fault of a body, not only the first: msgspec stops at one, a person filling in a form wants them all.

It runs only after a body was refused, so it may take its time.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

from handbill.kit.errors import Fault
from handbill.kit.untrusted_json import UNREADABLE

MOST = 50
_NAME_MAX = 100
"""So many characters of an unknown name are repeated; a longer one is like no name of ours."""
_LIST_MAX = 20
"""Up to so many known names are listed in a fault."""


def unknown_names(names: Iterable[str], known: Collection[str], at: str = "", what: str = "field") -> list[Fault]:
    """A fault for each name that is not known, as it was sent, with the known name that it is most like.

    The first name that is like none of them gets the list of known names, where that is short.
    """
    faults: list[Fault] = []
    is_listed = len(known) > _LIST_MAX or not known
    for name in names:
        if name in known:
            continue
        close = get_close_matches(name, known, 1) if len(name) <= _NAME_MAX else []
        hint = f"; did you mean `{close[0]}`?" if close else ""
        if not close and not is_listed:
            hint, is_listed = f"; known are {', '.join(sorted(known))}", True
        sent = name[:_NAME_MAX]
        faults.append(Fault(f"{at}.{sent}" if at else sent, f"is not a known {what}{hint}"))
    return faults


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
    if struct is None and isinstance(value, list) and (item := _item(kind)) is not None:
        inside = [fault for place, each in enumerate(value) for fault in faults_in(each, item, f"{at}[{place}]")[:MOST]]
        return inside[:MOST] or _one(value, kind, at)
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
        found += unknown_names(value, names, at)[:MOST]
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
        if reason.startswith("Object contains unknown field"):  # of a choice between structs
            path, reason = f"{path.rstrip('`')}.{reason.split('`')[1]}", "is not a known field"
        if reason.startswith("Invalid enum value") and (words := allowed_words(kind)):
            reason = f"must be one of {', '.join(words)}"
        return [Fault(at + path.rstrip("`") if at else path.rstrip("`").lstrip("."), reason)]
    return []


def allowed_words(kind: Any) -> list[str]:
    """The words that a type allows, wherever in it they stand: msgspec says which was wrong, not which are right."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(word.value) for word in kind]
    return [word for part in get_args(kind) for word in allowed_words(part)]


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The struct inside a type: itself, or the only one of a union (`Struct | None`, `Struct | UnsetType`)."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    inner = [struct for part in get_args(kind) if (struct := _struct(part)) is not None]
    return inner[0] if len(inner) == 1 and not str(kind).startswith(("list", "dict", "tuple", "set")) else None


def _item(kind: Any) -> Any:
    """The type of a list's items where they are structs, whatever the list is wrapped in; else None."""
    if get_origin(kind) in (list, tuple):
        return next((part for part in get_args(kind) if _struct(part) is not None), None)
    if get_origin(kind) in (Annotated, Union, types.UnionType):
        return next((item for part in get_args(kind) if (item := _item(part)) is not None), None)
    return None
