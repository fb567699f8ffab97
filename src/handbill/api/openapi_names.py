"""Schemas of the OpenAPI document as generators of clients need them: a name of its own for each, and open objects."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_REF = "#/components/schemas/"
_QUALIFIED = re.compile(r"(?:handbill[._])?(?P<feature>[a-z]+)[._](?:[a-z_]+[._])*(?P<name>[A-Z]\w*)")
_PAGE = re.compile(r"Page_(?P<of>.+)_")


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
    page = _PAGE.fullmatch(key)
    if page is not None:
        return f"{_plain(page['of'])}Page"
    qualified = _QUALIFIED.fullmatch(key)
    return key if qualified is None else qualified["name"]


def _with_feature(key: str) -> str:
    page = _PAGE.fullmatch(key)
    if page is not None:
        return f"{_with_feature(page['of'])}Page"
    qualified = _QUALIFIED.fullmatch(key)
    return key if qualified is None else f"{qualified['feature'].capitalize()}{qualified['name']}"


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
