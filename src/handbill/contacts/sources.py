"""The uploaded file, whatever it is: its head for a proposal, and its canonical form for the run.

Canonical is UTF-8 CSV or JSON lines without a byte order mark. A file that is that already is used as it lies; anything
else (gzip, XLSX, other encodings) is written once beside it, whole or not at all. Unpacked sizes are bounded while they
are read: a bomb is refused by what it becomes, not by what it claims.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import python_calamine

from handbill.contacts import archives, dialects, encodings, workbooks
from handbill.contacts.dialects import LINE_BYTES, LongLine
from handbill.contacts.model import Reading
from handbill.kit.errors import Invalid, TooLarge
from handbill.kit.inflate import STEP_BYTES, Damaged, TooManyMembers, inflate

HEAD = 262_144
BLOCK = 1 << 20
GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
RATIO = 200
"""No honest table shrinks to less than a two-hundredth; checked once a megabyte has come out."""


class Packing(msgspec.Struct, frozen=True):
    """What the bytes are wrapped in: nothing, gzip, or a `.zip` with this file."""

    gzip: bool = False
    member: str | None = None

    @property
    def is_plain(self) -> bool:
        return not self.gzip and self.member is None


PLAIN = Packing()


class Bounds(msgspec.Struct, frozen=True):
    """The most bytes a file may unpack to, and the most an XLSX may: it is read whole."""

    unpacked: int = 2 << 30
    xlsx: int = 128 << 20


def look(
    path: Path, name: str, bounds: Bounds, region: str | None = None, member: str | None = None
) -> tuple[Reading, str]:
    """How the file is to be read, and its head as text. `member`: which file of a `.zip` is meant."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(ZIP):
        member = archives.choose(path, name, member)
        if member is None:
            sheet = _sheet(path, bounds)
            text = "".join(_as_csv(sheet, 200))
            return Reading("xlsx", sheet=sheet.name), text
    elif member is not None:
        raise Invalid("The file is no .zip, so it has no `member`; nothing was kept.", code="IMPORT_MEMBER")
    packing = Packing(magic.startswith(GZIP), member)
    head, whole = _head(path, packing, bounds)
    if member is not None and head.startswith((ZIP, GZIP)):
        raise archives.nested()
    reading, text = _look_at_text(head, whole, member or name, region)
    return msgspec.structs.replace(reading, packed=packing.gzip, member=member), text


def _look_at_text(head: bytes, whole: bool, name: str, region: str | None) -> tuple[Reading, str]:
    encoding = encodings.guess(head, whole, region)
    text = _head_text(head, whole, encoding)
    if not text and not whole:
        raise Invalid(
            f"The file's first line has more than {HEAD} bytes; no table has. Does it have line breaks at all?",
            code="IMPORT_NOT_A_TABLE",
        )
    if "\x00" in text[:10_000] or _binary(text):
        raise Invalid("The file is no table: neither CSV, TSV, XLSX nor JSON lines.", code="IMPORT_NOT_A_TABLE")
    stem = name.lower().removesuffix(".gz")
    if stem.endswith((".jsonl", ".ndjson")) or text.lstrip()[:1] == "{":
        return Reading("jsonl", encoding), text
    if delimiter := dialects.declared(text):
        return Reading("csv", encoding, delimiter, skip_rows=1), text
    dialect = dialects.Dialect("\t") if stem.endswith((".tsv", ".tab")) and "\t" in text else dialects.sniff(text)
    return Reading("csv", encoding, dialect.delimiter, dialect.quote), text


def head_text(path: Path, reading: Reading, bounds: Bounds) -> str:
    """The head of a file that was looked at before, as the plan says it is read."""
    if reading.format == "xlsx":
        return "".join(_as_csv(_sheet(path, bounds, reading.sheet), 200))
    return _head_text(*_head(path, _packing(reading), bounds), reading.encoding)


def _packing(reading: Reading) -> Packing:
    return Packing(reading.packed, reading.member)


def _head(path: Path, packing: Packing, bounds: Bounds) -> tuple[bytes, bool]:
    """The first bytes, unpacked, and whether that is all."""
    head = b""
    for block in _blocks(path, packing, bounds, HEAD):
        head += block
        if len(head) >= HEAD:
            break
    return head[:HEAD], len(head) < HEAD


def _binary(text: str) -> bool:
    odd = sum(letter < " " and letter not in "\t\r\n\x0b\x0c" for letter in text[:10_000])
    return odd > 0.02 * len(text[:10_000]) + 1


def _head_text(head: bytes, whole: bool, encoding: str) -> str:
    mark = encodings.bom(head)
    body = head[mark[1] :] if mark else head
    if encoding in (encodings.MIXED, "cp1252"):
        text = b"".join(encodings.transcoded([body], encoding)).decode()
    else:
        text = body.decode(encoding, "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if whole else text[: text.rfind("\n") + 1]  # the last line may be cut


def _blocks(path: Path, packing: Packing, bounds: Bounds, size: int = BLOCK) -> Iterator[bytes]:
    """The file's bytes, unpacked, with the guard against bombs."""
    total = 0
    for packed, block in _packed_blocks(path, packing, size):
        total += len(block)
        if total > bounds.unpacked or (packed is not None and total > BLOCK and total > RATIO * max(packed, 1)):
            raise TooLarge(
                "The file unpacks to more than is taken; nothing was imported. Split it.", code="IMPORT_TOO_LARGE"
            )
        yield block


def _packed_blocks(path: Path, packing: Packing, size: int) -> Iterator[tuple[int | None, bytes]]:
    """Each block with the packed bytes that it and those before it were made of, if any were packed."""
    if packing.member is not None:
        packed = archives.packed_bytes(path, packing.member)
        for block in archives.blocks(path, packing.member, size):
            yield packed, block
        return
    with path.open("rb") as raw:
        if packing.gzip:
            for block in _unpacked(raw):
                yield raw.tell(), block
        else:
            while block := raw.read(size):
                yield None, block


def _unpacked(raw: BinaryIO) -> Iterator[bytes]:
    try:
        rest = yield from inflate(iter(lambda: raw.read(STEP_BYTES), b""))
    except TooManyMembers as error:
        raise Invalid(
            "The gzip file has more members than any packer writes; nothing was imported. Pack it as one.",
            code="IMPORT_DAMAGED",
        ) from error
    except Damaged as error:
        raise Invalid("The gzip file is damaged or cut off.", code="IMPORT_DAMAGED") from error
    if rest:
        raise Invalid("The gzip file is damaged or cut off.", code="IMPORT_DAMAGED")


def canonical(path: Path, target: Path, reading: Reading, bounds: Bounds) -> tuple[Path, int]:
    """The canonical file and where its text begins. Written anew each time, then renamed: repeatable."""
    if reading.format == "xlsx":
        sheet = _sheet(path, bounds, reading.sheet)
        return _written(target, (part.encode() for part in _as_csv(sheet, None))), 0
    start = 0
    with path.open("rb") as file:
        head = file.read(4)
    is_plain = _packing(reading).is_plain
    mark = encodings.bom(head) if is_plain else None
    if mark:
        start = mark[1]
    if is_plain and reading.encoding == encodings.UTF8 and _is_plain(path, start, bounds):
        return path, start
    try:
        return _written(target, _text(path, reading, reading.encoding, bounds)), 0
    except UnicodeDecodeError:  # the head misled us: every line for itself, and no letter lost
        return _written(target, _text(path, reading, encodings.MIXED, bounds)), 0


def _is_plain(path: Path, start: int, bounds: Bounds) -> bool:
    """Valid UTF-8 to its last byte, with lines that end in a line feed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    feeds = returns = 0
    try:
        for block in _blocks(path, PLAIN, bounds):
            decoder.decode(block)
            feeds += block.count(b"\n")
            returns += block.count(b"\r")
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return feeds > 0 or returns == 0


def _text(path: Path, reading: Reading, encoding: str, bounds: Bounds) -> Iterator[bytes]:
    def bare() -> Iterator[bytes]:
        first = True
        for block in _blocks(path, _packing(reading), bounds):
            if first:
                mark = encodings.bom(block)
                block = block[mark[1] :] if mark else block  # noqa: PLW2901 - the mark is no text
                first = False
            yield block

    carry = b""
    for block in encodings.transcoded(bare(), encoding):
        block = carry + block  # noqa: PLW2901 - a line end may lie across two blocks
        carry = b"\r" if block.endswith(b"\r") else b""
        yield block[: len(block) - len(carry)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    yield carry.replace(b"\r", b"\n")


def _written(target: Path, blocks: Iterator[bytes]) -> Path:
    draft = target.with_suffix(f".{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


# --- XLSX


def _sheet(path: Path, bounds: Bounds, name: str | None = None) -> Any:
    """The wanted sheet, or the first that has rows. Everything it unpacks to is counted before anything is read."""
    try:
        with path.open("rb") as raw, zipfile.ZipFile(workbooks.BoundedFile(raw)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > bounds.xlsx or len(archive.infolist()) > 10_000:
                raise TooLarge(
                    "The workbook is too large when unpacked; nothing was imported. Save the sheet as CSV.",
                    code="IMPORT_TOO_LARGE",
                )
            workbooks.check(archive)
        book = python_calamine.CalamineWorkbook.from_path(str(path))
        if name is not None:
            return book.get_sheet_by_name(name)
        for one in book.sheet_names[:20]:
            if (sheet := book.get_sheet_by_name(one)).height > 0:
                return sheet
    except (zipfile.BadZipFile, python_calamine.CalamineError, zlib.error, EOFError, RuntimeError) as error:
        raise Invalid("The workbook is damaged, locked by a password, or no XLSX.", code="IMPORT_DAMAGED") from error
    raise Invalid("The workbook has no sheet with rows.", code="IMPORT_EMPTY")


def _as_csv(sheet: Any, most: int | None) -> Iterator[str]:
    """The sheet's rows as CSV, some at a time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, row in enumerate(sheet.iter_rows()):
        if most is not None and number >= most:
            break
        writer.writerow([cell_text(cell) for cell in row])
        if text.tell() > BLOCK:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def cell_text(cell: Any) -> str:
    """A cell as it would stand in a CSV: whole numbers without the .0 that a workbook keeps them with."""
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e17 else repr(cell)
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat(" ")
    if isinstance(cell, date | time):
        return cell.isoformat()
    return str(cell)


def lines(file: BinaryIO, end: int) -> Iterator[str]:
    """The lines of a canonical file up to byte `end`; of one that is longer than any row only the beginning."""
    left = end - file.tell()
    while left > 0 and (line := file.readline(min(left, LINE_BYTES))):
        left -= len(line)
        if left == 0 or line.endswith(b"\n"):
            yield line.decode()
            continue
        rest = skip_line(file, left)
        left -= rest
        yield LongLine(line, len(line) + rest)


def skip_line(file: BinaryIO, left: int) -> int:
    """The bytes up to the end of the line, `left` at the most; none of them is held."""
    size = 0
    while size < left and (part := file.readline(min(left - size, BLOCK))):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size
