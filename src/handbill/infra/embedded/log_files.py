"""Logs of engines and children: bounded while they run, at most two files of `LOG_LIMIT` bytes for each process.

A log that we write ourselves is renamed to `.log.1` and begun again. An engine keeps its log open, so its last
`LOG_LIMIT` bytes are copied to `.log.1` and the file is truncated: it was opened for appending, which makes that safe.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes of one log file. A process has at most two: the current one and `.log.1`."""


def older_file(path: Path) -> Path:
    """Where the part before the current one is."""
    return path.with_suffix(".log.1")


class LogFile:
    """A log that we write: `write` never raises, and tries to open the file again after an error."""

    def __init__(self, path: Path, on_error: Callable[[OSError], None], *, limit: int = LOG_LIMIT) -> None:
        self.path = path
        self._on_error = on_error
        self._limit = limit
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, line: bytes) -> None:
        """Append one line; `on_error` is called when it could not be written."""
        try:
            if self._file is not None and self._size + len(line) > self._limit:
                self.close()
            if self._file is None:
                self._open(len(line))
            if self._file is not None:
                self._size += self._file.write(line)
        except OSError as error:
            self.close()
            self._on_error(error)

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _open(self, wanted: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size + wanted > self._limit:
                self.path.replace(older_file(self.path))
        self._file = self.path.open("ab", buffering=0)
        self._size = self._file.tell()


def truncate_large(path: Path, limit: int = LOG_LIMIT) -> bool:
    """If an engine's log is above the limit, move its end to `.log.1` and empty it; True when that was done.

    OSError when the file cannot be truncated. On a full disk there is no copy, and the file is truncated all the same.
    """
    try:
        if path.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    older = older_file(path)
    older.unlink(missing_ok=True)  # first, so that the copy finds space on a disk that is nearly full
    try:
        _copy_end(path, older, limit)
    except OSError:
        older.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


def _copy_end(path: Path, target: Path, limit: int) -> None:
    with path.open("rb") as source, target.open("wb") as copy:
        os.fchmod(copy.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
        end = source.seek(0, os.SEEK_END)
        source.seek(max(0, end - limit))
        shutil.copyfileobj(source, copy, 1 << 20)
