"""Rules about what must be written down: codes, metrics, settings, routes, rooms, and the pages made from them."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.architecture.tree import Finding, Tree

CODES = "src/handbill/kit/codes.py"
METRICS = "src/handbill/kit/telemetry/metrics.py"
_CODE = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*$")
_MAKERS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}
MOUNTED_NAMES = {
    "kit",
    "infra",
    "client",
    "settings",
    "wiring",
    "cli",
    "api",
    "worker",
    "ops",
    "console",
    "reports",
    "alerts",
}
"""Rooms that are no slices: they have no service and no face of their own."""


def undocumented_codes(tree: Tree) -> Iterator[Finding]:
    """Every error code raised anywhere has its line in kit/codes.py."""
    known = _listed_codes(tree)
    for path in tree.under("src", suffix=".py"):
        if tree.name(path) == CODES:
            continue
        for line, code in _codes_in(tree.module(path)):
            if code not in known:
                yield tree.finding(path, line, f"the error code {code} has no line in {CODES}")


def _listed_codes(tree: Tree) -> set[str]:
    path = tree.root / CODES
    if not path.exists():
        return set()
    keys = [node.keys for node in ast.walk(tree.module(path)) if isinstance(node, ast.Dict)]
    return {key.value for row in keys for key in row if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _codes_in(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "code" and (code := _code_of(keyword.value)):
                    yield keyword.value.lineno, code
        elif isinstance(node, ast.ClassDef):
            for step in node.body:
                targets = step.targets if isinstance(step, ast.Assign) else []
                if isinstance(step, ast.AnnAssign):
                    targets = [step.target]
                named = any(isinstance(target, ast.Name) and target.id == "code" for target in targets)
                if named and isinstance(step, ast.Assign | ast.AnnAssign) and (code := _code_of(step.value)):
                    yield step.lineno, code


def _code_of(value: ast.expr | None) -> str | None:
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and _CODE.match(value.value):
        return value.value
    return None


def undocumented_metrics(tree: Tree) -> Iterator[Finding]:
    """Metrics are made in one list, each with its line; nowhere else."""
    for path in tree.under("src", suffix=".py"):
        if tree.name(path) == METRICS:
            yield from _metrics_without_doc(tree)
        else:
            yield from _metrics_made_elsewhere(tree, path)


def _metrics_made_elsewhere(tree: Tree, path: Path) -> Iterator[Finding]:
    """A maker imported as a type is fine; calling it is not."""
    nodes = list(ast.walk(tree.module(path)))
    makers = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "prometheus_client"
        for alias in node.names
        if alias.name in _MAKERS
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
            yield tree.finding(path, node.lineno, f"metrics are made in {METRICS} only")


def _metrics_without_doc(tree: Tree) -> Iterator[Finding]:
    path = tree.root / METRICS
    for node in tree.module(path).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        maker = node.value.func
        if not (isinstance(maker, ast.Name) and maker.id in _MAKERS):
            continue
        words = [arg.value for arg in node.value.args[:2] if isinstance(arg, ast.Constant)]
        if len(words) < 2 or len(str(words[1]).strip()) < 10:
            yield tree.finding(path, node.lineno, "a metric without a line that says what it counts")
        elif not str(words[0]).startswith("handbill_"):
            yield tree.finding(path, node.lineno, "a metric's name starts with handbill_")


def undocumented_settings(tree: Tree) -> Iterator[Finding]:
    """Every field of a settings struct carries its one-line description."""
    for path in (tree.root / "src/handbill/settings" / name for name in ("model.py", "rooms.py", "alerts.py")):
        for node in ast.walk(tree.module(path)) if path.exists() else ():
            if not isinstance(node, ast.ClassDef):
                continue
            for step in node.body:
                if isinstance(step, ast.AnnAssign) and isinstance(step.target, ast.Name):
                    nested = isinstance(step.annotation, ast.Name) and step.annotation.id[0].isupper()
                    if not nested and "description=" not in ast.unparse(step.annotation):
                        yield tree.finding(path, step.lineno, f"the setting {step.target.id} has no description")


def unmapped_rooms(tree: Tree) -> Iterator[Finding]:
    """A stranger finds every room on the map."""
    path = tree.root / "docs/map.md"
    text = tree.text(path) if path.exists() else ""
    for room in tree.rooms:
        if f"`{room}/`" not in text and f"`{room}.py`" not in text:
            yield Finding("docs/map.md", 1, f"the room {room} is not on the map")


def slices_without_contracts(tree: Tree) -> Iterator[Finding]:
    """Each slice has two contracts of its own: its face, and the order inside."""
    contracts = configparser.ConfigParser()
    contracts.read(tree.root / ".importlinter")
    for room in tree.rooms:
        if room in MOUNTED_NAMES or not (tree.root / f"src/handbill/{room}").is_dir():
            continue
        for kind in ("face", "inside"):
            if f"importlinter:contract:{room}-{kind}" not in contracts:
                yield Finding(".importlinter", 1, f"the slice {room} has no contract {room}-{kind}")


def stale_pages(tree: Tree) -> Iterator[Finding]:
    """The generated pages say what the code says today."""
    from tests.architecture import pages

    for name, text in pages.all_pages().items():
        path = tree.root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield Finding(name, 1, "the page is not what the code says: run `make docs`")


def wordless_lists(tree: Tree) -> Iterator[Finding]:
    """Routes, drop reasons and jobs each carry a line; the pages are made of these lines."""
    from tests.architecture import pages

    for what, rows in (("route", pages.route_rows()), ("reason", pages.reason_rows()), ("job", pages.job_rows())):
        for name in wordless(rows):
            yield Finding("docs/reference.md", 1, f"the {what} {name} has no line that says what it is")


def wordless(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The names (first cells) of rows whose last cell says nothing."""
    return (row[0] for row in rows if len(row[-1].strip()) < 8)
