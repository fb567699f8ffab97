"""Rules about every file: nothing of one machine, no package index, no link that leads nowhere, SQL with its tenant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from handbill.infra import sqlfiles
from handbill.kit.errors import HandbillError
from tests.architecture.tree import Finding, Tree

_MACHINE = re.compile(r"(?<![\w.~-])/(?:home|root|Users|work|farm|workspace)/[\w.-]+")
_REGISTRY = re.compile(
    r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|npmmirror\.com|registry\.yarnpkg\.com|crates\.io/api"
    r"|index-url\s*=|--extra-index-url\s+\S|trusted-host\s*=",
    re.IGNORECASE,
)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)[^)]*\)")
_SQL = re.compile(
    r"^\s*(?:select\s+[\w*(]|insert\s+into\s|update\s+[\w.]+\s+set\s|delete\s+from\s|with\s+\w+\s+as\s*\()",
    re.IGNORECASE,
)
_TENANT = re.compile(r"\btenant_id\b", re.IGNORECASE)


def machine_paths(tree: Tree) -> Iterator[Finding]:
    """The repository is the same on every machine: no one's home directory is in it."""
    yield from _lines(tree, _MACHINE, "a path of one machine")


def registry_hosts(tree: Tree) -> Iterator[Finding]:
    """Where packages come from is the machine's business."""
    yield from _lines(tree, _REGISTRY, "the repository names no package index")


def _lines(tree: Tree, pattern: re.Pattern[str], text: str) -> Iterator[Finding]:
    for path in tree.files:
        content = tree.text(path)
        if not pattern.search(content):
            continue
        for number, line in enumerate(content.splitlines(), 1):
            if found := pattern.search(line):
                yield tree.finding(path, number, f"{text}: {found[0]}")


def dead_links(tree: Tree) -> Iterator[Finding]:
    """A link from one page to another leads somewhere."""
    for path in tree.files:
        if path.suffix != ".md":
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for found in _LINK.finditer(line):
                target = found["target"]
                if "://" in target or target.startswith(("mailto:", "/")):
                    continue
                if not (path.parent / target).exists():
                    yield tree.finding(path, number, f"the link to {target} leads nowhere")


def tenantless_sql(tree: Tree) -> Iterator[Finding]:
    """Every statement names its tenant (`tenant_id`), or says in a `-- no-tenant:` line why it has none.

    `sql/` holds statements for PostgreSQL, `queries/` those for ClickHouse.
    """
    for path in tree.under("src", suffix=".sql"):
        if path.parent.name not in {"sql", "queries"}:
            continue
        try:
            statements = sqlfiles.parse(tree.text(path), room=path.parent.parent.name, source=tree.name(path))
        except HandbillError as error:
            yield tree.finding(path, 1, str(error))
            continue
        for statement in statements:
            if statement.no_tenant is None and not _TENANT.search(statement.text):
                line = tree.text(path)[: tree.text(path).index(f"name: {statement.name}")].count("\n") + 1
                yield tree.finding(path, line, f"{statement.name} names no tenant and no `-- no-tenant:` reason")


def sql_in_code(tree: Tree) -> Iterator[Finding]:
    """Statements live in named files, where they are prepared and checked. Only infra/ and the operator's tools in ops/
    write SQL of their own, over catalogues and whole tables."""
    for path in tree.under("src", suffix=".py"):
        if tree.name(path).startswith(("src/handbill/infra/", "src/handbill/ops/")):
            continue
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value):
                yield tree.finding(path, node.lineno, "SQL in code: give it a name in a sql/ file")
