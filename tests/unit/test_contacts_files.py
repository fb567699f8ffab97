"""Files as they come: encodings, delimiters, record boundaries, workbooks, bombs; and cells."""

from __future__ import annotations

import gzip
import io
import random
import struct
import time
import tracemalloc
import zipfile
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st

from handbill.contacts import encodings, marks, parse, sources, split, understand, values
from handbill.contacts.dialects import CELL_TOO_LONG, STRAY_RETURN, UNCLOSED, Dialect, records, sniff
from handbill.contacts.model import Column, Plan, Reading
from handbill.kit.cells import FORMULA
from handbill.kit.errors import HandbillError

BOUNDS = sources.Bounds()
TEXT = "Nome;Celular;Observação\nJoão Müller;+5511987654321;ação – ok\nZoë;+5511987650000;“quoted”\n" * 40


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("packed", [False, True])
def test_no_letter_is_lost(tmp_path: Path, encoding: str, end: str, packed: bool) -> None:
    path = tmp_path / "x.csv"
    data = TEXT.replace("\n", end).encode(encoding)
    path.write_bytes(gzip.compress(data) if packed else data)
    reading, head = sources.look(path, "x.csv", BOUNDS)
    assert (reading.delimiter, reading.packed) == (";", packed)
    assert head == TEXT
    canonical, start = sources.canonical(path, tmp_path / "x.utf8", reading, BOUNDS)
    assert canonical.read_bytes()[start:].decode().replace("\r\n", "\n") == TEXT


def test_a_head_that_misleads_costs_no_letter(tmp_path: Path) -> None:
    """Megabytes of ASCII, then a word in Windows-1252, then one in UTF-8."""
    path = tmp_path / "x.csv"
    path.write_bytes(b"name,phone\n" + b"ann,1\n" * 200_000 + "João,2\n".encode("cp1252") + "Zoë,3\n".encode())
    reading, _ = sources.look(path, "x.csv", BOUNDS)
    canonical, start = sources.canonical(path, tmp_path / "x.utf8", reading, BOUNDS)
    assert canonical.read_bytes()[start:].decode().splitlines()[-2:] == ["João,2", "Zoë,3"]


def test_a_file_of_empty_members_or_entries_is_refused_at_once(tmp_path: Path) -> None:
    """Neither time nor memory may grow with what holds nothing."""
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(TEXT.encode()) + gzip.compress(b"") * 500_000)
    before = time.thread_time()
    with pytest.raises(HandbillError, match="members") as caught:
        sources.look(path, "x.csv.gz", BOUNDS)
    assert (caught.value.status, caught.value.code) == (400, "IMPORT_DAMAGED")
    assert time.thread_time() - before < 0.5
    path.write_bytes(gzip.compress(TEXT.encode()) + b"no gzip")
    with pytest.raises(HandbillError, match="damaged"):
        sources.look(path, "x.csv.gz", BOUNDS)
    path.write_bytes(b"".join(gzip.compress(TEXT.encode()) for _ in range(30)) + b"\0" * 100_000)
    assert sources.look(path, "x.csv.gz", BOUNDS)[1] == TEXT * 30

    entries = 200_000
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, *[0] * 6) + b"a"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, len(entry) * entries, 30, 0)
    path.write_bytes(b"PK\3\4" + b"\0" * 26 + entry * entries + end)
    before = time.thread_time()
    with pytest.raises(HandbillError) as caught:
        sources.look(path, "x.xlsx", BOUNDS)
    assert caught.value.code == "IMPORT_TOO_LARGE"
    assert time.thread_time() - before < 0.5


@given(st.binary(max_size=300))
def test_windows_reads_any_bytes(data: bytes) -> None:
    assert len(encodings.windows(data)) == len(data)


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a;b;c\n1,5;2,5;3\n", ";"),
        ("a\tb\n1,2,3\t4\n", "\t"),
        ("a|b|c\n1|2|3\n", "|"),
        ('name,phone\n"x, y",1\n"z; q",2\n', ","),
        ("phone\n+55 11 98765\n", ","),
    ],
)
def test_delimiters(text: str, delimiter: str) -> None:
    assert sniff(text).delimiter == delimiter


def test_a_quote_without_end_costs_one_row() -> None:
    lines = ['a,b\n', '"open,1\n', *(f"x,{n}\n" for n in range(500)), ['y,"2', 'z"', ''][0] + "\n", 'z"\n']  # fmt: skip
    found = [cells for cells, _ in records(iter(lines), Dialect())]
    assert found[1] == UNCLOSED
    assert found[2:502] == [["x", str(n)] for n in range(500)]
    assert found[-1] == ["y", "2\nz"]


def damages(text: str) -> list[tuple[int, str]]:
    """The numbers and codes of the damaged records."""
    table = enumerate(records(io.StringIO(text, newline="\n"), Dialect()), 1)
    return [(number, cells) for number, (cells, _) in table if isinstance(cells, str)]


def test_a_damaged_line_is_named_for_what_is_wrong_with_it() -> None:
    row = "a,b\n"
    assert damages(row * 3 + "x" * 2_000_000 + ",y\n" + row) == [(4, CELL_TOO_LONG)]
    assert damages(row + "x,y\rz\n" + row) == [(2, STRAY_RETURN)]
    assert damages(row * 5 + 'x,"open\n' + row * 1_000) == [(6, UNCLOSED)]
    assert damages(row * 5 + 'x,"open\n' + row) == [(6, UNCLOSED)]
    assert damages(row * 5 + 'x,"open\n' + "y" * 2_000_000 + "\n" + row) == [(6, UNCLOSED), (7, CELL_TOO_LONG)]
    assert damages('"two\nlines",x\n' + row + 'x,"open\n' + row) == [(3, UNCLOSED)]
    assert damages('"' + "long," * 400_000 + '"\n' + row)[0] == (1, CELL_TOO_LONG)


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from(['x,"open\n', '"open\n', 'a,b,"c""d\n']))
def test_a_quote_without_end_is_named_where_it_opens(before: int, after: int, bad: str) -> None:
    assert damages("a,b\n" * before + bad + "c,d\n" * after) == [(before + 1, UNCLOSED)]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
@pytest.mark.parametrize("quote", [b"", b'"'])
def test_a_line_longer_than_any_row_costs_no_memory_and_no_neighbour(tmp_path: Path, name: str, quote: bytes) -> None:
    path, size = tmp_path / name, 40 << 20
    row = b'{"phone": "+5511987654321"}\n' if name == "x.jsonl" else b"+5511987654321,Ann\n"
    with path.open("wb") as file:
        file.write(b"" if name == "x.jsonl" else b"phone,name\n")
        file.write(row * 3 + quote)
        for _ in range(size >> 20):
            file.write("é".encode() * (1 << 19))
        file.write(quote + b"\n" + row * 3)
    plan = understand.proposal(str(path), name, BOUNDS, "BR")
    tracemalloc.start()
    cut = split.prepare(str(path), str(tmp_path / "x.utf8"), plan.reading, BOUNDS)
    found = []
    for one in cut.ranges:
        task = parse.Task(str(path), one.start, one.end, one.first, plan, 1, UUID(int=1), 1)
        found += [cells for cells, original in parse.cells_of(task) if len(original) < 20_000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size * 0.75
    assert [cells for cells in found if isinstance(cells, str)] == [CELL_TOO_LONG]
    assert [index for index, cells in enumerate(found) if isinstance(cells, str)] == [3]
    assert [cells[0] for cells in found if cells] == ["+5511987654321"] * 3 + ["C"] + ["+5511987654321"] * 3
    assert cut.rows == len(found) == 7


def test_a_file_of_one_endless_line_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("name,phone," * 100_000)
    with pytest.raises(HandbillError, match="first line") as refused:
        sources.look(path, "x.csv", BOUNDS)
    assert refused.value.code == "IMPORT_NOT_A_TABLE"


cell = st.text(alphabet='ab"\n,;é 1', max_size=6)


@given(st.lists(st.lists(cell, min_size=1, max_size=4), max_size=40), st.integers(8, 120), st.booleans())
def test_chunks_hold_what_the_file_holds(rows: list[list[str]], size: int, proper: bool) -> None:
    """However a file is cut, its chunks give the records of the whole, in order, and every byte belongs to one."""
    import csv
    import tempfile

    text = io.StringIO()
    if proper:
        csv.writer(text, lineterminator="\n").writerows(rows)
    else:
        text.write("\n".join(",".join(row) for row in rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        reading = Reading("csv", header=False)
        plan = Plan(reading, [Column("a", "name")] * 4)
        ranges = list(split.split(path, 0, reading, size))
        whole = [cells for cells, _ in records(io.StringIO(text.getvalue()), Dialect())]
        parts: list[list[str] | str] = []
        for one in ranges:
            task = parse.Task(str(path), one.start, one.end, one.first, plan, 1, UUID(int=1), 1)
            found = [cells for cells, _ in parse.cells_of(task)]
            assert (len(found), one.first) == (one.rows, len(parts) + 1)
            parts += found
        assert parts == whole
        assert [one.start for one in ranges] == [0, *(one.end for one in ranges)][: len(ranges)]
        assert (ranges[-1].end if ranges else 0) == path.stat().st_size


def test_a_workbook(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    book = xlsxwriter.Workbook(str(path))
    sheet = book.add_worksheet("People")
    sheet.write_row(0, 0, ["Name", "Phone", "Born"])
    sheet.write_row(1, 0, ["João", 447911123456])
    sheet.write_datetime(
        1, 2, __import__("datetime").datetime(1990, 2, 3), book.add_format({"num_format": "yyyy-mm-dd"})
    )
    book.close()
    plan = understand.proposal(str(path), "x.xlsx", BOUNDS, "GB")
    assert [column.target for column in plan.columns] == ["name", "phone", "attribute:Born"]
    cut = split.prepare(str(path), str(tmp_path / "x.utf8"), plan.reading, BOUNDS)
    assert (tmp_path / cut.file).read_text() == "Name,Phone,Born\nJoão,447911123456,1990-02-03\n"
    assert cut.rows == 1


def test_a_time_of_a_workbook_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    book = xlsxwriter.Workbook(str(path))
    sheet, moment = book.add_worksheet(), book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"})
    sheet.write_row(0, 0, ["Phone", "Bought", "Born"])
    sheet.write(1, 0, 447911123456)
    sheet.write_datetime(1, 1, datetime(2026, 11, 19, 17, 45, 30), moment)
    sheet.write_datetime(1, 2, datetime(1990, 2, 3), moment)
    book.close()
    plan = understand.proposal(str(path), "x.xlsx", BOUNDS, "GB")
    assert [(column.target, column.kind) for column in plan.columns[1:]] == [
        ("attribute:Bought", "date"),
        ("attribute:Born", "date"),
    ]
    (cells,) = understand.head_rows(str(path), BOUNDS, plan, 5)
    assert isinstance(cells, list)
    fields = parse.Reader(plan).read(cells)
    assert fields is not None
    assert fields.attributes == {"Bought": "2026-11-19T17:45:30", "Born": "1990-02-03"}


def bombs(tmp_path: Path) -> dict[str, Path]:
    zeros = b"0" * 5_000_000
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"phone\n" + zeros))
    (tmp_path / "cut.csv.gz").write_bytes(
        gzip.compress(b"phone\n" + random.Random(1).randbytes(100_000).hex().encode())[:-900]
    )
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", zeros * 30)
    (tmp_path / "fake.xlsx").write_bytes(b"PK\x03\x04 and nothing else")
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + random.Random(2).randbytes(5_000))
    return {path.name: path for path in tmp_path.iterdir()}


def test_bombs_and_ruins_are_refused(tmp_path: Path) -> None:
    codes = {}
    for name, path in bombs(tmp_path).items():
        with pytest.raises(HandbillError) as refused:
            reading, _ = sources.look(path, name, BOUNDS)
            split.prepare(str(path), str(tmp_path / "x.utf8"), reading, BOUNDS)
        codes[name] = refused.value.code
    assert codes == {
        "bomb.csv.gz": "IMPORT_TOO_LARGE",
        "cut.csv.gz": "IMPORT_DAMAGED",
        "bomb.xlsx": "IMPORT_TOO_LARGE",
        "fake.xlsx": "IMPORT_DAMAGED",
        "image.csv": "IMPORT_NOT_A_TABLE",
    }


SHEET = b'<worksheet><sheetData><row r="1"><c r="A1"><v>1</v></c></row>%b</sheetData></worksheet>'


@pytest.mark.parametrize(
    "parts",
    [
        [SHEET % b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'],
        [SHEET % b"<x:row r = '1048576'><x:c a='>' b='<' r='xfd1048576'><x:v>1</x:v></x:c></x:row>"],
        [SHEET % (b"<row>" + b"<c/>" * 20_000 + b"<c><v>1</v></c></row>" + b"<row/>" * 2_000 + b"<row><c/></row>")],
        [SHEET % b'<row r="3000000"><c r="C3000000"/></row>'] * 2,
        [
            SHEET % (b'<c r="B2" t="s"><v>0</v></c>' * 30_000),
            b"<sst><si><t>" + b"long " * 2_000 + b"</t></si></sst>",
        ],
        [SHEET % b"<v><![CDATA[0]]></v>"],
        [SHEET % b"<v>&#48;</v>"],
    ],
)
def test_a_small_workbook_that_would_fill_the_memory(tmp_path: Path, parts: list[bytes]) -> None:
    path = tmp_path / "small.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, part in enumerate(parts):
            archive.writestr(f"xl/worksheets/sheet{number}.xml", part)
    with pytest.raises(HandbillError) as refused:
        sources.look(path, path.name, BOUNDS)
    assert refused.value.code == "IMPORT_TOO_LARGE"


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"phone": 5511987654321, "tags": ["a", "b"]}\nnot json\n{"email": "a@x.org"}\n\n')
    plan = understand.proposal(str(path), "x.jsonl", BOUNDS, "BR")
    assert [(column.name, column.target) for column in plan.columns] == [
        ("phone", "phone"), ("tags", "tags"), ("email", "email"),
    ]  # fmt: skip
    cut = split.prepare(str(path), str(tmp_path / "x.utf8"), plan.reading, BOUNDS)
    (one,) = cut.ranges
    task = parse.Task(str(path), one.start, one.end, one.first, plan, 1, UUID(int=1), 1)
    parsed = parse.parse(task, range(one.first, one.first + one.rows))
    assert (parsed.valid, parsed.rejected, parsed.blank) == (1, 2, 1)
    assert b'\t{"a","b"}\t' in parsed.staged


def test_a_file_without_a_header_is_known_by_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("Ann,+5511987654321,ann@x.org,03/04/1990\nBob,+5511987650000,bob@x.org,25/12/1991\n")
    plan = understand.proposal(str(path), "x.csv", BOUNDS, None)
    assert not plan.reading.header
    assert [(column.target, column.kind, column.date_order) for column in plan.columns] == [
        ("attribute:column 1", "text", "dmy"), ("phone", "text", "dmy"), ("email", "text", "dmy"),
        ("attribute:column 4", "date", "dmy"),
    ]  # fmt: skip


CELLS = [
    (values.day("1990-02-03", "dmy"), "1990-02-03"),
    (values.day("3/2/1990", "dmy"), "1990-02-03"),
    (values.day("2/3/1990", "mdy"), "1990-02-03"),
    (values.day("03.02.90", "dmy"), "1990-02-03"),
    (values.day("32907", "dmy"), "1990-02-03"),
    (values.day("31.02.1999", "dmy"), None),
    (values.day("1990-02-03 10:30:00", "dmy"), "1990-02-03T10:30:00"),
    (values.day("1990-02-03T10:30:00.250+02:00", "dmy"), "1990-02-03T10:30:00.250+02:00"),
    (values.day("1990-02-03 00:00:00", "dmy"), "1990-02-03"),
    (values.day("3.2.1990 9:05", "dmy"), "1990-02-03T09:05:00"),
    (values.day("2/3/1990 12:05 AM", "mdy"), "1990-02-03T00:05:00"),
    (values.day("2/3/1990 10:30:15 pm", "mdy"), "1990-02-03T22:30:15"),
    (values.day("1990-02-03 in the morning", "dmy"), "1990-02-03"),
    (values.day("1990-02-03 10:30 Z", "dmy"), "1990-02-03T10:30:00+00:00"),
    (values.day("1990-02-03 :", "dmy"), "1990-02-03"),
    (values.day("1990-02-03 25:00", "dmy"), "1990-02-03"),
    (values.day("1990-02-03 10", "dmy"), "1990-02-03"),
    (values.day("32907.4375", "dmy"), "1990-02-03T10:30:00"),
    (values.day("32907.0", "dmy"), "1990-02-03"),
    (values.day("32907.999999", "dmy"), "1990-02-04"),
    (values.number("1.234,50 €"), 1234.5),
    (values.number("1,234.5"), 1234.5),
    (values.number("(12)"), -12),
    (values.number("twelve"), None),
    (values.yes_no("Sim"), True),
    (values.yes_no("nein"), False),
    (values.locale(" pt-BR "), "pt-BR"),
    (values.locale("zh_Hant_TW"), "zh_Hant_TW"),
    (values.locale("English"), None),
    (values.locale("en-GB and more than that"), None),
    (values.locale("e\x00"), None),
    (values.text(" e\u0301 \u00a0"), "é"),
    (values.text("a\x00b"), None),
]


@pytest.mark.parametrize(("answer", "expected"), CELLS)
def test_cells(answer: values.Answer, expected: object) -> None:
    assert answer[0] == expected
    assert bool(answer[1]) == (expected is None)


def test_a_locale_that_the_api_would_refuse_costs_the_field_and_is_noted() -> None:
    plan = Plan(Reading("csv"), [Column("phone", "phone"), Column("language", "locale")], region="BR")
    good, bad = (parse.Reader(plan).read(["+5511987654321", cell]) for cell in (" pt-BR ", "Portuguese"))
    assert good is not None
    assert (good.locale, good.notes) == ("pt-BR", [])
    assert bad is not None
    assert (bad.locale, bad.reject, bad.notes) == (None, None, [(values.LOCALE_INVALID, "locale", "Portuguese")])


@given(st.text(max_size=8))
def test_marks_against_formulas_come_off_again(text: str) -> None:
    marked = marks.marked(text)
    assert not marked.startswith(FORMULA)
    assert marks.unmarked(marked) == text


def test_ids_are_the_same_each_time_and_in_the_order_of_the_file() -> None:
    one = UUID("0192f3c1-7a10-7c3e-8f00-5b1f6d1c2a01")
    given_ids = [UUID(parse.contact_ids(one)(row)) for row in (1, 2, 300_000, 4_000_000)]
    first, last = parse.id_range(one)
    assert given_ids == sorted(given_ids)
    assert first < given_ids[0] < given_ids[-1] < last
    assert {made.version for made in given_ids} == {7}
    assert {made.variant for made in given_ids} == {one.variant}
