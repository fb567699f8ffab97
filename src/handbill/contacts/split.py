"""Cutting a canonical file into byte ranges that end where records end. Redis carries the ranges, never the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from handbill.contacts import sources
from handbill.contacts.dialects import Dialect, LongLine, records
from handbill.contacts.model import Reading

CHUNK = 1 << 20


class Range(msgspec.Struct, frozen=True):
    """`first` is the number of its first record in the file, counted from 1 with the header."""

    start: int
    end: int
    first: int
    rows: int


class Cut(msgspec.Struct, frozen=True):
    """The canonical file (its name only) and its ranges."""

    file: str
    ranges: list[Range]
    rows: int


def prepare(path: str, target: str, reading: Reading, bounds: sources.Bounds, chunk: int = CHUNK) -> Cut:
    """Everything that `process-upload` computes; runs in a process of its own, whose memory ends with it."""
    canonical, start = sources.canonical(Path(path), Path(target), reading, bounds)
    ranges = list(split(canonical, start, reading, chunk))
    return Cut(canonical.name, ranges, sum(one.rows for one in ranges))


def split(path: Path, start: int, reading: Reading, chunk: int = CHUNK) -> Iterator[Range]:
    """Ranges of about `chunk` bytes. The header is a record like any other here and belongs to no range."""
    size = path.stat().st_size
    with path.open("rb") as file:
        position, row = start, 1
        if reading.format != "jsonl" and (reading.header or reading.skip_rows):
            file.seek(position)
            position, row = _past_header(file, position, size, reading)
        while position < size:
            file.seek(position)
            end, rows = _range(file, position, size, reading, chunk)
            yield Range(position, end, row, rows)
            position, row = end, row + rows


def _past_header(file: BinaryIO, position: int, size: int, reading: Reading) -> tuple[int, int]:
    """Behind the rows to skip and the header; empty lines above it are no rows."""
    for number, (cells, taken) in enumerate(records(sources.lines(file, size), _dialect(reading))):
        if number >= reading.skip_rows and not reading.header:
            break
        position += _bytes(taken)
        if number >= reading.skip_rows and cells and isinstance(cells, list):
            break
    return position, 1 + reading.skip_rows + reading.header


def _range(file: BinaryIO, position: int, size: int, reading: Reading, chunk: int) -> tuple[int, int]:
    block = file.read(min(chunk, size - position))
    if reading.format == "jsonl" or reading.quote.encode() not in block:
        return _by_lines(file, block, position, size)
    return _by_records(file, position, size, reading, chunk)


def _by_lines(file: BinaryIO, block: bytes, position: int, size: int) -> tuple[int, int]:
    """Without a quote every line is a record. A last line that the block has cut stays outside: it may hold one."""
    if position + len(block) >= size:
        return size, block.count(b"\n") + (not block.endswith(b"\n"))
    if cut := block.rfind(b"\n") + 1:
        return position + cut, block.count(b"\n")
    file.seek(position)
    return position + sources.skip_line(file, size - position), 1  # one line longer than a chunk


def _by_records(file: BinaryIO, position: int, size: int, reading: Reading, chunk: int) -> tuple[int, int]:
    file.seek(position)
    used = rows = 0
    for _, taken in records(sources.lines(file, size), _dialect(reading)):
        used += _bytes(taken)
        rows += 1
        if used >= chunk:
            break
    return position + used, rows


def _bytes(lines: list[str]) -> int:
    return sum(map(_size, lines))


def _size(line: str) -> int:
    if isinstance(line, LongLine):
        return line.size
    return len(line) if line.isascii() else len(line.encode())


def _dialect(reading: Reading) -> Dialect:
    return Dialect(reading.delimiter, reading.quote)
