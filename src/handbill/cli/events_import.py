"""`handbill events import`: history in from a file, of banners or of product events."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from handbill.banners.service import CHUNK, ImportKind, lines
from handbill.cli.frame import JsonFlag, show, with_house
from handbill.events.service import (
    RECORDS,
    RECORDS_BYTES,
    FileFormat,
    MappingFile,
    RecordSource,
    RefusedRecord,
    csv_mapping,
)
from handbill.kit.errors import Busy, Fault, Invalid, Throttled
from handbill.kit.record_files import Record, RecordFile
from handbill.wiring.house import House

T = TypeVar("T")
SHOWN = 20
KINDS = ("impression", "click", "view")
PATIENCE_S = 600.0
"""How long the command waits without being able to send anything."""
_err = Console(stderr=True, highlight=False)


class Bookmark(msgspec.Struct, frozen=True):
    """How far a file has come; kept beside it, so that a second start goes on where the first one ended."""

    offset: int = 0
    line: int = 0
    sent: int = 0
    refused: int = 0
    duplicates: int = 0
    reasons: dict[str, int] = {}
    source: str = ""
    """Whose file it is and how it is read: with anything else the import starts from the beginning."""


class ImportResult(msgspec.Struct, frozen=True):
    """What the command prints. `duplicates` were stored before; `reasons` count the refused lines."""

    sent: int
    refused: int
    duplicates: int
    reasons: dict[str, int]


class ImportOptions(msgspec.Struct, frozen=True):
    """What was asked for on the command line."""

    file: Path
    tenant: str
    kind: str | None
    file_format: FileFormat | None
    mapping: MappingFile
    report: Path | None
    is_quiet: bool

    @property
    def source(self) -> str:
        return f"{self.tenant}:{self.kind or self.file_format}"


def import_events(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="JSON lines, or CSV (.csv); may be packed (.gz).")
    ],
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant's slug or number.")],
    kind: Annotated[
        str | None, typer.Option(help="impression, click or view, for banner events; without it, product events.")
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="Of product events; without it, csv for .csv files and handbill for others."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help='CSV: a JSON file {"columns": {}, "values": {}}.')
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="CSV: NAME=FIELD, e.g. 'Amount=properties.total'; may be given again.")
    ] = None,
    value: Annotated[
        list[str] | None, typer.Option(help="CSV: FIELD=TEXT for all rows, e.g. 'event=order_placed'.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write every refused line, with its reason, as JSON lines.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="From the beginning, not from the last stop.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Send a file of past events of any age through the pipeline. Each counts once: a file may be given again.

    While the installation is busy with other events, or an engine is away, this waits.
    """
    if kind is not None and kind not in KINDS:
        raise Invalid("--kind must be impression, click or view; leave it out for product events.")
    if kind is not None and (file_format or mapping or column or value):
        raise Invalid("--format, --mapping, --column and --value are for product events; leave --kind out.")
    if kind is None and file_format is None:
        file_format = FileFormat.CSV if ".csv" in file.suffixes[-2:] else FileFormat.HANDBILL
    mapped = _mapping(mapping, column or [], value or [])
    options = ImportOptions(file, tenant, kind, file_format, mapped, report, as_json)
    if again:
        _bookmark(file).unlink(missing_ok=True)
    result = with_house(lambda house: FileImport(house, options).run())
    show(result, as_json, lambda: _summary(result))


class FileImport:
    """One run over one file."""

    def __init__(self, house: House, options: ImportOptions) -> None:
        self._house = house
        self._options = options
        self._mark = _bookmark(options.file)
        self._state = _resumed(self._mark, options)
        self._shown: list[str] = []

    async def run(self) -> ImportResult:
        options, house = self._options, self._house
        tenant_id = (await house.tenants.find_tenant(options.tenant)).tenant_id
        if options.report is not None and not self._state.offset:
            options.report.write_bytes(b"")
        await house.edge.look()  # a command measures for itself how much waits
        await house.edge.start()
        try:
            if options.kind is not None:
                await self._banner_events(tenant_id, cast(ImportKind, options.kind))
            else:
                await self._product_events(tenant_id)
        finally:
            await house.edge.stop()
        self._mark.unlink(missing_ok=True)
        if not options.is_quiet:
            for line in self._shown:
                _err.print(line, markup=False)
            if (hidden := self._state.refused - len(self._shown)) > 0:
                _err.print(f"... and {hidden} more; --report FILE has them all")
        state = self._state
        return ImportResult(state.sent, state.refused, state.duplicates, state.reasons)

    async def _banner_events(self, tenant_id: int, kind: ImportKind) -> None:
        importer = self._house.banners.importer
        source = lines(self._options.file, self._state.offset, self._state.line)
        with self._progress(self._options.file.stat().st_size) as draw:
            while chunk := [line for _, line in zip(range(CHUNK), source, strict=False)]:
                done = await _patiently(lambda some=chunk: importer.chunk(tenant_id, kind, some), draw)  # type: ignore[misc]
                refused = [RefusedRecord(each.line, "REFUSED", each.why) for each in done.refused]
                self._note(chunk[-1].end, chunk[-1].last_line, done.sent, done.duplicates, refused)
                draw(done.offset, None)

    async def _product_events(self, tenant_id: int) -> None:
        assert self._options.file_format is not None
        importer = self._house.history_importer
        with RecordFile(self._options.file) as file:
            source = self._source(file)
            with self._progress(file.size) as draw:
                for records in _portions(file.records(self._state.offset, self._state.line)):
                    done = await _patiently(
                        lambda some=records: importer.accept(tenant_id, source, some),  # type: ignore[misc]
                        draw,
                    )
                    last = records[-1]
                    self._note(last.end, last.last_line, done.sent, done.duplicates, done.refused)
                    draw(file.progress, None)

    def _source(self, file: RecordFile) -> RecordSource:
        options = self._options
        assert options.file_format is not None
        if (options.file_format is FileFormat.CSV) != file.is_csv:
            raise Invalid(
                f"{options.file.name} is no {options.file_format} file: CSV ends in .csv or .csv.gz, JSON does not."
            )
        if not file.is_csv:
            return RecordSource(options.file_format)
        mapping = csv_mapping(file.names, options.mapping.columns, options.mapping.values)
        if mapping.left_out and not options.is_quiet:
            _err.print(f"Columns that are left out: {', '.join(mapping.left_out)}", markup=False)
        return RecordSource(options.file_format, mapping, file.cells)

    def _note(self, offset: int, line: int, sent: int, duplicates: int, refused: Sequence[RefusedRecord]) -> None:
        before = self._state
        self._state = Bookmark(
            offset, line, before.sent + sent, before.refused + len(refused), before.duplicates + duplicates,
            dict(Counter(before.reasons) + Counter(each.reason for each in refused)), self._options.source,
        )  # fmt: skip
        self._shown += [f"line {each.line}: {each.why}" for each in refused[: SHOWN - len(self._shown)]]
        if self._options.report is not None and refused:
            with self._options.report.open("ab") as file:
                file.writelines(msgspec.json.encode(each) + b"\n" for each in refused)
        with suppress(OSError):  # a folder that cannot be written to: the next start begins at the first line
            self._mark.write_bytes(msgspec.json.encode(self._state))

    def _progress(self, total: int) -> _Bar:
        return _Bar(self._options, total)


Draw = Callable[[int | None, str | None], None]
"""Shows how many bytes are read, or why the command waits."""


class _Bar:
    def __init__(self, options: ImportOptions, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=_err, disable=options.is_quiet)
        self._name, self._total = options.file.name, total

    def __enter__(self) -> Draw:
        self._bar.start()
        task = self._bar.add_task(self._name, total=self._total)

        def draw(read: int | None, waits: str | None) -> None:
            text = self._name if waits is None else f"{self._name}, waits: {waits}"
            self._bar.update(task, description=text, completed=read)

        return draw

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


async def _patiently(work: Callable[[], Awaitable[T]], draw: Draw) -> T:
    """Repeats the work while the installation is busy. Raises what it raised last after ten minutes of that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await work()
        except (Busy, Throttled) as error:
            if time.monotonic() > deadline:
                raise
            draw(None, error.code)
            await asyncio.sleep(min(max(error.retry_after or 1.0, 0.2), 10.0))


def _portions(records: Iterator[Record]) -> Iterator[list[Record]]:
    portion: list[Record] = []
    size = 0
    for record in records:
        portion.append(record)
        size += len(record.raw or b"")
        if len(portion) >= RECORDS or size >= RECORDS_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _bookmark(file: Path) -> Path:
    return file.with_name(file.name + ".handbill-import")


def _resumed(mark: Path, options: ImportOptions) -> Bookmark:
    """Where an import of this file, for this tenant and in this format, ended; else the beginning."""
    fresh = Bookmark(source=options.source)
    try:
        state = msgspec.json.decode(mark.read_bytes(), type=Bookmark)
    except (OSError, msgspec.DecodeError):
        return fresh
    return state if state.source == options.source else fresh


def _mapping(file: Path | None, columns: Sequence[str], values: Sequence[str]) -> MappingFile:
    """The file's mapping, and what the command line adds to it."""
    found = MappingFile()
    if file is not None:
        try:
            found = msgspec.json.decode(file.read_bytes(), type=MappingFile)
        except msgspec.DecodeError as error:
            raise Invalid(f"The mapping {file.name} cannot be read: {error}.", code="MAPPING") from None
    return MappingFile({**found.columns, **_pairs("--column", columns)}, {**found.values, **_pairs("--value", values)})


def _pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    split = [word.partition("=") for word in words]
    if faults := [Fault(option, f"must be NAME=..., not {word!r}") for word in words if "=" not in word]:
        raise Invalid(f"{option} cannot be read; nothing was imported.", code="MAPPING", faults=faults)
    return {name.strip(): text.strip() for name, _, text in split}


def _summary(result: ImportResult) -> Any:
    text = f"{result.sent} events sent, {result.refused} lines refused"
    if result.duplicates:
        text += f", {result.duplicates} were there already"
    reasons = "".join(f"\n  {number} {reason}" for reason, number in sorted(result.reasons.items()))
    return f"{text}. They are counted in a moment.{reasons}"
