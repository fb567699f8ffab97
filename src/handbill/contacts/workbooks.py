"""What a workbook would take in memory, told from its parts before any of them is read as a sheet.

A sheet is held as the whole rectangle up to its last cell, and every cell that points at a shared text holds a copy of
it: two cells in opposite corners, or one long text that many cells point at, make gigabytes out of a file of a few
kilobytes. Both are counted here in every part, whatever it is called, and rather too much than too little: what looks
like a cell's place counts as one, wherever it stands.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from handbill.kit.errors import TooLarge

BLOCK = 1 << 20
TAG = 4 << 20
"""No tag with its text is longer in an honest part."""
DIRECTORY = 2 << 20
"""Bytes of a workbook's directory: 10,000 entries with names of 150 characters. No other read asks for more."""
CELLS = 12_000_000
"""Cells of all sheets together, the empty ones between them too; about 32 bytes each."""
TEXT = 256 << 20
"""Bytes of shared texts, copied to wherever they are pointed at."""

_PLACE = re.compile(rb"""r\s*=\s*["']\s*([A-Za-z]{0,4})([0-9]{1,9})""")
_PLACED = re.compile(rb"""<(?:[\w.-]+:)?(?:row|c)\b[^<]*?\br\s*=""")
_CELL = re.compile(rb"<(?:[\w.-]+:)?(?:row|c)\b")
_TAG = re.compile(rb"<(?:[\w.-]+:)?(row|c)\b([^<]*)")
_POINTER = re.compile(rb">\s*([0-9]{1,9})\s*<")
_ODD_POINTERS = (re.compile(rb"(?:\A|<)(?>[^<]*?v\b)[^<]*+<!"), re.compile(rb"&#(?:0*(?:4[89]|5[0-7])|x0*3[0-9]);"))
"""A number in pieces or in disguise: no program writes one."""
_TEXT = re.compile(rb"<(?:[\w.-]+:)?(si|t)\b([^<]*)")


class BoundedFile:
    """A file of which `zipfile` reads no directory that is larger than any workbook has.

    `zipfile` reads the whole directory and makes an object of each entry before it can be asked how many there are.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Raises TooLarge instead of more than DIRECTORY bytes; without a size, `zipfile` reads the end of the file."""
        if size > DIRECTORY:
            raise _too_large()
        data = self._file.read(size if size >= 0 else DIRECTORY + 1)
        if len(data) > DIRECTORY:
            raise _too_large()
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


def check(archive: zipfile.ZipFile) -> None:
    """Raises unless every part is what the directory claims, and all sheets together fit into memory."""
    cells = 0
    lengths: list[int] = []
    pointers: Counter[int] = Counter()
    for entry in archive.infolist():
        part = _Part()
        for block in _blocks(archive, entry):
            part.measure(block)
            for kind, text in _TEXT.findall(block):
                if kind == b"si":
                    lengths.append(0)
                elif lengths:
                    lengths[-1] += len(text)
            pointers.update(map(int, _POINTER.findall(block)))
            if any(odd.search(block) for odd in _ODD_POINTERS):
                raise _too_large()
        cells += part.cells
        if cells > CELLS:
            raise _too_large()
    if sum(lengths[place] * times for place, times in pointers.items() if place < len(lengths)) > TEXT:
        raise _too_large()


class _Part:
    """The rectangle of one part: by the places that are named, and by counting what has none."""

    def __init__(self) -> None:
        self._column = self._row = self._rows = self._in_row = self._most_in_row = 0

    @property
    def cells(self) -> int:
        return (self._column + self._most_in_row) * (self._row + self._rows)

    def measure(self, block: bytes) -> None:
        for letters, digits in set(_PLACE.findall(block)):
            self._column = max(self._column, _number(letters))
            self._row = max(self._row, int(digits))
        if len(_PLACED.findall(block)) == len(_CELL.findall(block)):
            return
        for kind, more in _TAG.findall(block):
            named = _PLACE.search(more) is not None
            if kind == b"row":
                self._rows += not named
                self._in_row = 0
            elif not named:
                self._in_row += 1
                self._most_in_row = max(self._most_in_row, self._in_row)


def _number(letters: bytes) -> int:
    number = 0
    for letter in letters.upper():
        number = number * 26 + letter - 64
    return number


def _blocks(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The part's bytes, cut in front of tags."""
    size, rest = 0, b""
    with archive.open(entry) as file:
        while block := file.read(BLOCK):
            size += len(block)
            if size > entry.file_size:
                raise zipfile.BadZipFile("an entry is larger than it says")
            rest += block
            if (cut := rest.rfind(b"<")) > 0:
                yield rest[: cut + 1]  # with the bracket: what stands between two of them is seen whole
                rest = rest[cut:]
            if len(rest) > TAG:
                raise _too_large()
    yield rest


def _too_large() -> TooLarge:
    return TooLarge(
        "The workbook is too large when unpacked; nothing was imported. Save the sheet as CSV.",
        code="IMPORT_TOO_LARGE",
    )
