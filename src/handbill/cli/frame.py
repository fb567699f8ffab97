"""What every command shares: running its coroutine, printing a table or JSON, and one line per expected error.

Exit codes: 0 done; 1 it failed (an engine is away, something is broken or not found); 2 wrong usage or settings, or it
is already running: nothing was started.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from handbill.kit.errors import HandbillError, Invalid
from handbill.wiring.house import House

T = TypeVar("T")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

NOTHING_STARTED = frozenset({"HOME_LOCKED", "SETTINGS_INVALID"})
"""Codes that end with exit code 2."""

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
"""Wide when no terminal is there to wrap for: what is piped into grep keeps its lines."""


class State:
    """Process-wide flags of the command line."""

    debug = False
    json_errors = False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine on uvloop."""
    import uvloop

    return uvloop.run(work)


def with_house(verb: Callable[[House], Awaitable[T]]) -> T:
    """Build and start the house, do one thing, stop it."""
    from handbill import settings
    from handbill.kit.telemetry import logs
    from handbill.wiring.house import build

    current = settings.current()
    logs.configure("error")

    async def work() -> T:
        house = build(current)
        await house.start("tool")
        try:
            return await verb(house)
        finally:
            await house.stop()

    return run(work())


S = TypeVar("S", bound=msgspec.Struct)


def valid(struct: type[S], /, **fields: Any) -> S:
    """A struct from command-line words, checked as a request's body would be."""
    try:
        return msgspec.convert(fields, struct)
    except msgspec.ValidationError as error:
        raise Invalid(f"{error}. Nothing was changed.") from error


def show(value: Any, as_json: bool, render: Callable[[], Any]) -> None:
    """Print `value` as JSON, or what `render` makes of it for a person."""
    if as_json:
        State.json_errors = True
        print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)
    else:
        out.print(render())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    return made


def exit_code(error: HandbillError) -> int:
    return 2 if isinstance(error, Invalid) or error.code in NOTHING_STARTED else 1


def report(error: HandbillError) -> int:
    """One line on standard error (or one JSON object under --json), never a traceback."""
    if State.json_errors:
        print(msgspec.json.encode({"error": {"code": error.code, "detail": error.detail}}).decode(), file=sys.stderr)
    else:
        print(f"handbill: {error.detail}", file=sys.stderr)
        for fault in error.faults:
            print(f"  {fault.field}: {fault.reason}", file=sys.stderr)
    return exit_code(error)
