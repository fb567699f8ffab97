"""What stands above a header: `sep=;`, titles, empty rows."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import xlsxwriter

from handbill.contacts import parse, sources, split, understand
from handbill.contacts.model import Plan
from handbill.kit.errors import HandbillError

BOUNDS = sources.Bounds()
HEADER = "Name;Phone;City"
DATA = "Ann;+5511987654321;Rio\nBob;+5511987650000;Bahia\n"
TARGETS = ["name", "phone", "attribute:City"]
FILES = {
    "sep": ("sep=;\n" + HEADER, 1),
    "sep of Excel": ('"sep=;"\r\n' + HEADER, 1),
    "upper case": ("SEP=;\n" + HEADER, 1),
    "sep and a title": ("sep=;\nCustomers\n\n" + HEADER, 3),
    "a title": ("Customers of spring\n" + HEADER, 1),
    "titles": ("Customers, spring 2026\nExported:;2026-11-19\n\n" + HEADER.replace("City", "City;Zip;Street"), 3),
    "none": (HEADER, 0),
    "empty rows": ("\n\n" + HEADER, 2),
    "a quote in a title": ('The "best" customers\n' + HEADER, 1),
}


def planned(path: Path, name: str = "x.csv") -> Plan:
    return understand.proposal(str(path), name, BOUNDS, "BR")


def rows_of(path: Path, plan: Plan, target: Path) -> list[tuple[int, list[str] | str]]:
    """All rows of all chunks as the import reads them, with their numbers."""
    cut = split.prepare(str(path), str(target), plan.reading, BOUNDS, 40)
    rows: list[tuple[int, list[str] | str]] = []
    for one in cut.ranges:
        task = parse.Task(str(path.parent / cut.file), one.start, one.end, one.first, plan, 1, UUID(int=1), 1)
        rows += [(row, cells) for row, (cells, _) in enumerate(parse.cells_of(task), one.first)]
    return rows


@pytest.mark.parametrize("kind", FILES)
def test_what_stands_above_a_header_is_skipped(tmp_path: Path, kind: str) -> None:
    top, skip = FILES[kind]
    path = tmp_path / "x.csv"
    path.write_text(top + "\n" + DATA, newline="")
    plan = planned(path)
    assert (plan.reading.delimiter, plan.reading.header, plan.reading.skip_rows) == (";", True, skip)
    assert [column.target for column in plan.columns][:3] == TARGETS
    rows = rows_of(path, plan, tmp_path / "x.utf8")
    assert [(row, cells[0]) for row, cells in rows] == [(skip + 2, "Ann"), (skip + 3, "Bob")]
    head = understand.head_rows(str(path), BOUNDS, plan, 10)
    assert [cells[0] for cells in head] == ["Ann", "Bob"]


@pytest.mark.parametrize("mark", [";", ",", "\t", "|", "^"])
def test_the_delimiter_of_a_sep_line_is_believed(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"sep={mark}\nphone{mark}note\n+5511987654321{mark}a,b;c\n")
    plan = planned(path)
    assert (plan.reading.delimiter, plan.reading.skip_rows, len(plan.columns)) == (mark, 1, 2)


@pytest.mark.parametrize("line", ["sep=a", "sep=", "sep=;;", 'sep="', "step=;"])
def test_another_first_line_is_no_sep_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{line}\nphone,name\n+5511987654321,Ann\n+5511987654322,Bob\n+5511987654323,Eve\n")
    assert planned(path).reading.delimiter == ","


@pytest.mark.parametrize(
    "text",
    [
        "Ann;;;\nBob;+5511987654321;bob@x.org;x\nname;phone;email;city\n",
        "+5511987654321\nphone\n+5511987654322\n",
        "ann@x.org;;;;\nphone;name;email;city;zip\n",
        "Ann;Silva;Rio\nBob;Souza;Bahia\n",
    ],
)
def test_a_row_of_data_is_never_taken_for_a_title(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert planned(path).reading.skip_rows == 0


def test_titles_of_a_workbook_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    book = xlsxwriter.Workbook(str(path))
    sheet = book.add_worksheet()
    for row, cells in enumerate([["Customers"], [], ["Name", "Phone", "City"], ["Ann", 5511987654321, "Rio"]]):
        sheet.write_row(row, 0, cells)
    book.close()
    plan = planned(path, "x.xlsx")
    assert (plan.reading.skip_rows, [column.target for column in plan.columns]) == (2, TARGETS)
    assert rows_of(path, plan, tmp_path / "x.utf8") == [(4, ["Ann", "5511987654321", "Rio"])]


@pytest.mark.parametrize(("header", "skip", "first"), [(True, 1, (3, "c")), (False, 2, (3, "c")), (False, 0, (1, "t"))])
def test_rows_to_skip_are_chosen_by_hand(tmp_path: Path, header: bool, skip: int, first: tuple[int, str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text("t,t\na,b\nc,d\ne,f\n")
    plan = understand.reheaded(str(path), BOUNDS, planned(path), header, skip)
    assert (plan.reading.header, plan.reading.skip_rows) == (header, skip)
    row, cells = rows_of(path, plan, tmp_path / "x.utf8")[0]
    assert (row, cells[0]) == first
    assert understand.head_rows(str(path), BOUNDS, plan, 1) == [cells]


def test_json_lines_have_no_rows_to_skip(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"phone": "+5511987654321"}\n')
    plan = planned(path, "x.jsonl")
    assert understand.reheaded(str(path), BOUNDS, plan, False, 0) == plan
    with pytest.raises(HandbillError, match="JSON lines"):
        understand.reheaded(str(path), BOUNDS, plan, True, 1)


def test_more_rows_to_skip_than_there_are_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("name,phone\nAnn,+5511987654321\n")
    with pytest.raises(HandbillError) as refused:
        understand.reheaded(str(path), BOUNDS, planned(path), True, 9)
    assert refused.value.code == "IMPORT_MAPPING"
