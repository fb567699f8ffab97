"""The home directory: everything an installation keeps lives under it, and one supervisor at a time owns it.

<home>/.handbill-data  the marker: `handbill reset` touches no directory without it
<home>/lock          held by the running supervisor; its pid is written inside
<home>/secrets/      0700; one file per secret, 0600
<home>/postgres/     the data directory and its lock (as root: owned by the plain user PostgreSQL runs as)
<home>/redis/        configuration, append-only file, lock
<home>/clickhouse/   the embedded ClickHouse's files, lock
<home>/logs/         one log per engine
<home>/run/          ports that were used last, so that addresses stay the same over restarts
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from handbill.kit.errors import Broken, Busy

MARKER = ".handbill-data"
_MARK = "The data of a Handbill installation. `handbill reset` removes it; without this file it refuses to.\n"
REMOVED = ".removed"
"""Where a reset puts things before it deletes them."""
ENTRIES = frozenset(
    (MARKER, REMOVED, "lock", "secrets", "postgres", "redis", "clickhouse", "logs", "run", "uploads", "geo")
)
"""Everything that an installation keeps directly in its home."""


class Home:
    """An opened and locked home. Close it, or use it as a context manager."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def open(cls, path: Path) -> Home:
        """Create what is missing, check that it is ours and writable, lock it; Broken or Busy says what is wrong."""
        return cls.lock(prepare(path))

    @classmethod
    def lock(cls, path: Path) -> Home:
        """Lock a home that exists; Busy (HOME_LOCKED) while a supervisor runs on it."""
        with explained(path):
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
                os.close(lock)
                raise Busy(
                    f"Handbill is already running on {path} as pid {holder}. Nothing was changed. "
                    f"Stop that one first, or choose another HANDBILL_HOME.",
                    code="HOME_LOCKED",
                ) from None
            try:
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            except OSError:
                os.close(lock)
                raise
        return cls(path, lock)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def prepare(path: Path) -> Path:
    """Make the home and its rooms if they are missing, after checking that they can be ours."""
    path = path.absolute()
    with explained(path):
        # As root PostgreSQL runs as a plain user, who must be able to pass through (not list) the home.
        _directory(path, 0o711 if os.geteuid() == 0 else 0o700)
        owner = path.stat().st_uid
        if owner != os.geteuid():
            raise Broken(
                f"{path} belongs to uid {owner}, but Handbill runs as uid {os.geteuid()}. Nothing was changed. "
                f"Run it as that user, or choose another HANDBILL_HOME.",
                code="HOME_FOREIGN",
            )
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "not writable", str(path))
        _mark(path)
        for room in ("secrets", "logs", "run"):
            _directory(path / room, 0o700)
    return path


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file system's refusals into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Broken(
                f"The disk that holds {path} is full. What was saved before is still there. "
                f"Free some space or move HANDBILL_HOME to a larger disk, then start again.",
                code="DISK_FULL",
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise Broken(
                f"{error.filename or path} cannot be written by uid {os.geteuid()} ({error.strerror}). Nothing was "
                f"changed. Give that user the directory, or choose another HANDBILL_HOME.",
                code="HOME_NOT_WRITABLE",
            ) from error
        if error.errno in {errno.ENOTDIR, errno.EEXIST}:
            raise Broken(
                f"{error.filename or path} is in the way: a directory was expected there. Nothing was changed. "
                f"Move it aside, or choose another HANDBILL_HOME.",
                code="HOME_IN_THE_WAY",
            ) from error
        raise


def secret(home: Path, name: str) -> tuple[str, bool]:
    """The secret of that name and whether it was made just now. Written whole or not at all."""
    path = home / "secrets" / name
    with explained(path):
        with contextlib.suppress(FileNotFoundError):
            kept = path.read_text().strip()
            if kept:
                return kept, False
        fresh = secrets.token_urlsafe(24)
        write_private(path, fresh + "\n")
    return fresh, True


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically and flushed to the disk."""
    draft = path.with_name(path.name + ".new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as out:
        os.fchmod(out.fileno(), 0o600)
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    replace(draft, path)


def replace(draft: Path, path: Path) -> None:
    """Rename a finished draft into place, so that a power cut leaves either the old or the new."""
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


async def vacant(lock: Path, name: str, patience: float = 30.0) -> None:
    """Wait until nobody lives on an engine's data: after a crash the predecessor may still be leaving.

    The leash takes the same lock again; waiting here first means that the old port and pid file are judged truly.
    """
    deadline = time.monotonic() + patience
    while is_held(lock):
        if time.monotonic() > deadline:
            raise Busy(
                f"{name}: another process still holds {lock} after {patience:g} s. Nothing was changed. "
                f"Stop the other Handbill that runs on this home, then start again.",
                code="ENGINE_LOCKED",
            )
        await asyncio.sleep(0.02)


def is_held(lock: Path) -> bool:
    """Whether a live process holds this lock file."""
    return holder(lock) is not None


def holder(lock: Path) -> str | None:
    """What the live process that holds this lock file has written into it (its pid, if it is a home's); else None."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(handle, 32).decode(errors="replace").strip()
    else:
        return None
    finally:
        os.close(handle)


def is_marked(path: Path) -> bool:
    return (path / MARKER).is_file() and not (path / MARKER).is_symlink()


def _mark(path: Path) -> None:
    """Mark a new home, or one that an older release made. A directory that holds anything else stays unmarked."""
    if is_marked(path):
        return
    names = {entry.name for entry in path.iterdir()}
    if not names or (names <= ENTRIES and ("lock" in names or (path / "secrets" / "seal.key").is_file())):
        write_private(path / MARKER, _MARK)


def _directory(path: Path, mode: int) -> None:
    """Make a directory with exactly this mode; one that exists keeps the mode its owner gave it."""
    if path.is_dir():
        return
    path.mkdir(parents=True, mode=mode, exist_ok=True)
    path.chmod(mode)
