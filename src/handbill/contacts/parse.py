"""One chunk: from bytes to rows ready for staging. A pure function of the file and the plan, run in processes.

What comes back is text for COPY, made here so that the worker's own process only passes it on. Every record of the
range ends in exactly one place: staged, rejected with its reason, or blank.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from handbill.contacts import dialects, emails, marks, phones, reasons, sources, values
from handbill.contacts.dialects import Dialect, LongLine, records
from handbill.contacts.mapping import ATTRIBUTE
from handbill.contacts.model import Column, Plan
from handbill.kit.untrusted_json import UNREADABLE, is_deep

STAGED = (
    "tenant_id", "import_id", "slice", "row_no", "contact_id", "phone", "whatsapp", "email", "external_id", "name",
    "locale", "attributes", "tags", "consent",
)  # fmt: skip
FOUND = ("tenant_id", "import_id", "row_no", "severity", "code", "field", "value", "original")
ORIGINAL = 8_000
SHOWN = 200
NULL = "\\N"


class Task(msgspec.Struct, frozen=True):
    """Where the chunk lies and what is to be done with it."""

    path: str
    start: int
    end: int
    first: int
    plan: Plan
    tenant_id: int
    import_id: UUID
    slices: int


class Parsed(msgspec.Struct, frozen=True):
    """COPY text of both tables, and how many rows met which fate. `repairs` and `notes` count fields."""

    staged: bytes
    found: bytes
    rows: int
    valid: int
    rejected: int
    blank: int
    noted: int
    repairs: dict[str, int]


class Fields(msgspec.Struct):
    """One row, read. `reject` has the code and the field of the first fault that costs the row."""

    phone: str | None = None
    whatsapp: str | None = None
    email: str | None = None
    external_id: str | None = None
    name: str | None = None
    locale: str | None = None
    consent: bool | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    first_name: str | None = None
    last_name: str | None = None
    reject: tuple[str, str, str] | None = None
    notes: list[tuple[str, str, str]] = msgspec.field(default_factory=list)
    repairs: list[str] = msgspec.field(default_factory=list)


Setter = Callable[[Fields, str], None]


class Reader:
    """The plan, compiled: one setter a column."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.width = len(plan.columns)
        self._setters = [
            (index, _setter(column, plan.region)) for index, column in enumerate(plan.columns) if column.target
        ]
        self._joined = all(column.target != "name" for column in plan.columns)

    def read(self, cells: list[str]) -> Fields | None:
        """None for a row in which nothing is written."""
        width, count = self.width, len(cells)
        if self.plan.fixes:
            cells = [marks.unmarked(cell) for cell in cells]
        if count > width and any(not values.blank(cell) for cell in cells[width:]):
            return Fields(reject=(reasons.COLUMNS, "", cells[width]))
        fields = Fields()
        empty = True
        for index, setter in self._setters:
            if index < count and (cell := cells[index]) and not values.blank(cell):
                empty = False
                setter(fields, cell)
        if empty and not any(cell and not values.blank(cell) for cell in cells):
            return None
        if self._joined and (fields.first_name or fields.last_name):
            fields.name = f"{fields.first_name or ''} {fields.last_name or ''}".strip()
        key = self.plan.key
        if fields.reject is None and getattr(fields, key) is None:
            fields.reject = self._lacking(fields, key)
        return fields

    @staticmethod
    def _lacking(fields: Fields, key: str) -> tuple[str, str, str]:
        for note in fields.notes:
            if note[1] == key:  # it is there, and cannot be read: that is why the row is rejected
                fields.notes.remove(note)
                return note
        missing = {"phone": phones.MISSING, "email": emails.MISSING}.get(key, reasons.KEY_MISSING)
        return missing, key, ""


def _setter(column: Column, region: str | None) -> Setter:
    target = column.target or ""
    if target.startswith(ATTRIBUTE):
        return _attribute(target.removeprefix(ATTRIBUTE), column)
    if target == "phone":
        return lambda fields, cell: _phone(fields, cell, region)
    simple: dict[str, Setter] = {"email": _email, "tags": _tags, "consent": _consent, "locale": _locale}
    if target in simple:
        return simple[target]
    if target in ("first_name", "last_name"):
        return _both(target)
    return _text(target)


def _phone(fields: Fields, cell: str, region: str | None) -> None:
    found, note = phones.normalise(cell, region)
    if found is None:
        fields.notes.append((note, "phone", cell))
        return
    fields.phone, fields.whatsapp = found, phones.whatsapp(found)
    if note:
        fields.repairs.append(note)


def _email(fields: Fields, cell: str) -> None:
    found, note = emails.normalise(cell)
    if found is None:
        fields.notes.append((note, "email", cell))
    else:
        fields.email = found


def _tags(fields: Fields, cell: str) -> None:
    parts = (values.text(part)[0] for part in cell.replace(";", ",").replace("|", ",").split(","))
    fields.tags = sorted({part[:60] for part in parts if part})[:50]


def _consent(fields: Fields, cell: str) -> None:
    value, note = values.yes_no(cell)
    if note:
        fields.notes.append((note, "consent", cell))
    fields.consent = value


def _locale(fields: Fields, cell: str) -> None:
    value, note = values.locale(cell)
    if note:
        fields.notes.append((note, "locale", cell))
    fields.locale = value


def _text(target: str) -> Setter:
    limit = 200 if target == "external_id" else 500

    def put(fields: Fields, cell: str) -> None:
        value, note = values.text(cell)
        if not note and len(value) > limit:
            note = values.TEXT_TOO_LONG
        if note:
            fields.notes.append((note, target, cell))
        elif value:
            setattr(fields, target, value)

    return put


def _both(target: str) -> Setter:
    plain = _text(target)

    def put(fields: Fields, cell: str) -> None:
        plain(fields, cell)
        if value := getattr(fields, target):
            fields.attributes[target] = value

    return put


def _attribute(name: str, column: Column) -> Setter:
    order = column.date_order
    readers: dict[str, Callable[[str], values.Answer]] = {
        "text": values.text,
        "number": values.number,
        "date": lambda cell: values.day(cell, order),
        "bool": values.yes_no,
    }
    reader = readers[column.kind]

    def put(fields: Fields, cell: str) -> None:
        value, note = reader(cell)
        if note:
            fields.notes.append((note, name, cell))
        elif value != "":
            fields.attributes[name] = value

    return put


# --- chunks


def parse(task: Task, rows: range, reject: str | None = None) -> Parsed:
    """The records of the chunk with these numbers; `reject`: the reason to read none of them. Runs in a process."""
    work, taken = _Chunk(task), 0
    for row, (cells, original) in enumerate(cells_of(task), task.first):
        if row in rows:
            work.take(row, (reject or cells) if cells else cells, original)
            taken += 1
    return work.parsed(taken)


def cells_of(task: Task) -> Iterator[tuple[list[str] | str, str]]:
    """Each record's cells, or the code of what is wrong with it; and its text as it was."""
    with Path(task.path).open("rb") as file:
        file.seek(task.start)
        yield from rows_of(sources.lines(file, task.end), task.plan)


def rows_of(lines: Iterator[str], plan: Plan) -> Iterator[tuple[list[str] | str, str]]:
    reading = plan.reading
    if reading.format == "jsonl":
        names = [column.name for column in plan.columns]
        for line in lines:
            yield (dialects.CELL_TOO_LONG if isinstance(line, LongLine) else _object(line, names)), line
        return
    for cells, taken in records(lines, Dialect(reading.delimiter, reading.quote)):
        yield cells, taken[0] if len(taken) == 1 else "".join(taken)


def _object(line: str, names: list[str]) -> list[str] | str:
    if not line.strip():
        return []
    try:
        found = None if is_deep(line.encode()) else msgspec.json.decode(line)
    except UNREADABLE:
        return reasons.BAD_JSON
    if not isinstance(found, dict):
        return reasons.BAD_JSON
    return [_cell(found.get(name)) for name in names]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return sources.cell_text(value) if not isinstance(value, dict | list) else msgspec.json.encode(value).decode()


class _Chunk:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._reader = Reader(task.plan)
        self._key = task.plan.key
        self._asked = any(column.target == "consent" for column in task.plan.columns)
        """Where a column speaks of consent, whoever says nothing readable there has given none."""
        self._head = f"{task.tenant_id}\t{task.import_id}\t"
        self._ids = contact_ids(task.import_id)
        self._staged: list[str] = []
        self._found: list[str] = []
        self._repairs: Counter[str] = Counter()
        self._rejected = self._blank = self._noted = 0

    def take(self, row: int, cells: list[str] | str, original: str) -> None:
        if isinstance(cells, str):
            self._reject(row, (cells, "", original[:SHOWN]), original)
            return
        fields = self._reader.read(cells) if cells else None
        if fields is None:
            self._blank += 1
        elif fields.reject is not None:
            self._reject(row, fields.reject, original)
        else:
            self._stage(row, fields, original)

    def _reject(self, row: int, why: tuple[str, str, str], original: str) -> None:
        self._rejected += 1
        self._finding(row, "reject", why, original)

    def _finding(self, row: int, severity: str, why: tuple[str, str, str], original: str) -> None:
        code, field, value = why
        self._found.append(
            f"{self._head}{row}\t{severity}\t{code}\t{escaped(field) or NULL}\t{escaped(value[:SHOWN])}"
            f"\t{escaped(original[:ORIGINAL])}\n"
        )

    def _stage(self, row: int, fields: Fields, original: str) -> None:
        key = str(getattr(fields, self._key))
        said = fields.consent if self._asked else True
        consent = NULL if said is None else ("t" if said else "f")
        self._staged.append(
            f"{self._head}{zlib.crc32(key.encode()) % self._task.slices}\t{row}\t{self._ids(row)}"
            f"\t{fields.phone or NULL}\t{fields.whatsapp or NULL}"
            f"\t{_or_null(fields.email)}\t{_or_null(fields.external_id)}"
            f"\t{_or_null(fields.name)}\t{_or_null(fields.locale)}\t{_json(fields.attributes)}"
            f"\t{_array(fields.tags)}\t{consent}\n"
        )
        if fields.repairs:
            self._repairs.update(fields.repairs)
        if fields.notes:
            self._noted += 1
            for note in fields.notes:
                self._finding(row, "note", note, original)

    def parsed(self, rows: int) -> Parsed:
        return Parsed(
            "".join(self._staged).encode(),
            "".join(self._found).encode(),
            rows,
            len(self._staged),
            self._rejected,
            self._blank,
            self._noted,
            dict(self._repairs),
        )


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\x00": ""})
_SPECIAL = re.compile(r"[\\\t\n\r\x00]")


def escaped(text: str) -> str:
    """A value in COPY's text form."""
    return text.translate(_ESCAPES) if _SPECIAL.search(text) else text


def _or_null(text: str | None) -> str:
    return NULL if text is None else escaped(text)


def _json(found: dict[str, Any]) -> str:
    return msgspec.json.encode(found).decode().replace("\\", "\\\\") if found else "{}"


def _array(tags: list[str]) -> str:
    if not tags:
        return "{}"
    quoted = (tag.replace("\\", "\\\\").replace('"', '\\"') for tag in tags)
    return escaped("{" + ",".join(f'"{tag}"' for tag in quoted) + "}")


def contact_ids(import_id: UUID) -> Callable[[int], str]:
    """The id of the contact that a row creates: the same whenever the row is read, in the order of the file.

    The first half is the import's own (a UUIDv7: its time), the last 32 bits are the row; between them a digest keeps
    two imports of one millisecond apart.
    """
    head = import_id.bytes[:8].hex()
    mark = 0x80000000 | zlib.crc32(import_id.bytes[8:]) & 0x3FFFFFFF
    lead = f"{head[:8]}-{head[8:12]}-{head[12:]}-{mark >> 16:04x}-{mark & 0xFFFF:04x}"
    return lambda row: f"{lead}{row:08x}"


def id_range(import_id: UUID) -> tuple[UUID, UUID]:
    """The first and the last id that the import can have given."""
    given = contact_ids(import_id)
    return UUID(given(0)), UUID(given(0xFFFFFFFF))


def original_cells(original: str, plan: Plan) -> list[str]:
    """A rejected record's cells as they were, for the report."""
    reading = plan.reading
    if reading.format == "jsonl":
        cells = _object(original, [column.name for column in plan.columns])
        return [original] if isinstance(cells, str) else cells
    try:
        found = next(csv.reader(io.StringIO(original), delimiter=reading.delimiter, quotechar=reading.quote), [])
    except csv.Error:
        found = [original.rstrip("\n")]
    return found
