"""Runs every bench, one after the other, and prints a table. QUICK=1 or --quick scales all of them down."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import benches


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(benches.__path__) if not m.name.startswith("_"))


def run(name: str, quick: bool) -> tuple[int, dict[str, Any]]:
    """One bench in a process of its own: exit code and its JSON line (empty when it printed none)."""
    command = [sys.executable, "-m", f"benches.{name}", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1])
    lines = done.stdout.strip().splitlines()
    try:
        return done.returncode, json.loads(lines[-1]) if lines else {}
    except ValueError:
        return done.returncode or 1, {}


def main() -> int:
    quick = "--quick" in sys.argv[1:] or bool(os.environ.get("QUICK"))
    table = Table(title="Benches" + (" (quick: preloads scaled down)" if quick else ""))
    for column in ("bench", "value", "unit", "limit", "ratio", "bar", "exit"):
        table.add_column(column)
    worst = 0
    for name in names():
        print(f"--- {name}", file=sys.stderr, flush=True)
        code, found = run(name, quick)
        worst = max(worst, code)
        cells = [f"{found[key]:,}" if key in found else "-" for key in ("value", "limit", "ratio")]
        table.add_row(name, cells[0], str(found.get("unit", "-")), cells[1], cells[2], _bar(name), str(code))
        print(json.dumps(found), flush=True)
    Console().print(table)
    return 1 if worst else 0


def _bar(name: str) -> str:
    """The bench's own statement of what is asked of it."""
    source = Path(benches.__path__[0]) / f"{name}.py"
    marked = [line for line in source.read_text().splitlines() if line.startswith("BAR = ")]
    return marked[0].removeprefix("BAR = ").strip("\"'") if marked else ""


if __name__ == "__main__":
    sys.exit(main())
