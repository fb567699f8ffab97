"""Schemas of the OpenAPI document as generators of clients need them: a name of its own for each, and open objects."""

from __future__ import annotations

from collections import Counter
from typing import Any

_REF = "#/components/schemas/"
_PAGE = "Page_"
"""How Litestar begins the name of a page of something, which ends in an underscore."""


def name_schemas(document: dict[str, Any]) -> None:
    """Give each schema a short name that is its title, too; of two with one name each begins with its feature's."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    plain = {key: _plain(key) for key in schemas}
    taken = Counter(plain.values())
    names = {key: name if taken[name] == 1 else _with_feature(key) for key, name in plain.items()}
    assert len(set(names.values())) == len(names), "two schemas have one name"
    document["components"]["schemas"] = {
        names[key]: {**schema, "title": names[key]}
        for key, schema in sorted(schemas.items(), key=lambda e: names[e[0]])
    }
    _follow(document, names)


def open_objects(node: Any) -> None:
    """Say of objects without listed members that they may have any: some generators read them as always empty."""
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" not in node:
            node.setdefault("additionalProperties", True)
        for key, value in node.items():
            if key != "example":
                open_objects(value)
    elif isinstance(node, list):
        for value in node:
            open_objects(value)


def _plain(key: str) -> str:
    if key.startswith(_PAGE):
        return f"{_plain(_inside(key))}Page"
    return _parts(key)[-1]


def _with_feature(key: str) -> str:
    if key.startswith(_PAGE):
        return f"{_with_feature(_inside(key))}Page"
    *modules, name = _parts(key)
    return f"{modules[0].capitalize()}{name}" if modules else name


def _inside(page: str) -> str:
    return page.removeprefix(_PAGE).removesuffix("_")


def _parts(key: str) -> list[str]:
    """The modules, from the feature on, and the class: names of classes have no underscore."""
    return key.replace(".", "_").removeprefix("handbill_").split("_")


def _follow(node: Any, names: dict[str, str]) -> None:
    """References go to the new names."""
    if isinstance(node, dict):
        ref = node.get("$ref")
        if isinstance(ref, str) and ref.startswith(_REF):
            node["$ref"] = _REF + names.get(ref.removeprefix(_REF), ref.removeprefix(_REF))
        for value in node.values():
            _follow(value, names)
    elif isinstance(node, list):
        for value in node:
            _follow(value, names)
