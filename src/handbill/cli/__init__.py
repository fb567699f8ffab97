"""The only entry point: `handbill COMMAND`. Each module of this room brings its commands; this file mounts them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from handbill import __version__
from handbill.cli.frame import State, report
from handbill.kit.errors import HandbillError

MODULES = (
    "shells", "ops", "alerts", "settings", "tenants", "jobs", "events", "people", "contacts", "campaign", "message",
    "adstats", "fake_graph",
)  # fmt: skip
"""Modules of this room, in the order of the help page; each has `mount(app)`."""

app = typer.Typer(
    name="handbill",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Handbill: show, count, know, reach, account. Exit codes: 0 done, 1 failed, 2 wrong usage or nothing started.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"handbill {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an expected error too.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    State.debug = debug


for _name in MODULES:
    if find_spec(f"{__name__}.{_name}") is not None:
        import_module(f"{__name__}.{_name}").mount(app)


def main() -> None:
    """Run a command. Expected errors are one line and an exit code; a bug is a traceback."""
    State.json_errors = "--json" in sys.argv
    try:
        app()
    except HandbillError as error:
        if State.debug:
            raise
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(130)
