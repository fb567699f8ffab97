"""The report as a file: every rejected row with its own columns, why, and what to do; safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from handbill.contacts import phones
from handbill.contacts.import_store import Finding
from handbill.contacts.marks import marked
from handbill.contacts.model import Plan
from handbill.contacts.parse import original_cells
from handbill.contacts.reasons import REASONS
from handbill.contacts.understand import OURS


def head(plan: Plan) -> str:
    names = [column.name for column in plan.columns if column.name not in OURS]
    return _lines([[*(marked(name) for name in names), *OURS]])


def body(plan: Plan, findings: Sequence[Finding]) -> str:
    """One line a finding. A row without a readable table of cells stands whole in the first column."""
    ours = [index for index, column in enumerate(plan.columns) if column.name in OURS]
    width = len(plan.columns) - len(ours)
    rows = []
    for found in findings:
        cells = [cell for index, cell in enumerate(original_cells(found.original, plan)) if index not in ours]
        if len(cells) > width > 0:  # cells too many are the row's very fault: they stay together in the last column
            cells = [*cells[: width - 1], plan.reading.delimiter.join(cells[width - 1 :])]
        cells += [""] * (width - len(cells))
        rows.append(
            [
                *(marked(cell) for cell in cells),
                str(found.row),
                found.code,
                found.field or "",
                _fix(found.code),
                _suggestion(plan, found),
            ]
        )
    return _lines(rows)


def _fix(code: str) -> str:
    return " ".join(REASONS[code])


def _suggestion(plan: Plan, found: Finding) -> str:
    """The number that was perhaps meant, ready to be put into its cell."""
    number = phones.suggest(found.value, plan.region) if found.code == phones.OTHER_COUNTRY else None
    return marked(number) if number else ""


def _lines(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()
