"""Small disks that a test may fill: a tmpfs each, or, where nothing can be mounted, a library that says so.

    `inside(command, {directory: megabytes})` is the command that runs with them; there `Disk(directory)` fills one.

In order: a mount namespace (root), a user and mount namespace (anybody, where the kernel allows it), and a preload
library under which writes below a directory fail with ENOSPC while a flag file stands beside it. One always works.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from tests.kit import run
from tests.kit.optional import find

SOURCE = Path(__file__).with_name("full_disk.c")
CHOICE = "HBTEST_SMALL_DISK"
"""Set to `mount`, `namespace` or `shim` to have that one; otherwise the first that works here."""
_DIRECTORIES = "FULL_DISK_DIRECTORIES"


def inside(command: Sequence[str], disks: Mapping[Path, int]) -> tuple[list[str], dict[str, str]]:
    """The command that runs `command` with small disks of so many megabytes, and the variables it needs.

    A disk below another one is mounted after it: give them in that order.
    """
    mounts = [
        f"mkdir -p {path} && mount -t tmpfs -o size={size}m,mode=0755 tmpfs {path}"
        for path, size in ((shlex.quote(str(disk)), megabytes) for disk, megabytes in disks.items())
    ]
    mount, words = " && ".join(mounts), shlex.join(command)
    ways = {
        "mount": ["unshare", "--mount", "sh", "-c", f"{mount} && exec {words}"],
        # PostgreSQL refuses to be root, also of a namespace: whoever mounted it becomes a plain user again.
        "namespace": [
            "unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
            f"{mount} && exec unshare --user --map-user=1000 --map-group=1000 {words}",
        ],
    }  # fmt: skip
    wanted = os.environ.get(CHOICE)
    for name, way in ways.items():
        if wanted == name or (wanted is None and _works([*way[:-1], mount])):
            return way, {CHOICE: name}
    for disk in disks:
        disk.mkdir(parents=True)
    return list(command), {CHOICE: "shim", **_preload(disks)}


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


def _preload(disks: Iterable[Path]) -> dict[str, str]:
    """The library is given to every engine, and to nothing that has not asked for it."""
    compiler = find("cc")
    assert compiler, "this machine can neither mount a small disk nor build a library: install a C compiler"
    library = run.here() / "full_disk.so"
    with FileLock(run.here() / "full_disk.lock"):
        if not library.exists():
            draft = library.with_suffix(".new")
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O2", "-o", str(draft), str(SOURCE), "-ldl"], check=True,
                capture_output=True,
            )  # fmt: skip
            draft.chmod(0o755)
            draft.rename(library)
    return {"FULL_DISK_LIBRARY": str(library), _DIRECTORIES: ":".join(str(disk) for disk in disks)}


def preload_engines() -> None:
    """In the process that starts the engines: they get the library, where one is used at all."""
    from handbill.infra.embedded import process

    library = os.environ.get("FULL_DISK_LIBRARY")
    if library is None:
        return
    plain = process.plain_environ
    extra = {"LD_PRELOAD": library, _DIRECTORIES: os.environ[_DIRECTORIES]}
    process.plain_environ = lambda: {**plain(), **extra}


class Disk:
    """Seen from inside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._flag = Path(f"{path}.full") if _DIRECTORIES in os.environ else None

    def fill(self) -> None:
        """Leave no block free."""
        if self._flag:
            self._flag.touch(mode=0o644)
            return
        for number, size in enumerate((1 << 20, 1 << 12)):
            with (self._path / f"ballast-{number}").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        if self._flag:
            self._flag.unlink()
            return
        for number in range(2):
            (self._path / f"ballast-{number}").unlink(missing_ok=True)
