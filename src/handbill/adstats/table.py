"""Rows as CSV that a spreadsheet opens as text: a cell that would be a formula gets an apostrophe in front."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import msgspec

from handbill.kit.cells import harmless


def as_csv(kind: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    names = [field.name for field in msgspec.structs.fields(kind)]
    writer.writerow(names)
    for row in rows:
        writer.writerow([cell(getattr(row, name)) for name in names])
    return out.getvalue().encode()


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return f"{value:f}"  # a number is no formula, also below zero
    if isinstance(value, date):
        return value.isoformat()
    text = str(value)
    return harmless(text) if isinstance(value, str) else text
