"""Product events from a file of history: records in, accepted or refused one by one, through the journal.

A file may be given again, whole or from where it stopped: what is there already is not taken a second time.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from handbill.events.csv_mapping import BadRow, CsvMapping, row_json
from handbill.events.dialects.canon import Moment, Note, Refused, Terms
from handbill.events.dialects.files import FileFormat, bad_line, read_file
from handbill.events.model import CapturedEvent, Counted
from handbill.events.reasons import DOCS, Reason
from handbill.kit.clock import Clock
from handbill.kit.record_files import Record
from handbill.tenants.service import Directory

RECORDS = 2_000
RECORDS_BYTES = 4 << 20
"""Records that are read, looked up and accepted together."""


class AcceptHistory(Protocol):
    async def accept_history(self, tenant_id: int, events: Sequence[Counted]) -> Mapping[int, Reason]: ...

    async def count_drops(self, tenant_id: int, kind: str, reasons: Mapping[Reason, int]) -> None: ...


class RefusedRecord(msgspec.Struct, frozen=True):
    """A record that was not taken, by the number of its first line."""

    line: int
    reason: str
    why: str


class ImportedRecords(msgspec.Struct, frozen=True):
    """What became of some records. `duplicates` are stored already; `incomplete` were taken with something left out."""

    sent: int
    duplicates: int
    refused: list[RefusedRecord]
    incomplete: list[RefusedRecord]


class RecordSource(msgspec.Struct, frozen=True):
    """How the records of one file are read."""

    file_format: FileFormat
    mapping: CsvMapping | None = None
    cells: Callable[[bytes], list[str]] | None = None

    def line(self, record: Record) -> bytes | Refused:
        """One JSON object."""
        if record.raw is None:
            return bad_line("is too long", Reason.EVENT_TOO_LARGE)
        if self.mapping is None or self.cells is None:
            return record.raw
        try:
            return row_json(self.mapping, self.cells(record.raw))
        except (csv.Error, UnicodeError) as error:
            return bad_line(f"is no CSV: {error}")
        except BadRow as error:
            return bad_line(str(error))


class HistoryImporter:
    def __init__(self, events: AcceptHistory, directory: Directory, clock: Clock) -> None:
        self._events = events
        self._directory = directory
        self._clock = clock

    async def accept(self, tenant_id: int, source: RecordSource, records: Sequence[Record]) -> ImportedRecords:
        """Take these records; durable when it returns. Raises Busy or Throttled: try the same records again."""
        profile = await self._directory.profile(tenant_id)
        terms = Terms(tenant_id, profile.settings.privacy.truncate_ip)
        moment = Moment(self._clock.now_ms(), _no_id)
        lines = [source.line(record) for record in records]
        numbers = [record.line for record in records]
        parsed = read_file(source.file_format, lines, numbers, moment, terms)
        stored = await self._events.accept_history(tenant_id, parsed.events)
        refused = [
            *parsed.dropped,
            *(Note(parsed.places[n], reason) for n, reason in stored.items() if reason is not Reason.DUPLICATE),
        ]
        reasons = Counter(note.reason for notes in (parsed.dropped, parsed.warned) for note in notes)
        await self._events.count_drops(tenant_id, CapturedEvent.kind, reasons)
        return ImportedRecords(
            len(parsed.events) - len(stored),
            sum(reason is Reason.DUPLICATE for reason in stored.values()),
            _described(refused, numbers),
            _described(parsed.warned, numbers),
        )


def _described(notes: Sequence[Note], numbers: Sequence[int]) -> list[RefusedRecord]:
    ordered = sorted(notes, key=lambda note: note.index)
    return [RefusedRecord(numbers[note.index], note.reason.value, _why(note)) for note in ordered]


def _why(note: Note) -> str:
    faults = (fault.reason if fault.field == "line" else f"{fault.field} {fault.reason}" for fault in note.faults)
    return "; ".join(faults) or DOCS[note.reason]


def _no_id() -> str:
    raise AssertionError("a record of history has its own id, or a digest")
