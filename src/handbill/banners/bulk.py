"""Many banners from one body: a JSON list, or CSV whose first line names the fields."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from handbill.banners.checks import refuse
from handbill.banners.model import NewBanner
from handbill.kit.errors import Fault, Invalid
from handbill.kit.untrusted_json import UNREADABLE, check_depth

MOST = 1_000
_FIELDS = frozenset(NewBanner.__struct_fields__)


def banners_from(body: bytes, content_type: str) -> list[NewBanner]:
    """Every row or none; faults name the row (counted from 0) and the field."""
    kind = content_type.partition(";")[0].strip().lower()
    rows = _csv_rows(body) if kind == "text/csv" else _json_rows(body)
    if not 1 <= len(rows) <= MOST:
        refuse([Fault("", f"holds {len(rows)} banners, must hold 1 to {MOST}")])
    made: list[NewBanner] = []
    faults: list[Fault] = []
    for place, row in enumerate(rows):
        try:
            made.append(msgspec.convert(row, NewBanner, strict=kind != "text/csv"))
        except msgspec.ValidationError as error:
            faults.append(Fault(f"[{place}]", str(error)))
    refuse(faults)
    return made


def _json_rows(body: bytes) -> list[Any]:
    check_depth(body)
    try:
        rows = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise Invalid(f"The body is not JSON ({error}); nothing was made.", code="BAD_JSON") from None
    if not isinstance(rows, list):
        raise Invalid("Send a list of banners; nothing was made.", code="BAD_JSON")
    return rows


def _csv_rows(body: bytes) -> list[Any]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid("The CSV is not UTF-8; nothing was made.", code="BAD_CSV") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or []
        unknown = [name for name in names if name not in _FIELDS]
        refuse([Fault(name, "is no field of a banner") for name in unknown])
        return [_filled(row) for row in reader]
    except csv.Error as error:
        raise Invalid(f"The CSV cannot be read ({error}); nothing was made.", code="BAD_CSV") from None


def _filled(row: dict[str | None, Any]) -> dict[str, Any]:
    """Empty cells are fields that were not sent; several placements stand in one cell, with spaces between."""
    if None in row or None in row.values():
        raise csv.Error("a row has more or fewer cells than the first line")
    filled: dict[str, Any] = {str(name): value for name, value in row.items() if value != ""}
    if "placement_ids" in filled:
        filled["placement_ids"] = filled["placement_ids"].split()
    if "is_active" in filled:
        filled["is_active"] = filled["is_active"].strip().lower()
    return filled
