"""`handbill reset`: removes the data of the embedded engines, and nothing that is not ours.

Only a directory that carries the marker of an installation is touched, only while nothing runs on it, and in it only
what an installation keeps there. Symbolic links are never followed. What an engine with a URL holds is never touched;
with a PostgreSQL of your own the secrets stay too, for its rows cannot be read without them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from handbill.infra.embedded import home as homes
from handbill.infra.embedded.home import Home
from handbill.kit.errors import Broken, Busy, NotFound
from handbill.settings import Settings
from handbill.wiring import addresses

_ALWAYS = ("logs", "run", homes.REMOVED)
_WITH_POSTGRES = ("uploads", "geo", "secrets")
"""What belongs to the rows in PostgreSQL: files of imports, the key of the tenants' secrets."""


class ResetPlan(msgspec.Struct, frozen=True):
    """What a reset removes (names in the home and their bytes), what it leaves, and the engines it has no part in."""

    home: Path
    removed: dict[str, int]
    left: list[str]
    external: list[str]

    def names(self) -> list[str]:
        return [name for name in self.removed if name != homes.REMOVED]

    def facts(self) -> dict[str, Any]:
        return {"home": str(self.home), "removed": self.removed, "left": self.left, "external": self.external}

    def description(self) -> str:
        """For the person who is asked."""
        lines = [f"This removes for good, in {self.home}:"]
        lines += [f"  {name:<12} {size / 1024**2:>10.1f} MB" for name, size in self.removed.items()]
        if self.external:
            lines.append(f"Not touched, for a URL is set: {', '.join(self.external)}.")
        if self.left:
            lines.append(f"Left in place: {', '.join(self.left)}.")
        lines.append("There is no way back but a backup (`handbill backup`).")
        return "\n".join(lines)


@contextmanager
def opened(settings: Settings) -> Iterator[ResetPlan]:
    """The plan for a reset, with the home locked for the block: nothing can start on it meanwhile.

    Raises NotFound when there is nothing to remove, Broken when the directory is not an installation's or is another
    user's, and Busy while something runs on it.
    """
    path = Path(os.path.abspath(settings.home))  # resolve() would follow links
    _check(path, embedded := addresses.missing(settings))
    with Home.lock(path):
        for name in addresses.ENGINES:
            if homes.is_held(path / name / "lock"):
                raise Busy(
                    f"{name} still runs on {path / name}; nothing was removed. Stop it, then reset again.",
                    code="ENGINE_LOCKED",
                )
        yield _plan(path, embedded)


def remove(plan: ResetPlan) -> None:
    """Move everything aside first, so that a reset that is killed leaves an installation that starts empty."""
    aside = plan.home / homes.REMOVED
    with homes.explained(plan.home):
        aside.mkdir(mode=0o700, exist_ok=True)
        for name in plan.names():
            shutil.rmtree(aside / name, ignore_errors=True)  # of an earlier reset that was killed
            (plan.home / name).rename(aside / name)
        shutil.rmtree(aside)
        left = {entry.name for entry in plan.home.iterdir()} - {"lock", homes.MARKER}
        if not left:
            (plan.home / homes.MARKER).unlink()
            (plan.home / "lock").unlink()
            plan.home.rmdir()


def _check(path: Path, embedded: list[str]) -> None:
    if not embedded:
        raise NotFound(
            "Every engine has a URL: their data is not ours to remove, and nothing was changed.",
            code="NOTHING_TO_RESET",
        )
    if path.is_symlink():
        raise _linked(path)
    if not path.is_dir():
        raise NotFound(f"There is no {path}: nothing was changed.", code="NOTHING_TO_RESET")
    if not path.name or not homes.is_marked(path):
        raise Broken(
            f"{path} has no {homes.MARKER}, so it is not known to be an installation; nothing was removed. Check "
            "HANDBILL_HOME. If the directory is right, start `handbill up` on it once, or remove it by hand.",
            code="HOME_UNMARKED",
        )
    if path.stat().st_uid != os.geteuid():
        raise Broken(
            f"{path} belongs to uid {path.stat().st_uid}; nothing was removed. Run as that user.", code="HOME_FOREIGN"
        )


def _plan(path: Path, embedded: list[str]) -> ResetPlan:
    wanted = {*_ALWAYS, *embedded, *(_WITH_POSTGRES if "postgres" in embedded else ())}
    removed, left = {}, []
    for entry in sorted(path.iterdir()):
        if entry.name in {"lock", homes.MARKER}:
            continue
        if entry.name not in wanted:
            left.append(entry.name)
            continue
        if entry.is_symlink() or not entry.is_dir():
            raise _linked(entry)
        removed[entry.name] = _size(entry)
    external = [name for name in addresses.ENGINES if name not in embedded]
    return ResetPlan(path, removed, left, external)


def _linked(path: Path) -> Broken:
    return Broken(
        f"{path} is not a plain directory: a reset never follows a symbolic link, and nothing was removed. Remove what "
        "it leads to by hand, or set HANDBILL_HOME to the directory itself.",
        code="HOME_LINKED",
    )


def _size(folder: Path) -> int:
    """Bytes on the disk, links not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
