"""From a file's head to a proposal: how it is read, what its columns are, where each goes."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from handbill.contacts import mapping, sources
from handbill.contacts.dialects import Dialect, records
from handbill.contacts.model import Column, Plan, Reading
from handbill.contacts.parse import Fields, Reader, rows_of
from handbill.kit.bounds import HEADER_CHARS
from handbill.kit.errors import Invalid
from handbill.kit.untrusted_json import UNREADABLE

ROWS = 200
COLUMNS = 1_000
OURS = ("handbill_row", "handbill_reason", "handbill_field", "handbill_fix", "handbill_suggestion")
"""Columns that the report of rejected rows adds; a file of fixes may still have them."""


def proposal(
    path: str,
    name: str,
    bounds: sources.Bounds,
    region: str | None,
    like: Plan | None = None,
    member: str | None = None,
) -> Plan:
    """`like`: the plan whose rejected rows these are; its columns are known by their names. `member`: of a `.zip`."""
    reading, text = sources.look(Path(path), name, bounds, region, member)
    lines = list(io.StringIO(text))
    if reading.format == "jsonl":
        names = _keys(lines)
        rows = [cells for cells, _ in rows_of(iter(lines[:ROWS]), Plan(reading, [Column(one) for one in names]))]
        plain = [cells for cells in rows if isinstance(cells, list) and cells]
    else:
        skip = max(reading.skip_rows, mapping.title_rows(_rows(lines, reading)))
        reading = msgspec.structs.replace(reading, skip_rows=skip)
        table = _table(lines, reading)
        header = mapping.is_header(table[0], table[1:]) if table else False
        reading = msgspec.structs.replace(reading, header=header)
        names, plain = _named(table, header)
    if not names:
        raise Invalid("The file has no rows; nothing was kept.", code="IMPORT_EMPTY")
    if len(names) > COLUMNS:
        raise Invalid("The file has more than 1,000 columns; is the delimiter right?", code="IMPORT_NOT_A_TABLE")
    if like is not None:
        return _like(like, reading, names)
    columns = mapping.propose(names, plain, region)
    return Plan(reading, columns, key=mapping.key_of(columns), region=region)


def reheaded(path: str, bounds: sources.Bounds, plan: Plan, header: bool, skip_rows: int) -> Plan:
    """The plan for a file whose header is elsewhere, or nowhere: its columns are named and proposed again."""
    if plan.reading.format == "jsonl":
        if skip_rows:
            raise Invalid("JSON lines have no rows above a header; nothing was changed.", code="IMPORT_MAPPING")
        return plan
    reading = msgspec.structs.replace(plan.reading, header=header, skip_rows=skip_rows)
    text = sources.head_text(Path(path), reading, bounds)
    names, rows = _named(_table(list(io.StringIO(text)), reading), header)
    if not names:
        raise Invalid("No row is left below `skip_rows`; nothing was changed.", code="IMPORT_MAPPING")
    columns = mapping.propose(names, rows, plan.region)
    return msgspec.structs.replace(plan, reading=reading, columns=columns, key=mapping.key_of(columns))


def head_rows(path: str, bounds: sources.Bounds, plan: Plan, most: int) -> list[list[str] | str]:
    """The first rows below the header, each as its cells or as the reason why it has none."""
    text = sources.head_text(Path(path), plan.reading, bounds)
    found: list[list[str] | str] = []
    skip = plan.reading.header and plan.reading.format != "jsonl"
    for cells, _ in islice(rows_of(io.StringIO(text), plan), plan.reading.skip_rows, None):
        if skip:
            skip = not cells
            continue
        found.append(cells)
        if len(found) == most:
            break
    return found


def read_head(
    path: str, bounds: sources.Bounds, plan: Plan, max_rows: int
) -> tuple[list[list[str] | str], list[Fields | None]]:
    """The first rows below the header, as cells and as the fields that the plan makes of them."""
    head = head_rows(path, bounds, plan, max_rows)
    reader = Reader(plan)
    return head, [reader.read(cells) if isinstance(cells, list) and cells else None for cells in head]


def _rows(lines: list[str], reading: Reading) -> list[list[str]]:
    """The first rows as they stand there; a damaged one and an empty one have no cells."""
    table = records(iter(lines), Dialect(reading.delimiter, reading.quote))
    return [cells if isinstance(cells, list) else [] for cells, _ in islice(table, ROWS)]


def _table(lines: list[str], reading: Reading) -> list[list[str]]:
    """The rows that have cells, without those to skip."""
    table = islice(records(iter(lines), Dialect(reading.delimiter, reading.quote)), reading.skip_rows, None)
    return list(islice((cells for cells, _ in table if cells and isinstance(cells, list)), ROWS + 1))


def _named(table: list[list[str]], header: bool) -> tuple[list[str], list[list[str]]]:
    if not table:
        return [], []
    rows = table[1:] if header else table
    width = max(len(cells) for cells in table) if not header else len(table[0])
    names = [cell.strip()[:HEADER_CHARS] for cell in table[0]] if header else [""] * width
    return [name or f"column {number}" for number, name in enumerate(names, 1)], rows


def _keys(lines: list[str]) -> list[str]:
    names: dict[str, None] = {}
    for line in lines[:ROWS]:
        try:
            found: Any = msgspec.json.decode(line)
        except UNREADABLE:
            continue
        if isinstance(found, dict):
            names.update(dict.fromkeys(key[:HEADER_CHARS] for key in found))
    return list(names)


def _like(like: Plan, reading: Reading, names: list[str]) -> Plan:
    known = {column.name: column for column in like.columns}
    columns = [known.get(name, Column(name)) if name not in OURS else Column(name) for name in names]
    return msgspec.structs.replace(like, reading=reading, columns=columns, fixes=True)
