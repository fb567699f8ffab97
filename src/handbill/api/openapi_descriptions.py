"""Descriptions of fields and parameters in the OpenAPI document: their own, or else what their name always means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from handbill.api.feature_texts import BY_FEATURE
from handbill.api.field_docs import field_docs
from handbill.api.field_texts import PARAMETERS, SHARED


def describe_fields(schemas: dict[str, Any], structs: Iterable[type[msgspec.Struct]]) -> None:
    """Give each member of the structs' schemas a description. One in a type's `Meta` stays."""
    for kind in structs:
        texts = _texts(kind)
        for schema in schemas_of(kind, schemas):
            for name, member in schema["properties"].items():
                text = member.get("description") or _of_branch(member) or texts.get(name)
                if text is not None:
                    member["description"] = text


def describe_parameters(operation: dict[str, Any]) -> None:
    """Give each parameter of an operation that has no description the one of its name."""
    for parameter in operation.get("parameters", ()):
        text = parameter.get("description") or PARAMETERS.get((parameter["in"], parameter["name"]))
        if text is not None:
            parameter["description"] = text


def structs(kinds: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """Every struct inside some types, those of its fields included."""
    found: dict[type[msgspec.Struct], None] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found[kind] = None
            waiting += get_type_hints(kind).values()
        waiting += get_args(kind)
        waiting += [get_origin(kind)] if get_args(kind) else []
    return list(found)


def schemas_of(kind: type[msgspec.Struct], schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A struct's schemas: under its name, with parts of its module before it where others have that name, too.

    Those of a generic struct have its arguments behind the name.
    """
    parts = [*kind.__module__.split("."), kind.__name__]
    names = ["_".join(parts[start:]) for start in range(len(parts))]
    if getattr(kind, "__parameters__", ()):
        keys = [key for key in schemas if key.startswith(tuple(f"{name}_" for name in names))]
    else:
        keys = [name for name in names if name in schemas]
    fields = set(kind.__struct_encode_fields__)
    return [schemas[key] for key in keys if fields <= set(schemas[key].get("properties", ()))]


def _texts(kind: type[msgspec.Struct]) -> dict[str, str]:
    _, _, feature = kind.__module__.partition(".")
    return SHARED | BY_FEATURE.get(feature.partition(".")[0], {}) | field_docs(kind)


def _of_branch(member: Mapping[str, Any]) -> str | None:
    """The description that one of a union's types has."""
    branches = [*member.get("anyOf", ()), *member.get("oneOf", ())]
    return next((branch["description"] for branch in branches if "description" in branch), None)
