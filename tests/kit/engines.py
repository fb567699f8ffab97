"""What a test worker knows of the run's engines: their URLs, asked from the keeper when first needed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from tests.kit import run

ROOT = Path(__file__).resolve().parents[2]


class Engines:
    """URLs of this worker's own database, own Redis server and own ClickHouse database."""

    def __init__(self, worker: str) -> None:
        self.worker = worker

    @cached_property
    def postgres_url(self) -> str:
        """The owner's URL of a database that only this worker uses, freshly copied from the migrated template."""
        return _ask("postgres", self.worker)

    @cached_property
    def redis_url(self) -> str:
        return _ask("redis", self.worker)

    @cached_property
    def clickhouse_url(self) -> str:
        """Asking for this starts ClickHouse: seconds and 300 MB, so ask only where events are stored."""
        return _ask("clickhouse", self.worker)


def _ask(want: str, worker: str) -> str:
    home = run.here()
    _ensure_keeper(home)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(150)
        line.connect(str(home / "keeper.sock"))
        line.sendall(json.dumps({"want": want, "worker": worker}).encode() + b"\n")
        with line.makefile("rb") as replies:
            answer = json.loads(replies.readline() or b'{"error": "the keeper of the engines died"}')
    if "error" in answer:
        raise RuntimeError(f"no {want} for {worker}:\n{answer['error']}\n{_tail(home)}")
    return str(answer["url"])


def _ensure_keeper(home: Path) -> None:
    if (home / "keeper.sock").exists():
        return
    with FileLock(home / "lock"):
        if (home / "keeper.sock").exists():
            return
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HANDBILL_")}
        environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        with (home / "keeper.log").open("wb") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.keeper", str(home)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert keeper.stdout is not None
        ready = keeper.stdout.readline()
        keeper.stdout.close()
        keeper.returncode = 0  # it outlives us on purpose; without this its finaliser would warn
        if ready != b"ready\n":
            raise RuntimeError(f"the keeper of the engines did not start:\n{_tail(home)}")


def _tail(home: Path) -> str:
    log = home / "keeper.log"
    return log.read_text(errors="replace")[-4000:] if log.exists() else ""
