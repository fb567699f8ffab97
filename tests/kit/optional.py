"""Programs that a machine may lack. A test that needs one says so; without it the test is skipped, in print.

On a machine that promises to have a program (its name in HANDBILL_CI_HAS, separated by commas or spaces, with CI
set), its absence is a failure: a promise silently broken would switch tests off unseen.
"""

from __future__ import annotations

import os
import shutil
import sys

import pytest

# Some programs answer to several names or live where PATH does not look; the first one found counts.
NAMES: dict[str, tuple[str, ...]] = {
    "cc": ("cc", "gcc", "clang"),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "node": ("node", "nodejs"),
    "pgbouncer": ("pgbouncer", "/usr/sbin/pgbouncer"),
    "postgres15": ("/usr/lib/postgresql/15/bin/postgres",),
}


def find(program: str) -> str | None:
    """The full path of an optional program, or None."""
    for name in NAMES.get(program, (program,)):
        if found := shutil.which(name):
            return found
    return None


def promised(program: str) -> bool:
    listed = os.environ.get("HANDBILL_CI_HAS", "").replace(",", " ").split()
    return bool(os.environ.get("CI")) and program in listed


def need(program: str) -> str:
    """The program's path; skips the calling test with a printed line where there is none."""
    if found := find(program):
        return found
    line = f"{program} is not installed here: test skipped"
    if promised(program):
        pytest.fail(f"HANDBILL_CI_HAS promises {program}, but it is not on PATH")
    print(line, file=sys.stderr)
    pytest.skip(line)
