"""Descriptions of a struct's fields as its source has them: a string literal below a field describes the field."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from functools import cache

import msgspec


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Texts by the names under which the fields are sent; those of a base class count where a class has none."""
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ != msgspec.Struct.__module__:
            texts |= _module_docs(base.__module__).get(base.__qualname__, {})
    return {names[field]: text for field, text in texts.items() if field in names}


@cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    """Texts of every class of a module, by the class's qualified name. Nothing where the source is not installed."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # TypeError: a module that is part of the interpreter
        return {}
    return dict(_class_docs(tree.body, prefix=""))


def _class_docs(body: list[ast.stmt], prefix: str) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}{node.name}"
            found.append((name, _attribute_docs(node.body)))
            found += _class_docs(node.body, prefix=f"{name}.")
    return found


def _attribute_docs(body: list[ast.stmt]) -> dict[str, str]:
    """Each annotated field that has a string literal right below it."""
    texts: dict[str, str] = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            literal = below.value
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                texts[field.target.id] = " ".join(literal.value.split())
    return texts
