"""Rules about Python source: what it may catch, read and wait for, and how long it may get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.tree import Finding, Tree

CODE = ("src", "tests", "benches")
LIMIT = 400
# A longer file needs a reason here, in one line.
LONG: dict[str, str] = {}

# Outgoing HTTP goes through infra/safe_http.py. Each other user of an HTTP client has its reason here.
HTTP_CLIENTS: dict[str, str] = {
    "src/handbill/infra/safe_http.py": "the client itself",
    "src/handbill/infra/clickhouse/client.py": "classifies the errors of the engine's driver",
    "src/handbill/ops/backup/clickhouse.py": "streams from and to an engine that the operator names",
    "src/handbill/client/transport.py": "the client library, which customers run against this API",
    "src/handbill/fake_graph/courier.py": "the stand-in for Meta's servers, a program of its own",
}

_HTTP_LIBRARIES = {"aiohttp", "httpx", "requests", "urllib3", "http.client", "urllib.request"}
_HTTP_SERVER_PARTS = {"aiohttp.web", "aiohttp.BodyPartReader"}
_NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*)?(?P<reason>.*)$")
_UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")
_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
_BROAD = {"Exception", "BaseException"}


def swallowed_errors(tree: Tree) -> Iterator[Finding]:
    """No bare except; no broad one that does nothing. Both hide the faults we would want to see."""
    for path in tree.under(*CODE, suffix=".py"):
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.ExceptHandler):
                if node.type is None:
                    yield tree.finding(path, node.lineno, "bare except: name what you expect")
                elif _names(node.type) & _BROAD and all(_does_nothing(step) for step in node.body):
                    yield tree.finding(path, node.lineno, "a broad except that does nothing swallows faults")
            elif isinstance(node, ast.Call) and _suppresses_all(node):
                yield tree.finding(path, node.lineno, "suppress() of everything swallows faults")


def unreadable_files(tree: Tree) -> Iterator[Finding]:
    """Every file is Python of the oldest version that we promise."""
    for path in tree.under(*CODE, suffix=".py"):
        tree.module(path)
    yield from tree.unreadable


def environment_readers(tree: Tree) -> Iterator[Finding]:
    """Only settings/ reads the environment; everybody else is handed values."""
    for path in tree.under("src", suffix=".py"):
        if tree.name(path).startswith("src/handbill/settings/"):
            continue
        for node in ast.walk(tree.module(path)):
            attribute = isinstance(node, ast.Attribute) and _dotted(node) in {f"os.{name}" for name in _ENVIRONMENT}
            imported = (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and any(alias.name in _ENVIRONMENT for alias in node.names)
            )
            if (attribute or imported) and isinstance(node, ast.expr | ast.stmt):
                yield tree.finding(path, node.lineno, "the environment is read only in settings/")


def unsafe_http(tree: Tree) -> Iterator[Finding]:
    """Only infra/safe_http.py calls other servers: it alone checks addresses, limits and redirects."""
    for path in tree.under("src", suffix=".py"):
        if tree.name(path) in HTTP_CLIENTS:
            continue
        for node in ast.walk(tree.module(path)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for name in _imported(node):
                library = any(name == one or name.startswith(f"{one}.") for one in _HTTP_LIBRARIES)
                if library and not any(name == part or name.startswith(f"{part}.") for part in _HTTP_SERVER_PARTS):
                    yield tree.finding(path, node.lineno, f"{name}: outgoing HTTP goes through infra/safe_http.py")


def sleeping_tests(tree: Tree) -> Iterator[Finding]:
    """A test waits on a signal or polls a condition. Code under test that must block says `# sleeps: why`."""
    for path in tree.under("tests", suffix=".py"):
        if tree.name(path).startswith("tests/soak/"):
            continue  # a soak paces its own load
        lines = tree.text(path).splitlines()
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.Call) and _sleeps(node) and "# sleeps: " not in lines[node.lineno - 1]:
                yield tree.finding(path, node.lineno, "a test that sleeps is slow or flaky: wait for a signal")


def unexplained_noqa(tree: Tree) -> Iterator[Finding]:
    """Every exception from a lint names the rule and the reason: `# noqa: S606 - becoming the program is the point`."""
    for path in tree.under(*CODE, suffix=".py"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if (found := _NOQA.search(line)) and "noqa" not in line[: found.start()]:
                if not found["codes"]:
                    yield tree.finding(path, number, "noqa without a rule switches all of them off")
                elif len(found["reason"].strip(" -:—")) < 8:
                    yield tree.finding(path, number, "noqa without a reason")


def unfinished(tree: Tree) -> Iterator[Finding]:
    """What is not done is not hinted at in the code."""
    for path in tree.under("src", "benches", suffix=".py"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if _UNFINISHED.search(line):
                yield tree.finding(path, number, "unfinished work belongs in an issue, not in the code")


def long_files(tree: Tree) -> Iterator[Finding]:
    """A reader should hold a file in the head; a longer one says why in LONG."""
    for suffix in (".py", ".lua"):
        for path in tree.under(*CODE, suffix=suffix):
            count = tree.text(path).count("\n")
            if count > LIMIT and tree.name(path) not in LONG:
                yield tree.finding(path, count, f"{count} lines: split it where a reader would draw the line")


def _imported(node: ast.AST) -> list[str]:
    """The full names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _sleeps(call: ast.Call) -> bool:
    """time.sleep in any form; asyncio.sleep for a fixed time (a plain step of the loop, sleep(0), is none)."""
    name = _dotted(call.func)
    fixed = bool(call.args) and isinstance(call.args[0], ast.Constant) and bool(call.args[0].value)
    return name in {"time.sleep", "sleep"} or (name == "asyncio.sleep" and fixed)


def _suppresses_all(call: ast.Call) -> bool:
    return _dotted(call.func).endswith("suppress") and any(_names(argument) & _BROAD for argument in call.args)


def _names(node: ast.expr) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {_dotted(part).rpartition(".")[2] for part in parts}


def _does_nothing(step: ast.stmt) -> bool:
    return isinstance(step, ast.Pass | ast.Continue) or (
        isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
    )


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
