"""What every command shares: running its coroutine, printing a table or JSON, and one line per expected error.

Exit codes: 0 done; 1 it failed (an engine is away, something is broken or not found); 2 wrong usage or settings, or it
is already running: nothing was started.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from handbill.kit.errors import HandbillError, Invalid
from handbill.kit.faults import faults_in

if TYPE_CHECKING:
    from handbill.wiring.house import House

T = TypeVar("T")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

NOTHING_STARTED = frozenset({"HOME_LOCKED", "SETTINGS_INVALID"})
"""Codes that end with exit code 2."""

WHAT_TO_DO = {
    "POSTGRES_AWAY": "Start PostgreSQL, or check HANDBILL_POSTGRES__URL.",
    "REDIS_AWAY": "Start Redis, or check HANDBILL_REDIS__URL.",
    "CLICKHOUSE_AWAY": "Start ClickHouse, or check HANDBILL_CLICKHOUSE__URL.",
}
"""An adapter knows that its engine is away; only here is it known where the address came from."""

ServerJsonFlag = Annotated[bool, typer.Option("--json", help="Print an error as JSON, as log lines always are.")]

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


TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's slug or number.")]


def for_tenant(slug: str, verb: Callable[[House, int], Awaitable[T]]) -> T:
    """Find the tenant by slug or number, then do one thing with it."""

    async def work(house: House) -> T:
        found = await house.tenants.find_tenant(slug)
        return await verb(house, found.tenant_id)

    return with_house(work)


S = TypeVar("S", bound=msgspec.Struct)


def valid(struct: type[S], /, **fields: Any) -> S:
    """A struct from command-line words, checked as a request's body would be."""
    try:
        return msgspec.convert(fields, struct)
    except msgspec.ValidationError as error:
        raise Invalid("That cannot be taken; nothing was changed.", faults=faults_in(fields, struct)) from error


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
        told = {"code": error.code, "detail": error.detail, "faults": error.faults}
        print(msgspec.json.encode({"error": told}).decode(), file=sys.stderr)
    else:
        print(f"handbill: {_line(error)}", file=sys.stderr)
        for fault in error.faults:
            if fault.reason in error.detail:
                continue  # a single fault is often the whole story already
            print(f"  {fault.field}: {fault.reason}", file=sys.stderr)
    return exit_code(error)


def _line(error: HandbillError) -> str:
    advice = WHAT_TO_DO.get(error.code)
    return f"{error.detail.rstrip('.')}. {advice}" if advice and advice not in error.detail else error.detail
