"""From variables to Settings: each value checked on its own, so that every mistake is told at once."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from typing import Any, get_origin
from urllib.parse import urlsplit

import msgspec

from handbill.kit.errors import Fault, Invalid
from handbill.settings.aliases import ALIASES
from handbill.settings.fields import PREFIX, Field, all_fields, bare
from handbill.settings.model import Settings

NOT_OURS = ("HANDBILL_CI_", "HANDBILL_TEST_")
"""Prefixes that belong to the build and the tests; every other HANDBILL_ name must be a setting."""

OTHER_WORDS = {alias.name: alias.words for alias in ALIASES}
"""What an alias understands beside our own words."""

BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class Loaded(msgspec.Struct, frozen=True):
    """The settings and, for each that is not a default, the variable it came from."""

    settings: Settings
    sources: Mapping[str, str]


def load(environ: Mapping[str, str]) -> Settings:
    return read(environ).settings


def read(environ: Mapping[str, str], *, home: str | None = None) -> Loaded:
    """Read all settings, or raise Invalid with one fault per variable that is misspelt or has a wrong value.

    `home` replaces the home's default, which depends on where and as whom the process runs.
    """
    fields = {field.path: field for field in all_fields()}
    faults = _misspelt(environ, fields)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for path, (variable, text) in _given(environ, fields).items():
        try:
            values[path] = parse(fields[path], text, OTHER_WORDS.get(variable, ""))
            sources[path] = variable
        except ValueError as error:
            faults.append(Fault(variable, str(error)))
    if faults:
        raise Invalid(_told(faults), code="SETTINGS_INVALID", faults=faults)
    start = Settings() if home is None else Settings(home=home)
    return Loaded(replace(start, values), sources)


def _told(faults: list[Fault]) -> str:
    """One mistake in one line; of several, their number: the faults themselves follow it."""
    if len(faults) > 1:
        return f"{len(faults)} settings are wrong. Nothing was started."
    line = f"{faults[0].field} {faults[0].reason}"
    return f"{line} Nothing was started." if line.endswith("?") else f"{line}. Nothing was started."


def replace(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """A copy of `settings` with the values at the given paths ("api.port") changed."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        if section:
            old = tree.get(section, getattr(settings, section))
            tree[section] = msgspec.structs.replace(old, **{name: value})
        else:
            tree[name] = value
    return msgspec.structs.replace(settings, **tree)


def _given(environ: Mapping[str, str], fields: Mapping[str, Field]) -> dict[str, tuple[str, str]]:
    """Path -> (variable, text). Our own name wins over an alias; an empty value counts as not set."""
    found: dict[str, tuple[str, str]] = {}
    for alias in ALIASES:
        text = environ.get(alias.name, "").strip()
        if text:
            found[alias.path] = (alias.name, alias.translated(text))
    for path, field in fields.items():
        text = environ.get(field.variable, "").strip()
        if text:
            found[path] = (field.variable, text)
    return found


def _misspelt(environ: Mapping[str, str], fields: Mapping[str, Field]) -> list[Fault]:
    known = {field.variable.removeprefix(PREFIX): field.variable for field in fields.values()}
    faults = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.startswith(NOT_OURS) or name.removeprefix(PREFIX) in known:
            continue
        near = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1, cutoff=0.5)
        hint = f"did you mean {known[near[0]]}?" if near else "`handbill settings` lists all there are"
        faults.append(Fault(name, f"is no setting: {hint}"))
    return faults


def parse(field: Field, text: str, or_else: str = "") -> Any:
    """One value from its text; ValueError says what was expected (and never repeats a secret)."""
    kind, _ = bare(field.type)
    raw: Any = text
    if get_origin(kind) is tuple:
        raw = tuple(word.strip() for word in text.split(",") if word.strip())
    elif kind is bool:
        raw = BOOLEANS.get(text.lower(), text.lower())
    elif get_origin(kind) is typing.Literal:
        raw = text.lower()
    try:
        value = msgspec.convert(raw, field.type, strict=False)
    except msgspec.ValidationError as error:
        shown = "" if field.mask else f" (it is {text!r})"
        raise ValueError(f"must be {field.expected}{or_else}{shown}") from error
    if field.mask == "url":
        _check_address(value)
    return value


def _check_address(address: str) -> None:
    """What every driver would stumble over later, each in its own words. Several hosts are the driver's to read."""
    try:
        parts = urlsplit(address)
        if "," not in parts.netloc:
            _ = parts.port
    except ValueError as error:
        raise ValueError("must be an address with a host and, if any, a port from 0 to 65535") from error
