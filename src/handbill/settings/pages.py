"""The settings as a person reads them: rows for `handbill settings`, and the generated page docs/settings.md."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from handbill.settings.aliases import ALIASES
from handbill.settings.fields import Field, all_fields
from handbill.settings.reader import Loaded

MASK = "***"


class Row(msgspec.Struct, frozen=True):
    """One setting as shown: secrets are masked already."""

    variable: str
    value: str
    default: str
    source: str
    doc: str
    aliases: tuple[str, ...]


def rows(loaded: Loaded) -> list[Row]:
    return [
        Row(
            variable=field.variable,
            value=shown(field, _value(loaded, field.path)),
            default=shown(field, field.default),
            source=loaded.sources.get(field.path, "default"),
            doc=field.doc,
            aliases=tuple(alias.name for alias in ALIASES if alias.path == field.path),
        )
        for field in all_fields()
    ]


def _value(loaded: Loaded, path: str) -> Any:
    node: Any = loaded.settings
    for name in path.split("."):
        node = getattr(node, name)
    return node


def shown(field: Field, value: Any) -> str:
    if value is None or value == ():
        return ""
    if field.mask == "whole":
        return MASK
    if field.mask == "url":
        return mask_url(str(value))
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def mask_url(url: str) -> str:
    """The address without its password; whatever cannot be read as an address is masked whole."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return MASK
    if not parts.scheme:
        return MASK
    query = MASK if parts.query else ""
    if parts.password is None:
        return urlunsplit(parts._replace(query=query))
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{MASK}@{host}{port}", query=query))


def markdown() -> str:
    """docs/settings.md: the table of all settings, then the table of aliases."""
    lines = [
        "# Settings",
        "",
        "Generated from `src/handbill/settings/model.py` by `make docs`; do not edit by hand.",
        "",
        "Every setting is an environment variable. An empty value counts as not set. A misspelt `HANDBILL_` name",
        "stops the start and names the nearest right one. `handbill settings` shows the values in force and where",
        "each came from.",
        "",
        "| variable | default | expected | meaning |",
        "|---|---|---|---|",
    ]
    for field in all_fields():
        default = shown(field, field.default) or "not set"
        lines.append(f"| `{field.variable}` | {default} | {field.expected} | {field.doc} |")
    lines += [
        "",
        "## Aliases",
        "",
        "Names that other programs use for the same thing. Our own name wins where both are set.",
        "",
        "| alias | stands for | words translated |",
        "|---|---|---|",
    ]
    variables = {field.path: field.variable for field in all_fields()}
    for alias in ALIASES:
        words = ", ".join(f"{old} = {new}" for old, new in alias.values.items())
        lines.append(f"| `{alias.name}` | `{variables[alias.path]}` | {words} |")
    return "\n".join(lines) + "\n"
