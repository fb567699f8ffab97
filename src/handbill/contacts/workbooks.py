"""What a workbook would take in memory, told from its parts before any of them is believed.

A sheet is held as the whole rectangle from its first cell to its last, and every cell that points at a shared text
holds a copy of it: two cells in opposite corners, or one long text that many cells point at, make gigabytes out of a
file of a few kilobytes. Both are counted here, part by part, whatever the parts are called.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator

from handbill.kit.errors import TooLarge

BLOCK = 1 << 20
TAG = 4 << 20
"""No tag and no text of an honest part is longer."""
CELLS = 12_000_000
"""Cells of all sheets together, the empty ones between them too; about 32 bytes each."""
TEXT = 256 << 20
"""Bytes of shared texts, copied to wherever they are pointed at."""

_TAG = re.compile(rb"""<(?:[\w.-]+:)?(row|c|v|si|t)\b((?:[^<>"']|"[^"]*"|'[^']*')*)>([^<]*)""")
_REF = re.compile(rb"""(?:^|\s)r\s*=\s*["']\s*([A-Za-z]*)([0-9]*)""")
_SHARED = re.compile(rb"""(?:^|\s)t\s*=\s*["']s["']""")


def check(archive: zipfile.ZipFile) -> None:
    """Raises unless everything is what the directory claims and all sheets together fit into memory."""
    cells = 0
    lengths: list[int] = []
    pointed: dict[int, int] = {}
    for entry in archive.infolist():
        part = _Part(lengths, pointed)
        for block in _blocks(archive, entry):
            part.read(block)
        cells += part.width * part.height
        if cells > CELLS:
            raise _too_large()
    if sum(lengths[place] * times for place, times in pointed.items() if place < len(lengths)) > TEXT:
        raise _too_large()


class _Part:
    """The rectangle of one part, and the shared texts it holds or points at."""

    def __init__(self, lengths: list[int], pointed: dict[int, int]) -> None:
        self._lengths = lengths
        self._pointed = pointed
        self._in_row = 0
        self._shared = False
        self.width = self.height = 0

    def read(self, block: bytes) -> None:
        for kind, more, text in _TAG.findall(block):
            if kind == b"c":
                self._cell(more)
            elif kind == b"v":
                if self._shared and text.strip().isdigit():
                    place = int(text.strip()[:9])
                    self._pointed[place] = self._pointed.get(place, 0) + 1
            elif kind == b"row":
                self._in_row = 0
                found = _REF.search(more)
                self.height = max(self.height + 1, int(found[2][:9] or 0) if found else 0)
            elif kind == b"si":
                self._lengths.append(0)
            elif self._lengths:
                self._lengths[-1] += len(text)

    def _cell(self, more: bytes) -> None:
        """A cell without a place of its own stands right of the last one."""
        self._shared = _SHARED.search(more) is not None
        self._in_row += 1
        if found := _REF.search(more):
            self._in_row = max(self._in_row, _column(found[1]))
            self.height = max(self.height, int(found[2][:9] or 0))
        self.width = max(self.width, self._in_row)


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters[:4].upper():
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
            cut = rest.rfind(b"<")
            if cut > 0:
                yield rest[:cut]
                rest = rest[cut:]
            if len(rest) > TAG:
                raise _too_large()
    yield rest


def _too_large() -> TooLarge:
    return TooLarge(
        "The workbook is too large when unpacked; nothing was imported. Save the sheet as CSV.",
        code="IMPORT_TOO_LARGE",
    )
