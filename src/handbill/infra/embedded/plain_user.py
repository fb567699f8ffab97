"""Whom PostgreSQL runs as when we are root, and whether that user can reach a path. Parents are never changed."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from handbill.kit.errors import Broken

User = tuple[int, int]


def plain_user(room: Path) -> User | None:
    """None unless we are root; then the user that owns the data already, else `nobody`."""
    if os.geteuid() != 0:
        return None
    if room.exists():
        owner = room.stat()
        if owner.st_uid != 0:
            return owner.st_uid, owner.st_gid
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return 65534, 65534
    return entry.pw_uid, entry.pw_gid


def reachable(path: Path, user: User) -> bool:
    """Whether the user may pass through every directory above and read the thing itself."""
    path = path.resolve()
    return all(_may(parent, user, 0o1) for parent in path.parents) and _may(path, user, 0o5)


def require_reachable(path: Path, user: User) -> None:
    path = path.resolve()
    for parent in reversed(path.parents):
        if not _may(parent, user, 0o1):
            raise Broken(
                f"PostgreSQL refuses to run as root, and uid {user[0]}, whom it runs as instead, cannot pass through "
                f"{parent}. Nothing was changed. Choose a HANDBILL_HOME elsewhere, or let others pass "
                f"(`chmod o+x {parent}`), or start Handbill as a plain user.",
                code="HOME_NOT_REACHABLE",
            )


def _may(path: Path, user: User, want: int) -> bool:
    try:
        entry = path.stat()
    except OSError:
        return False
    mode = stat.S_IMODE(entry.st_mode)
    if entry.st_uid == user[0]:
        granted = mode >> 6
    elif entry.st_gid == user[1]:
        granted = mode >> 3
    else:
        granted = mode
    return granted & want == want
