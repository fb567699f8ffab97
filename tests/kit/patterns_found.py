"""Every regular expression of the product: found in its modules as they are imported, and in their source."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import handbill

CALLS = frozenset({"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"})
ANCHORED = frozenset({"match", "fullmatch"})


class Found(NamedTuple):
    """A pattern, where it is, and the methods that its module calls on it."""

    key: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]
    limit: int | None = None


class Unread(NamedTuple):
    """A call that compiles what is not written there: module and function."""

    module: str
    function: str


def modules() -> list[ModuleType]:
    """All of the product but its programs, which run when they are imported."""
    names = [each.name for each in pkgutil.walk_packages(handbill.__path__, "handbill.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def named(module: ModuleType) -> Iterator[Found]:
    """Patterns with a name of their own: in the module, its tuples, lists and dicts, and its classes."""
    tree = _tree(module)
    used: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CALLS and isinstance(node.value, ast.Name | ast.Attribute):
            name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            used.setdefault(name, set()).add(node.attr)
    owned = {name for node in ast.walk(tree) for name in _assigned(node)}
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, inner in vars(value).items():
                yield from _patterns(f"{module.__name__}.{name}.{attribute}", inner, frozenset(used.get(attribute, ())))
        elif name in owned:
            yield from _patterns(f"{module.__name__}.{name}", value, frozenset(used.get(name, ())))


def inline(module: ModuleType) -> Iterator[Found | Unread]:
    """Calls of `re` inside functions: with the pattern written there, or with anything else."""
    for scope in ast.walk(_tree(module)):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(scope):
            if not _is_re_call(call):
                continue
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Attribute)
            first = call.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str | bytes):
                pattern: re.Pattern[Any] = re.compile(first.value)
                yield Found(f"{module.__name__} {first.value!r}", pattern, frozenset({call.func.attr}))
            else:
                yield Unread(module.__name__, scope.name)


def constraints(module: ModuleType) -> Iterator[Found]:
    """`pattern=` of msgspec's and Litestar's annotations. msgspec looks at `max_length` first, then searches."""
    for call in ast.walk(_tree(module)):
        if not isinstance(call, ast.Call):
            continue
        arguments = {each.arg: each.value for each in call.keywords}
        if (written := arguments.get("pattern")) is None or not isinstance(written, ast.Constant | ast.Name):
            continue
        text = written.value if isinstance(written, ast.Constant) else getattr(module, written.id)
        most = arguments.get("max_length")
        limit = most.value if isinstance(most, ast.Constant) else None
        key = f"{module.__name__} {text!r}"
        yield Found(key, re.compile(str(text)), frozenset({"search"}), limit if isinstance(limit, int) else None)


def imported_names(module: ModuleType) -> set[str]:
    """Other ways to `re` than `re.NAME(...)`, which the scan would miss; and every use of re2."""
    found = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex", "re2"):
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name in ("regex", "re2")}
            found |= {f"re as {each.asname}" for each in node.names if each.name == "re" and each.asname}
    return found


@cache
def _tree(module: ModuleType) -> ast.Module:
    """An empty one for the many modules that cannot have a pattern: parsing all of them takes seconds."""
    try:
        source = inspect.getsource(module)
    except OSError:  # an empty file
        source = ""
    has_pattern = any(mark in source for mark in ("import re", "from re", "pattern="))
    return ast.parse(source if has_pattern else "")


def _assigned(node: ast.AST) -> Iterable[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _patterns(key: str, value: Any, methods: frozenset[str]) -> Iterator[Found]:
    if isinstance(value, re.Pattern):
        yield Found(key, value, methods)
    elif isinstance(value, tuple | list | frozenset | set):
        for place, each in enumerate(value):
            yield from _patterns(f"{key}[{place}]", each, frozenset())
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _patterns(f"{key}[{name!r}]", each, frozenset())


def _is_re_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
        and bool(node.args)
    )
