"""`python -m tests.soak [NAME ...]`: runs scenarios and writes docs/evidence/NAME.json for each that held,
and NAME.md where the scenario has a table.

SEED (default: 1) and SECONDS (default: 600) come from the environment. Evidence names the commit, the seed, the
settings and what was counted, so that anybody can run the same again. A scenario that fails writes nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tests.soak
from tests.kit import run
from tests.soak.context import Context

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
_FRAME = {"__main__", "context", "fault_ledger"}


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(tests.soak.__path__) if m.name not in _FRAME)


def commit() -> str:
    """The commit, marked when the tree had changes; evidence of an unknown tree says so."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + (" + changes" if changed.stdout.strip() else "")


def evidence(context: Context, counts: dict[str, Any], began: datetime, took: float) -> dict[str, Any]:
    return {
        "name": context.name,
        "commit": commit(),
        "seed": context.seed,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(took, 1),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "settings": {"seconds": context.seconds, **context.settings},
        "counts": counts,
    }


def page(found: dict[str, Any], table: str) -> str:
    """The evidence for people: when, of which commit, and the scenario's own table."""
    head = (
        f"# {found['name']}\n\nCommit {found['commit']}, seed {found['seed']}, {found['began']}, {found['seconds']} s."
    )
    return f"{head} All figures are in `{found['name']}.json`.\n\n{table}"


def soak(name: str, seed: int, seconds: float, folder: Path = EVIDENCE) -> dict[str, Any]:
    """One scenario to its end; what it asserts and fails goes up."""
    scenario = importlib.import_module(f"tests.soak.{name}")
    context = Context(name, seed, seconds)
    began = datetime.now(UTC)
    counts = asyncio.run(scenario.run(context))
    found = evidence(context, counts, began, time.monotonic() - context.begin)
    if context.is_partial:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    if hasattr(scenario, "table"):
        (folder / f"{name}.md").write_text(page(found, scenario.table(counts)))
    return found


def main() -> int:
    chosen = sys.argv[1:] or names()
    unknown = set(chosen) - set(names())
    if unknown:
        print(f"no scenario named {', '.join(sorted(unknown))}; there are: {', '.join(names()) or 'none yet'}")
        return 2
    os.environ.setdefault("HYPOTHESIS_PROFILE", "soak")
    run.begin()
    failed = []
    try:
        for name in chosen:
            try:
                found = soak(name, int(os.environ.get("SEED", "1")), float(os.environ.get("SECONDS", "600")))
                print(f"{name}: held; {json.dumps(found['counts'])}", flush=True)
            except AssertionError as error:
                failed.append(name)
                print(f"{name}: FAILED: {error}", flush=True)
    finally:
        run.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
