"""A preload library that slows fsync down; needs a C compiler, once per run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from filelock import FileLock

from tests.kit import run
from tests.kit.optional import need

SOURCE = Path(__file__).with_name("slow_fsync.c")


def environment(ms: int) -> dict[str, str]:
    """Variables for an engine whose fsync shall take `ms` longer. Skips the test where there is no C compiler."""
    compiler = need("cc")
    library = run.here() / "slow_fsync.so"
    with FileLock(run.here() / "slow_fsync.lock"):
        if not library.exists():
            draft = library.with_suffix(".new")
            command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(draft), str(SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
            draft.chmod(0o755)
            draft.rename(library)
    return {"LD_PRELOAD": str(library), "SLOW_FSYNC_MS": str(ms)}
