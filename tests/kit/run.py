"""The run directory: one per `pytest` command, shared by its xdist workers, gone when the command ends.

The first process of a run (the xdist controller, or pytest itself) makes the directory and holds a lock on the file
`alive` for as long as it lives. The keeper of the engines waits for that lock; getting it means that the run is over,
by whatever death. Two runs side by side have two directories and never meet.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

VARIABLE = "HBTEST_RUN"  # not HANDBILL_*: the product refuses names of that kind which it does not know

_alive: int | None = None  # the lock is held by keeping this descriptor open


def begin() -> Path:
    """Make this process the head of a new run, unless a run was handed down to it."""
    global _alive
    if given := os.environ.get(VARIABLE):
        return Path(given)
    # A private or long TMPDIR would shut PostgreSQL's plain user out, or overrun the length of a socket's path.
    short = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None
    home = Path(tempfile.mkdtemp(prefix="hbt-", dir=short))
    home.chmod(0o755)  # PostgreSQL may run as another user and must get through
    _alive = os.open(home / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(_alive, fcntl.LOCK_EX)
    os.environ[VARIABLE] = str(home)
    return home


def here() -> Path:
    return Path(os.environ[VARIABLE])


def end() -> None:
    """Let go of the run; only its head holds anything. The keeper, if one was started, cleans up; else we do."""
    global _alive
    if _alive is None:
        return
    home = Path(os.environ.pop(VARIABLE))
    kept = (home / "keeper.sock").exists()
    os.close(_alive)
    _alive = None
    if kept:
        _wait_for_keeper(home)
    else:
        shutil.rmtree(home, ignore_errors=True)


def _wait_for_keeper(home: Path, patience: float = 40) -> None:
    """The command ends when its engines have: nobody should find them still running after it."""
    deadline = time.monotonic() + patience
    while home.exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # sleeps: the loop is gone at this point, and no test waits here
