"""Large files of records, line by line in bounded memory: JSON lines and CSV, plain or packed with gzip.

A record that is too long, or a quote that is never closed, costs only itself: reading goes on with the next line.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import msgspec

from handbill.kit.errors import Invalid
from handbill.kit.inflate import GZIP_MAGIC

RECORD_BYTES = 1 << 20
"""What is longer is no record."""
RECORD_LINES = 1_000
"""Lines of one CSV record: a quoted cell may hold the ends of so many."""
_DELIMITERS = (",", ";", "\t", "|")


class Record(msgspec.Struct, frozen=True):
    """One record: its first and last line, where the next one begins, and its bytes. None: it is too long."""

    line: int
    last_line: int
    end: int
    raw: bytes | None


class RecordFile:
    """Open it as a context. `names` are those of a CSV's first line."""

    def __init__(self, path: Path) -> None:
        self.is_csv = ".csv" in path.suffixes[-2:]
        self.size = path.stat().st_size
        self.names: list[str] = []
        self.delimiter = ","
        self._path = path
        self._ahead: deque[tuple[bytes | None, int]] = deque()
        """Lines that were read and are to be read again, each with where it ends."""

    def __enter__(self) -> Self:
        """Raises Invalid for a CSV without names."""
        self._packed = self._path.open("rb")
        is_packed = self._packed.read(2) == GZIP_MAGIC
        self._packed.seek(0)
        self._file = cast(BinaryIO, gzip.GzipFile(fileobj=self._packed)) if is_packed else self._packed
        if self.is_csv:
            self._read_names()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._packed.close()

    @property
    def progress(self) -> int:
        """How many of the file's `size` bytes are read, as they are on the disk."""
        return self._packed.tell()

    def records(self, offset: int = 0, line: int = 0) -> Iterator[Record]:
        """From the end of a record on, given as its `end` and `last_line`. Raises Invalid where gzip data is damaged.

        Empty lines are left out.
        """
        try:
            if offset:
                self._ahead.clear()
                self._file.seek(offset)
            elif self.is_csv:
                line = 1
            while True:
                record = self._next(line + 1)
                if record is None:
                    return
                line = record.last_line
                if record.raw is None or record.raw.strip():
                    yield record
        except (zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise Invalid(f"{self._path.name} is damaged behind line {line}: {error}.", code="FILE_DAMAGED") from None

    def cells(self, raw: bytes) -> list[str]:
        """Raises csv.Error or UnicodeError for what is no CSV."""
        text = io.StringIO(raw.decode("utf-8"), newline="")
        return next(csv.reader(text, delimiter=self.delimiter, strict=True), [])

    def _read_names(self) -> None:
        raw, _ = self._line()
        text = (raw or b"").decode("utf-8-sig", "replace")
        self.delimiter = max(_DELIMITERS, key=text.count)
        try:
            self.names = [name.strip() for name in next(csv.reader(io.StringIO(text), delimiter=self.delimiter), [])]
        except csv.Error:
            self.names = []
        if not any(self.names):
            raise Invalid(f"{self._path.name} has no line with the names of its columns.", code="NO_COLUMNS")

    def _next(self, line: int) -> Record | None:
        raw, end = self._line()
        if raw == b"":
            return None
        if raw is None or not self.is_csv or raw.count(b'"') % 2 == 0:
            return Record(line, line, end, raw)
        return self._quoted(line, raw, end)

    def _quoted(self, line: int, first: bytes, first_end: int) -> Record:
        """A record with a quoted cell of several lines. If it never ends, its first line is a record without an end."""
        parts, size = [first], len(first)
        read: list[tuple[bytes | None, int]] = []
        while size <= RECORD_BYTES and len(parts) < RECORD_LINES:
            more, end = self._line()
            read.append((more, end))
            if not more:
                break
            parts.append(more)
            size += len(more)
            if more.count(b'"') % 2:
                return Record(line, line + len(parts) - 1, end, b"".join(parts))
        self._ahead.extendleft(reversed(read))
        return Record(line, line, first_end, first)

    def _line(self) -> tuple[bytes | None, int]:
        """The next line and where it ends; None for one that is too long, nothing at the end of the file."""
        if self._ahead:
            return self._ahead.popleft()
        raw = self._file.readline(RECORD_BYTES + 1)
        if len(raw) <= RECORD_BYTES:
            return raw, self._file.tell()
        while raw and not raw.endswith(b"\n"):
            raw = self._file.readline(RECORD_BYTES)
        return None, self._file.tell()
