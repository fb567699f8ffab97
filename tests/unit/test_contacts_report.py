"""The report of rejected rows, and the preview of rows that would be rejected."""

from __future__ import annotations

import csv
import io

from handbill.contacts import phones, planning, report
from handbill.contacts.import_store import Finding
from handbill.contacts.model import Column, Plan, Reading
from handbill.contacts.parse import Reader

PLAN = Plan(Reading("csv"), [Column("Name", "name"), Column("Mobile", "phone")], region="IN")


def test_a_report_suggests_the_number_of_another_country() -> None:
    findings = [
        Finding(2, "reject", phones.OTHER_COUNTRY, "phone", "79211280299", "Ann,79211280299\n", 1),
        Finding(3, "reject", phones.DIGITS_MISSING, "phone", "98450", "Bob,98450\n", 2),
    ]
    rows = list(csv.DictReader(io.StringIO(report.head(PLAN) + report.body(PLAN, findings))))
    assert [(row["handbill_reason"], row["handbill_suggestion"]) for row in rows] == [
        (phones.OTHER_COUNTRY, "'+79211280299"),
        (phones.DIGITS_MISSING, ""),
    ]
    assert "another country" in rows[0]["handbill_fix"]
    assert phones.normalise(rows[0]["handbill_suggestion"], "IN") == ("+79211280299", "")


def test_a_preview_suggests_the_number_of_another_country() -> None:
    head: list[list[str] | str] = [["Ann", "79211280299"], ["Bob", "98450"], ["Eve", "98450 12345"]]
    reader = Reader(PLAN)
    read = [reader.read(cells) for cells in head if isinstance(cells, list)]
    rows = planning.previewed(PLAN, head, read, set(), 2)
    assert [(row.outcome, row.reason, row.suggestion) for row in rows] == [
        ("reject", phones.OTHER_COUNTRY, "+79211280299"),
        ("reject", phones.DIGITS_MISSING, None),
        ("create", None, None),
    ]
