"""Many banners from one body: a JSON list, or CSV whose first line names the fields."""

from __future__ import annotations

import csv
import io
from typing import Any, NamedTuple, get_type_hints

import msgspec

from handbill.banners.checks import refuse
from handbill.banners.model import NewBanner
from handbill.kit.errors import Fault, Invalid
from handbill.kit.faults import MOST as FAULTS_MAX
from handbill.kit.faults import faults_in, unknown_names
from handbill.kit.untrusted_json import UNREADABLE, check_depth

MOST = 1_000
_FIELDS = frozenset(NewBanner.__struct_fields__)
_HINTS = get_type_hints(NewBanner, include_extras=True)


class SentBanners(NamedTuple):
    """The banners of a body, and what stands before a field of each in the name of a fault."""

    banners: list[NewBanner]
    prefixes: list[str]


def banners_from(body: bytes, content_type: str) -> SentBanners:
    """Every row or none; faults name the place in the list, counted from 0, or the line of the CSV, and the field."""
    is_csv = content_type.partition(";")[0].strip().lower() == "text/csv"
    rows = _csv_rows(body) if is_csv else _json_rows(body)
    if not 1 <= len(rows) <= MOST:
        refuse([Fault("", f"holds {len(rows)} banners, must hold 1 to {MOST}")])
    made: list[NewBanner] = []
    faults: list[Fault] = []
    for at, row in rows:
        try:
            made.append(msgspec.convert(row, NewBanner, strict=not is_csv))
        except msgspec.ValidationError as error:
            found = _cell_faults(row, at) if is_csv else faults_in(row, NewBanner, at)
            faults += found or [Fault(at, str(error))]
        if len(faults) >= FAULTS_MAX:
            break
    refuse(faults[:FAULTS_MAX])
    return SentBanners(made, [at + (", " if is_csv else ".") for at, _ in rows])


def _cell_faults(row: dict[str, Any], at: str) -> list[Fault]:
    """What is wrong in one line of a CSV, by its columns."""
    faults = []
    for field in msgspec.structs.fields(NewBanner):
        if field.name not in row:
            faults += [Fault(f"{at}, {field.name}", "is required")] if field.required else []
            continue
        try:
            msgspec.convert(row[field.name], _HINTS[field.name], strict=False)
        except msgspec.ValidationError as error:
            faults.append(Fault(f"{at}, {field.name}", str(error).partition(" - at `")[0]))
    return faults


def _json_rows(body: bytes) -> list[tuple[str, Any]]:
    check_depth(body)
    try:
        rows = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise Invalid(f"The body is not JSON ({error}); nothing was made.", code="BAD_JSON") from None
    if not isinstance(rows, list):
        raise Invalid("Send a list of banners; nothing was made.", code="BAD_JSON")
    return [(f"[{place}]", row) for place, row in enumerate(rows)]


def _csv_rows(body: bytes) -> list[tuple[str, Any]]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid("The CSV is not UTF-8; nothing was made.", code="BAD_CSV") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or []
        twice = sorted({name for name in names if names.count(name) > 1})
        faults = unknown_names(names, _FIELDS, what="column") + [Fault(name, "is there twice") for name in twice]
        refuse(faults[:FAULTS_MAX])
        return [(f"line {reader.line_num}", _filled(row)) for row in reader]
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
