"""The long-running commands: up, api, worker; and migrate, which they wait for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from handbill.cli.frame import JsonFlag, ServerJsonFlag, run, show, table
from handbill.settings import Settings


def mount(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(api)
    app.command()(worker)
    app.command()(migrate)


def up(
    json_logs: Annotated[
        bool | None,
        typer.Option("--json-logs/--no-json-logs", help="JSON log lines; the default unless at a terminal."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start everything that has no address of its own, and keep it running until told to stop."""
    from handbill import settings
    from handbill.kit.telemetry import logs
    from handbill.ops.teller import Teller
    from handbill.ops.up import up as run_up

    current = settings.current()
    logs.configure(current.log.level)
    teller = Teller(as_json=not sys.stderr.isatty() if json_logs is None else json_logs)
    run(run_up(current, teller, lambda ready: show(ready.facts(), as_json, ready.panel)))


def api(as_json: ServerJsonFlag = False) -> None:
    """Serve the HTTP API until told to stop."""
    from handbill.api.server import serve
    from handbill.wiring.house import build

    with _server() as current:
        run(serve(build(current), current))


def worker(
    only: Annotated[
        str, typer.Option(help="Kinds of chores, separated by commas: relay, consume, jobs, cron. All by default.")
    ] = "",
    as_json: ServerJsonFlag = False,
) -> None:
    """Run the chores behind the API until told to stop."""
    from handbill.wiring.house import build
    from handbill.worker.shell import serve

    with _server({"worker.only": only} if only else None) as current:
        run(serve(build(current), current))


@contextmanager
def _server(overrides: Mapping[str, str] | None = None) -> Iterator[Settings]:
    """What every long-running process needs first: its settings, its log, its traces."""
    from handbill import settings
    from handbill.kit.telemetry import logs, tracing

    current = settings.current(overrides)
    logs.configure(current.log.level)
    tracing.configure(current.telemetry.otlp_endpoint, service=current.telemetry.service_name)
    try:
        yield current
    finally:
        tracing.stop()


def migrate(as_json: JsonFlag = False) -> None:
    """Bring the schemas of PostgreSQL and ClickHouse to this version."""
    from handbill import settings
    from handbill.wiring.schema import migrate_all

    applied = run(migrate_all(settings.current()))
    rows = [(engine, name) for engine, names in applied.items() for name in names]
    show(applied, as_json, lambda: table(("engine", "applied"), rows) if rows else "The schemas are up to date.")
