"""`python -m tests.kit.crashing --at N -- <handbill args>`: the product, killed at its N-th crash point.

`--count FILE` appends each point's name to FILE; `--only TEXT` counts only points whose name contains TEXT.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from handbill.kit import crashpoints


def install(at: int, count: Path | None, only: str) -> None:
    reached = 0
    names = count.open("a", buffering=1) if count else None

    def hook(name: str) -> None:
        nonlocal reached
        if only not in name:
            return
        reached += 1
        if names:
            names.write(f"{name}\n")
        if reached == at:
            os.kill(os.getpid(), signal.SIGKILL)

    crashpoints.install(hook)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--count", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("args", nargs="*")
    chosen = parser.parse_args()
    install(chosen.at, chosen.count, chosen.only)

    from handbill.cli import main as handbill

    sys.argv = ["handbill", *chosen.args]
    handbill()


if __name__ == "__main__":
    main()
