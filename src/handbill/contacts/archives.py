"""A `.zip` with a table inside: which of its files is read, and its bytes.

Only the chosen file is unpacked, as it is read; the caller bounds what comes out. The number of entries is bounded here
and the directory by `BoundedFile`. A packed file inside is refused: nothing is unpacked twice.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handbill.contacts.workbooks import BoundedFile
from handbill.kit.errors import Fault, Invalid, TooLarge

ENTRIES = 1_000
NAME_CHARS = 200
SHOWN = 20
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson")
_WORKBOOKS = (".xlsx", ".xlsm")
_PACKED = (*_WORKBOOKS, ".zip", ".gz", ".xls", ".ods", ".rar", ".7z")
_NOT_OPENED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError)


def choose(path: Path, file_name: str, wanted: str | None) -> str | None:
    """The name of the file to read, `wanted` if it is there; None if the archive is a workbook, by its name or parts.

    Raises Invalid (`IMPORT_MEMBER`) if nothing or more than one file is in question, TooLarge for too many entries.
    """
    with _opened(path) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries if _is_file(entry)]
        is_workbook = file_name.lower().endswith(_WORKBOOKS) or any(name.startswith("xl/") for name in names)
        if is_workbook and wanted is None:
            return None
        if len(entries) > ENTRIES:
            raise TooLarge(f"The .zip has more than {ENTRIES} entries; nothing was kept.", code="IMPORT_TOO_LARGE")
        name = _one_of(names, wanted)
        _check(archive.getinfo(name))
    return name


def blocks(path: Path, name: str, size: int) -> Iterator[bytes]:
    """The file's bytes, unpacked, at most `size` at a time. Raises Invalid if it is damaged."""
    with _opened(path) as archive, archive.open(name) as file:
        while block := file.read(size):
            yield block


def packed_bytes(path: Path, name: str) -> int:
    """How many bytes the file takes in the archive; never more than the archive has, whatever it claims."""
    with _opened(path) as archive:
        return min(archive.getinfo(name).compress_size, path.stat().st_size)


def nested() -> Invalid:
    return Invalid(
        "The file in the .zip is packed itself, or is a workbook; nothing was kept. Upload that file alone.",
        code="IMPORT_MEMBER",
    )


def _one_of(names: list[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted in names:
            return wanted
        raise _not_clear("holds no such file", names)
    tables = [name for name in names if name.lower().endswith(_TABLES)] or names
    if len(tables) == 1:
        return tables[0]
    raise _not_clear("holds several files; say with `member` which is meant" if tables else "holds no file", tables)


def _check(entry: zipfile.ZipInfo) -> None:
    if entry.filename.lower().endswith(_PACKED):
        raise nested()
    if entry.compress_type not in METHODS:
        raise Invalid("The .zip is packed in a way that is not read; nothing was kept.", code="IMPORT_DAMAGED")


def _is_file(entry: zipfile.ZipInfo) -> bool:
    """What a person put there: no folder, and nothing that an operating system adds."""
    last = entry.filename.rpartition("/")[2]
    if not last or len(entry.filename) > NAME_CHARS or entry.filename.startswith("__MACOSX/"):
        return False
    return not last.startswith(".") and last.lower() not in ("thumbs.db", "desktop.ini")


def _not_clear(what: str, names: list[str]) -> Invalid:
    shown = ", ".join(ascii(name) if not name.isprintable() else name for name in names[:SHOWN])
    return Invalid(
        f"The .zip {what}; nothing was kept.",
        code="IMPORT_MEMBER",
        faults=[Fault("member", f"one of: {shown}{', ...' if len(names) > SHOWN else ''}")],
    )


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with path.open("rb") as raw, zipfile.ZipFile(BoundedFile(raw)) as archive:
            yield archive
    except _NOT_OPENED as error:
        raise Invalid(
            "The .zip or workbook is damaged, or locked by a password; nothing was kept.", code="IMPORT_DAMAGED"
        ) from error
