"""Reports that wait to be sent: bounded in number and in age, and in a file where they should outlive the process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from handbill.client.model import Kind
from handbill.client.rules import fitting

_SLACK = 1_000
_PAUSE_MS = 1_000
"""Between two tries to write a file that could not be written."""
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


_log = logging.getLogger("handbill.client")


class NotJson(ValueError):
    """A report holds a value that JSON has no form for."""


def encoded(body: dict[str, Any]) -> bytes:
    """Raises NotJson."""
    try:
        return msgspec.json.encode(body)
    except _UNENCODABLE as error:
        raise NotJson(str(error)) from error


class Entry(msgspec.Struct, frozen=True):
    """One report: its number in the queue, when it was put there, what it is, and its body as sent."""

    id: int
    at: int
    kind: Kind
    body: dict[str, Any]


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the file: a report that came, or the numbers of those that are done."""

    put: Entry | None = None
    done: list[int] = []


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _write_whole(fd: int, data: bytes) -> None:
    if os.write(fd, data) < len(data):
        raise OSError("only a part of a line was written")


class Outbox:
    """`Outbox("reports.jsonl")` keeps reports over a restart; `Outbox()` in memory. Past `limit` the oldest give way.

    A file belongs to one process at a time. Each report is a line; a line that was cut by a crash is passed over.
    """

    def __init__(
        self, path: str | Path | None = None, *, limit: int = 10_000, clock: Callable[[], int] = now_ms
    ) -> None:
        self._path = Path(path) if path is not None else None
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[int, Entry] = {}
        self._lines = 0
        self._next = 1
        self._fd: int | None = None
        self._is_behind = False
        """The file lacks something that is in memory."""
        self._retry_at = 0
        if self._path is not None:
            self._read(self._path)
            self._rewrite(self._path)

    def put(self, kind: Kind, body: dict[str, Any]) -> int:
        """Keep a report as it is now; gives its number. Raises NotJson, and keeps nothing, if it cannot be sent."""
        try:
            kept = msgspec.json.decode(encoded(body))
        except _UNENCODABLE as error:
            raise NotJson(str(error)) from error
        with self._lock:
            entry = Entry(self._next, self._clock(), kind, kept)
            self._next += 1
            self._entries[entry.id] = entry
            self._write(_Line(put=entry))
            if len(self._entries) > self._limit:
                self._trim()
            return entry.id

    def waiting(self) -> list[Entry]:
        """What may still be sent, oldest first. What may not is dropped here."""
        with self._lock:
            return self._trim()

    def drop(self, ids: Iterable[int]) -> None:
        with self._lock:
            self._forget(ids)

    @property
    def has_file(self) -> bool:
        """Whether reports outlive the process."""
        return self._path is not None

    def close(self) -> None:
        if self._is_behind and self._path is not None:
            with contextlib.suppress(OSError):
                self._rewrite(self._path)
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __len__(self) -> int:
        return len(self._entries)

    def _trim(self) -> list[Entry]:
        pairs = ((entry.at, entry) for entry in self._entries.values())
        found = [entry for _, entry in fitting(pairs, self._clock(), self._limit)]
        if len(found) < len(self._entries):
            self._forget(set(self._entries) - {entry.id for entry in found})
        return found

    def _forget(self, ids: Iterable[int]) -> None:
        gone = [number for number in ids if self._entries.pop(number, None) is not None]
        if gone:
            self._write(_Line(done=gone))

    def _write(self, line: _Line) -> None:
        """A disk that cannot be written to costs no report: they stay in memory, and the file is made again later."""
        if self._fd is None or self._path is None:
            return
        if self._is_behind and self._clock() < self._retry_at:
            return
        data = msgspec.json.encode(line) + b"\n"
        try:
            if self._is_behind or self._lines > 2 * len(self._entries) + _SLACK:
                self._rewrite(self._path)
            else:
                _write_whole(self._fd, data)
        except OSError as error:
            if not self._is_behind:
                _log.error("the file of waiting reports cannot be written; they stay in memory: %s", error)
            self._is_behind, self._retry_at = True, self._clock() + _PAUSE_MS
        else:
            self._lines += 1

    def _read(self, path: Path) -> None:
        for raw in path.read_bytes().splitlines() if path.exists() else ():
            try:
                line = msgspec.json.decode(raw, type=_Line)
            except _UNENCODABLE:
                continue
            if line.put is not None:
                self._entries[line.put.id] = line.put
                self._next = max(self._next, line.put.id + 1)
            for number in line.done:
                self._entries.pop(number, None)

    def _rewrite(self, path: Path) -> None:
        """Only what waits, in a new file that takes the old one's place in one step."""
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(b"".join(msgspec.json.encode(_Line(put=one)) + b"\n" for one in self._entries.values()))
        opened = os.open(fresh, os.O_WRONLY | os.O_APPEND)
        fresh.replace(path)
        self._close()
        self._fd, self._lines, self._is_behind = opened, len(self._entries), False
