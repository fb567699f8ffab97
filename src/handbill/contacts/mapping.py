"""Where each column goes: proposed from its name, in a few languages, and from what is in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from handbill.contacts import emails, phones, values
from handbill.contacts.dialects import TITLE_ROWS
from handbill.contacts.header_words import FIRST_NAMES_ALONE, LAST_NAMES_ALONE, TARGETS, fold
from handbill.contacts.model import Column, KeyKind
from handbill.kit.errors import Fault, Invalid

ATTRIBUTE = "attribute:"
BASE = frozenset({"phone", "email", "external_id", "name", "first_name", "last_name", "locale", "tags", "consent"})
_FALLBACK = 60


def is_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """A header names things: it has no address in it, no number, no cell twice."""
    cells = [cell.strip() for cell in first]
    filled = [cell for cell in cells if cell]
    if not filled or len(filled) < len(cells) / 2:
        return False
    if any("@" in cell or _is_phone(cell, None) or re.fullmatch(r"[\d\s.,+/()-]+", cell) for cell in filled):
        return False
    if _names_a_column(filled):
        return True
    return len(set(filled)) == len(filled) and all(len(cell) <= _FALLBACK for cell in filled) and bool(rest)


def title_rows(rows: Sequence[Sequence[str]]) -> int:
    """How many rows stand above a header, empty ones included: titles, and a line `sep=;`.

    A header is looked for by the names of its columns; what is above has at most half as many cells, and no address.
    """
    for index, row in enumerate(rows[: TITLE_ROWS + 1]):
        if _names_a_column(row) and is_header(row, rows[index + 1 :]):
            most = max(1, _filled(row) // 2)
            return index if all(_filled(title) <= most for title in rows[:index]) else 0
        if any("@" in cell or _is_phone(cell, None) for cell in row):
            return 0
    return 0


def _filled(row: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def _names_a_column(row: Sequence[str]) -> bool:
    return any(fold(cell) in TARGETS for cell in row)


def propose(names: Sequence[str], rows: Sequence[Sequence[str]], region: str | None) -> list[Column]:
    """One proposal a column. A target is given once; further columns of the same kind become attributes."""
    taken: set[str] = set()
    chosen: list[Column | None] = [None] * len(names)
    for index, name in enumerate(names):  # names first: a column called phone is one, whatever it holds
        target = TARGETS.get(fold(name))
        if target is not None and target not in taken:
            taken.add(target)
            chosen[index] = Column(name, target)
    _part_names(chosen, taken)
    for index, name in enumerate(names):
        if chosen[index] is None:
            cells = [row[index] for row in rows if index < len(row) and not values.blank(row[index])]
            chosen[index] = _by_content(name, index, cells, region, taken)
    return [column for column in chosen if column is not None]


def _part_names(chosen: list[Column | None], taken: set[str]) -> None:
    """`Nombre, Apellidos` and `Vorname, Name` are the two parts of a name, `Name` alone is a whole one."""
    at = next((index for index, column in enumerate(chosen) if column is not None and column.target == "name"), None)
    parts = taken & {"first_name", "last_name"}
    if at is None or len(parts) != 1 or (column := chosen[at]) is None:
        return
    word = fold(column.name)
    if parts == {"last_name"} and word in FIRST_NAMES_ALONE:
        target = "first_name"
    elif parts == {"first_name"} and word in LAST_NAMES_ALONE:
        target = "last_name"
    else:
        return
    chosen[at] = Column(column.name, target)
    taken -= {"name"}
    taken |= {target}


def _by_content(name: str, index: int, cells: list[str], region: str | None, taken: set[str]) -> Column:
    order = values.order_of(cells, region)
    tests = (("email", _is_email), ("phone", lambda cell: _is_phone(cell, region)))
    for target, test in tests if order is None else ():
        if target not in taken and cells and sum(test(cell) for cell in cells) >= 0.7 * len(cells):
            taken.add(target)
            return Column(name, target)
    label = (re.sub(r"[\x00-\x1f]", " ", name).strip() or f"column {index + 1}")[:_FALLBACK]
    while f"{ATTRIBUTE}{label}" in taken:
        label = f"{label[: _FALLBACK - 4]} {index + 1}"
    taken.add(f"{ATTRIBUTE}{label}")
    if order is not None:
        return Column(name, f"{ATTRIBUTE}{label}", "date", order)
    return Column(name, f"{ATTRIBUTE}{label}")


def _is_email(cell: str) -> bool:
    return emails.normalise(cell)[0] is not None


def _is_phone(cell: str, region: str | None) -> bool:
    return len(cell) >= 7 and "-" not in cell[4:5] and phones.normalise(cell, region)[0] is not None


def key_of(columns: Sequence[Column]) -> KeyKind:
    """The key to tell contacts apart by: the first of phone, e-mail and id that the file has."""
    targets = {column.target for column in columns}
    order: tuple[KeyKind, ...] = ("phone", "email", "external_id")
    return next((key for key in order if key in targets), "phone")


def check(columns: Sequence[Column], key: KeyKind) -> None:
    """Refuses a mapping that cannot work, with every fault."""
    faults: list[Fault] = []
    seen: set[str] = set()
    for index, column in enumerate(columns):
        target = column.target
        if target is None:
            continue
        name = target.removeprefix(ATTRIBUTE)
        if target not in BASE and (name == target or not name.strip() or "\x00" in name):
            faults.append(Fault(f"columns[{index}].target", "is none of the targets, nor attribute:NAME"))
        elif target in seen:
            faults.append(Fault(f"columns[{index}].target", f"{target} is the target of another column already"))
        seen.add(target)
    if key not in seen:
        faults.append(Fault("key", f"no column goes to {key}; map one, or choose another key"))
    if faults:
        raise Invalid("The mapping cannot be used; nothing was changed.", code="IMPORT_MAPPING", faults=faults)
