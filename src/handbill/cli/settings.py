"""`handbill settings`: every setting with its value, default, source and one line of documentation."""

from __future__ import annotations

import typer

from handbill.cli.frame import JsonFlag, show, table


def mount(app: typer.Typer) -> None:
    app.command("settings")(settings)


def settings(as_json: JsonFlag = False) -> None:
    """Print all settings; secrets are masked."""
    from handbill.settings.environment import current_with_sources
    from handbill.settings.pages import rows

    found = rows(current_with_sources())
    cells = [(row.variable, row.value, row.default, row.source, row.doc) for row in found]
    show(found, as_json, lambda: table(("variable", "value", "default", "source", "meaning"), cells))
