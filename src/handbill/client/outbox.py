"""Reports that wait to be sent: bounded in number and in age, and in a file where they should outlive the process."""

from __future__ import annotations

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
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class NotJson(ValueError):
    """A report holds a value that JSON has no form for."""


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
        if self._path is not None:
            self._read(self._path)
            self._rewrite(self._path)

    def put(self, kind: Kind, body: dict[str, Any]) -> int:
        """Keep a report as it is now; gives its number. Raises NotJson, and keeps nothing, if it cannot be sent."""
        try:
            kept = msgspec.json.decode(msgspec.json.encode(body))
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

    def close(self) -> None:
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
        if self._fd is None or self._path is None:
            return
        os.write(self._fd, msgspec.json.encode(line) + b"\n")
        self._lines += 1
        if self._lines > 2 * len(self._entries) + _SLACK:
            self._rewrite(self._path)

    def _read(self, path: Path) -> None:
        for raw in path.read_bytes().splitlines() if path.exists() else ():
            try:
                line = msgspec.json.decode(raw, type=_Line)
            except msgspec.DecodeError:
                continue
            if line.put is not None:
                self._entries[line.put.id] = line.put
                self._next = max(self._next, line.put.id + 1)
            for number in line.done:
                self._entries.pop(number, None)

    def _rewrite(self, path: Path) -> None:
        """Only what waits, in a new file that takes the old one's place in one step."""
        self.close()
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(b"".join(msgspec.json.encode(_Line(put=one)) + b"\n" for one in self._entries.values()))
        fresh.replace(path)
        self._lines = len(self._entries)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
