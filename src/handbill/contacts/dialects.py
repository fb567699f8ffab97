"""CSV as it comes: which delimiter, which quotes, and where one record ends and the next begins.

The splitter and the readers of chunks use the same `records`, so that they agree on every boundary: on quoted line
breaks, on stray quotes inside a cell, and on a quote that is opened and never closed. Such a quote would swallow the
rest of the file; after RUNAWAY lines or bytes its first line is given as damaged, and reading goes on behind it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence

import msgspec

from handbill.kit.bounds import SNIFF_RUN_CHARS

RUNAWAY_LINES = 200
RUNAWAY_BYTES = 131_072
CELL_BYTES = 1 << 20
LINE_BYTES = 8 << 20
"""A longer line is no row; it costs neither memory nor its neighbours."""
LINE_SHOWN = 10_000
UNCLOSED = "UNCLOSED_QUOTE"
CELL_TOO_LONG = "CELL_TOO_LONG"
STRAY_RETURN = "STRAY_RETURN"
DELIMITERS = (",", ";", "\t", "|")
NO_DELIMITERS = '\n\r@+. "'
SEP_LINE_CHARS = 12
TITLE_ROWS = 20
"""Rows above a header in which titles are expected."""

_RUN = re.compile(r"[\w.@:/+-]+")
csv.field_size_limit(CELL_BYTES)


class Dialect(msgspec.Struct, frozen=True):
    delimiter: str = ","
    quote: str = '"'


class LongLine(str):
    """The beginning of a line of more than LINE_BYTES, and how many bytes the whole line has."""

    size: int

    def __new__(cls, beginning: bytes, size: int) -> LongLine:
        line = super().__new__(cls, beginning[:LINE_SHOWN].decode("utf-8", "replace"))
        line.size = size
        return line


class _Runaway(Exception):
    """The record has no end within reach."""


class _Lines:
    """Gives lines to the csv reader and remembers those of the record under way."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._source = lines
        self._again: list[str] = []
        self.taken: list[str] = []
        self.size = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._again:
            line = self._again.pop()
        else:
            try:
                line = next(self._source)
            except StopIteration:
                if self.taken:
                    raise _Runaway from None
                raise
        self.taken.append(line)
        if isinstance(line, LongLine):
            raise _Runaway
        self.size += len(line)
        if len(self.taken) > 1 and (len(self.taken) > RUNAWAY_LINES or self.size > RUNAWAY_BYTES):
            raise _Runaway
        return line

    def begin(self) -> None:
        self.taken = []
        self.size = 0

    def give_back(self) -> str:
        """All lines of the record but the first are read anew; the first is returned."""
        first, *rest = self.taken
        self._again.extend(reversed(rest))
        self.begin()
        return first


def records(lines: Iterator[str], dialect: Dialect) -> Iterator[tuple[list[str] | str, list[str]]]:
    """Each record's cells, or the code of what is wrong with it, and the lines it came from. [] is an empty line.

    A damaged record is one line: where its quote was opened, or where the cell that is too long begins.
    """
    feed = _Lines(lines)
    while True:
        reader = csv.reader(feed, delimiter=dialect.delimiter, quotechar=dialect.quote)
        try:
            while True:
                feed.begin()
                cells = next(reader)
                yield cells, feed.taken
        except StopIteration:
            return
        except (_Runaway, csv.Error) as error:
            code = _damage(error, feed.taken)
            yield code, [feed.give_back()]


def _damage(error: Exception, taken: list[str]) -> str:
    if isinstance(taken[0], LongLine):
        return CELL_TOO_LONG
    if isinstance(error, _Runaway) or len(taken) > 1:  # the quote was opened before the line at which reading ended
        return UNCLOSED
    return CELL_TOO_LONG if len(taken[0]) > CELL_BYTES else STRAY_RETURN


def declared(sample: str) -> str | None:
    """The delimiter that a first line `sep=;` gives, as Excel writes and reads it."""
    line = sample[:SEP_LINE_CHARS].partition("\n")[0].strip("\r").strip('"')
    if len(line) != 5 or line[:4].lower() != "sep=":
        return None
    return None if line[4].isalnum() or line[4] in NO_DELIMITERS else line[4]


def sniff(sample: str) -> Dialect:
    """The dialect of a head: the delimiter that gives the most even table; clevercsv where none stands out.

    clevercsv's own patterns take the cube of a long cell, so it is not asked about a head with such a cell.
    """
    lines = list(io.StringIO(sample))[:200]
    scores = {delimiter: score for delimiter in DELIMITERS if (score := _score(lines, Dialect(delimiter)))}
    best = Dialect(max(scores, key=lambda delimiter: scores[delimiter], default=","))
    if scores.get(best.delimiter, 0) >= 0.8 or len(scores) == 1 or not lines:  # titles spoil the score of a short table
        return best
    head = sample[:8_000]
    if any(len(run) > SNIFF_RUN_CHARS for run in _RUN.findall(head)):
        return best
    import clevercsv  # here, for it takes every process 0.2 s to start with

    try:
        seen = clevercsv.Sniffer().sniff(head)
    except clevercsv.Error:
        return best
    delimiter = (seen.delimiter if seen is not None else "") or ""
    if seen is None or len(delimiter) != 1 or delimiter.isalnum() or delimiter in NO_DELIMITERS:
        return best
    return Dialect(delimiter, seen.quotechar or '"')


def _score(lines: Sequence[str], dialect: Dialect) -> float:
    """How much of the head has the commonest width, if that is more than one cell."""
    widths = [len(cells) for cells, _ in records(iter(lines), dialect) if cells and isinstance(cells, list)]
    if not widths:
        return 0.0
    common = max(set(widths), key=lambda width: (widths.count(width), width))
    return widths.count(common) / len(widths) + common / 1_000 if common > 1 else 0.0
