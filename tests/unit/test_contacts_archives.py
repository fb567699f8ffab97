"""A `.zip` with a table inside: chosen by what it is or by the user, bounded, never unpacked twice."""

from __future__ import annotations

import gzip
import io
import time
import zipfile
from pathlib import Path

import pytest
import xlsxwriter

from handbill.contacts import archives, sources, split, understand
from handbill.kit.errors import HandbillError

BOUNDS = sources.Bounds()
TABLE = "name;phone\nAnn;+5511987654321\nZoë;+5511987650000\n"


def packed(path: Path, files: dict[str, bytes | str], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def refused(path: Path, member: str | None = None, bounds: sources.Bounds = BOUNDS) -> HandbillError:
    with pytest.raises(HandbillError) as caught:
        reading, _ = sources.look(path, path.name, bounds, None, member)
        split.prepare(str(path), str(path.with_suffix(".utf8")), reading, bounds)
    return caught.value


@pytest.mark.parametrize(
    ("files", "member"),
    [
        ({"contacts.csv": TABLE}, "contacts.csv"),
        ({"out/": "", "out/Contacts.CSV": TABLE, "readme.txt": "Hello"}, "out/Contacts.CSV"),
        ({"__MACOSX/._a.csv": "x", ".DS_Store": "y", "a.csv": TABLE}, "a.csv"),
        ({"list.txt": TABLE}, "list.txt"),
        ({"export": TABLE.encode("utf-16")}, "export"),
        ({"Kontakte-März.csv": TABLE.encode("utf-8-sig")}, "Kontakte-März.csv"),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_table_in_an_archive_is_read(
    tmp_path: Path, files: dict[str, bytes | str], member: str, method: int
) -> None:
    path = packed(tmp_path / "x.zip", files, method)
    plan = understand.proposal(str(path), "x.zip", BOUNDS, None)
    assert (plan.reading.member, plan.reading.delimiter, plan.reading.packed) == (member, ";", False)
    assert [column.target for column in plan.columns] == ["name", "phone"]
    assert understand.head_rows(str(path), BOUNDS, plan, 1) == [["Ann", "+5511987654321"]]
    cut = split.prepare(str(path), str(tmp_path / "x.utf8"), plan.reading, BOUNDS)
    assert (tmp_path / cut.file).read_text() == TABLE
    assert cut.rows == 2


def test_of_several_tables_the_user_chooses(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", {"a.csv": TABLE, "b/b.tsv": "phone\tname\n1\tx\n", "c.txt": "no"})
    error = refused(path)
    assert (error.status, error.code) == (400, "IMPORT_MEMBER")
    assert error.faults[0].reason == "one of: a.csv, b/b.tsv"
    assert sources.look(path, "x.zip", BOUNDS, None, "b/b.tsv")[0].delimiter == "\t"
    assert refused(path, "d.csv").code == "IMPORT_MEMBER"
    assert refused(packed(tmp_path / "none.zip", {"folder/": "", ".hidden": "x"})).code == "IMPORT_MEMBER"


def test_a_file_that_is_no_archive_has_no_member(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(TABLE)
    assert refused(path, "a.csv").code == "IMPORT_MEMBER"


def test_nothing_is_unpacked_twice(tmp_path: Path) -> None:
    inner = packed(tmp_path / "inner.zip", {"a.csv": TABLE}).read_bytes()
    book = tmp_path / "book.xlsx"
    with xlsxwriter.Workbook(str(book)) as made:
        made.add_worksheet().write_row(0, 0, ["name", "phone"])
    for name, data in {
        "a.zip": inner,
        "a.csv": inner,
        "b.csv": gzip.compress(TABLE.encode()),
        "a.csv.gz": gzip.compress(TABLE.encode()),
        "book.xlsx": book.read_bytes(),
    }.items():
        error = refused(packed(tmp_path / "outer.zip", {name: data}))
        assert (error.code, "packed itself" in error.detail) == ("IMPORT_MEMBER", True), name


def test_a_workbook_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with xlsxwriter.Workbook(str(path)) as book:
        book.add_worksheet("People").write_row(0, 0, ["name", "phone"])
    assert sources.look(path, "x.zip", BOUNDS)[0].format == "xlsx"


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    bomb = packed(tmp_path / "bomb.zip", {"a.csv": b"phone\n" + b"0\n" * 5_000_000})
    assert bomb.stat().st_size < 20_000
    assert refused(bomb).code == "IMPORT_TOO_LARGE"
    stored = packed(tmp_path / "stored.zip", {"a.csv": TABLE * 1_000}, zipfile.ZIP_STORED)
    assert refused(stored, bounds=sources.Bounds(unpacked=20_000)).code == "IMPORT_TOO_LARGE"
    many = packed(tmp_path / "many.zip", {f"{number}.csv": "" for number in range(archives.ENTRIES + 1)})
    assert refused(many).code == "IMPORT_TOO_LARGE"


def test_a_lie_about_sizes_changes_nothing(tmp_path: Path) -> None:
    """The directory claims less than there is, or more: what comes out is measured, and checked."""
    good = packed(tmp_path / "good.zip", {"a.csv": b"phone\n" + b"0\n" * 5_000_000}).read_bytes()
    at = good.rindex(b"PK\x01\x02")
    path = tmp_path / "bad.zip"
    for offset, value in ((24, 100), (20, 2**31), (24, 2**31)):
        path.write_bytes(good[: at + offset] + value.to_bytes(4, "little") + good[at + offset + 4 :])
        assert refused(path).code in ("IMPORT_TOO_LARGE", "IMPORT_DAMAGED"), (offset, value)


def test_ruins_are_refused(tmp_path: Path) -> None:
    data = packed(tmp_path / "x.zip", {"a.csv": TABLE * 100}).read_bytes()
    at, path = data.rindex(b"PK\x01\x02"), tmp_path / "bad.zip"
    locked = data[: at + 8] + b"\x01" + data[at + 9 :]
    for bad in (data[:-30], data[:60] + b"\0" * 20 + data[80:], locked, b"PK\x03\x04" + b"x" * 100):
        path.write_bytes(bad)
        assert refused(path).code == "IMPORT_DAMAGED"
    assert refused(packed(path, {"a.csv": TABLE}, zipfile.ZIP_LZMA)).code == "IMPORT_DAMAGED"


def test_thousands_of_empty_entries_are_refused_at_once(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}.csv", "")
    path = tmp_path / "x.zip"
    path.write_bytes(buffer.getvalue())
    before = time.thread_time()
    assert refused(path).code == "IMPORT_TOO_LARGE"
    assert time.thread_time() - before < 5
