"""`handbill settings`: every setting with its value, default, source and one line of documentation."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from handbill.cli.frame import JsonFlag, show, table

NOTE = (
    "These addresses hold the engines' passwords. Only the user who owns the data directory can print them; "
    "do not paste them into chats or logs."
)


def mount(app: typer.Typer) -> None:
    app.command("settings")(settings)


def settings(
    urls: Annotated[
        bool,
        typer.Option("--urls", help="Print the engines' addresses with their passwords, for Bull Board and producers."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print all settings; secrets are masked. With --urls, the addresses of the engines, which are not."""
    from handbill.settings.environment import current_with_sources
    from handbill.settings.pages import rows

    if urls:
        _print_urls(as_json)
        return
    found = rows(current_with_sources())
    cells = [(row.variable, row.value, row.default, row.source, row.doc) for row in found]
    show(found, as_json, lambda: table(("variable", "value", "default", "source", "meaning"), cells))


def _print_urls(as_json: bool) -> None:
    """The addresses on standard output, so that they can be piped; the warning on standard error."""
    from handbill import settings as settings_of
    from handbill.wiring import addresses

    current = addresses.resolve_for_owner(settings_of.current())
    found = {name: getattr(current, name).url for name in addresses.ENGINES}
    found = {name: url for name, url in found.items() if url is not None}
    print(NOTE, file=sys.stderr)
    show(found, as_json, lambda: table(("engine", "url"), list(found.items())))
