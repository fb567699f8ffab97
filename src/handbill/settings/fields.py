"""The settings as a flat list: path, type, default and documentation of each, taken from the structs themselves."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from handbill.settings.model import Settings

PREFIX = "HANDBILL_"


class Field(msgspec.Struct, frozen=True):
    """One setting: `path` is section.name (or just the name for the few at the top)."""

    path: str
    variable: str
    type: Any
    default: Any
    doc: str
    mask: str | None

    @property
    def expected(self) -> str:
        """What a value must look like, in words."""
        return describe(self.type)


def variable_of(path: str) -> str:
    return PREFIX + path.upper().replace(".", "__")


@cache
def all_fields() -> tuple[Field, ...]:
    found: list[Field] = []
    for name, hint in typing.get_type_hints(Settings, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found += [_field(f"{name}.{part.name}", hint, part) for part in msgspec.structs.fields(hint)]
    top = [part for part in msgspec.structs.fields(Settings) if "." not in part.name]
    known = {field.path.split(".")[0] for field in found}
    return tuple([_field(part.name, Settings, part) for part in top if part.name not in known] + found)


def _field(path: str, owner: type[msgspec.Struct], part: msgspec.structs.FieldInfo) -> Field:
    hint = typing.get_type_hints(owner, include_extras=True)[part.name]
    doc, mask = "", None
    for meta in getattr(hint, "__metadata__", ()):
        doc = meta.description or doc
        mask = (meta.extra or {}).get("mask", mask)
    return Field(path, variable_of(path), hint, part.default, doc, mask)


def bare(hint: Any) -> tuple[Any, list[msgspec.Meta]]:
    """The type without its notes and without "or None", and all the notes that were on it."""
    metas: list[msgspec.Meta] = []
    while True:
        options = [option for option in get_args(hint) if option is not type(None)]
        if hasattr(hint, "__metadata__"):
            metas += hint.__metadata__
            hint = hint.__origin__
        elif get_origin(hint) in (types.UnionType, typing.Union) and len(options) == 1:
            hint = options[0]
        else:
            return hint, metas


def describe(hint: Any) -> str:
    """The type in words: "a whole number from 1 to 65535", "one of debug, info", "words separated by commas"."""
    kind, metas = bare(hint)
    if get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        word = get_args(kind)[0]
        known = get_args(word) if get_origin(word) is typing.Literal else ()
        return f"any of {', '.join(known)}, separated by commas" if known else "words separated by commas"
    begins = next((meta.extra["begins"] for meta in metas if meta.extra and "begins" in meta.extra), None)
    if begins is not None:
        return f"an address that begins with {begins}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    low = next((bound for meta in metas for bound in (meta.ge, meta.gt) if bound is not None), None)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    return words if low is None else f"{words} of at least {low}"
