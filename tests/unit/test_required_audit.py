"""Whoever writes audit rows cannot be made without the audit log: a forgotten argument would write none, in silence."""

from __future__ import annotations

import ast
from pathlib import Path

import handbill

SOURCE = Path(handbill.__file__).parent


def optional_audits(tree: ast.AST) -> list[int]:
    """The lines of parameters called audit that may be left out."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            plain = [*node.args.posonlyargs, *node.args.args]
            optional = plain[len(plain) - len(node.args.defaults) :]
            optional += [name for name, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
            lines += [each.lineno for each in optional if each.arg == "audit"]
    return lines


def test_an_audit_log_is_never_optional() -> None:
    found = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := optional_audits(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_an_optional_one_is_found() -> None:
    assert optional_audits(ast.parse("def f(a, audit=None, *, clock): ...")) == [1]
    assert optional_audits(ast.parse("async def f(a, *, audit=None, clock): ...")) == [1]
    assert optional_audits(ast.parse("def f(audit, clock=None, *, more): ...")) == []
