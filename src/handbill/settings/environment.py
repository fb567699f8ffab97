"""The only place that reads the process's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from handbill.settings.fields import variable_of
from handbill.settings.model import Settings
from handbill.settings.reader import Loaded, load, read


def current(overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; `overrides` (path to text) are a command line's own options."""
    given = {variable_of(path): text for path, text in (overrides or {}).items()}
    return load({**os.environ, **given})


def current_with_sources() -> Loaded:
    return read(os.environ)


def for_child(values: Mapping[str, Any]) -> dict[str, str]:
    """This process's environment with the settings at the given paths set, for a child process."""
    environ = dict(os.environ)
    for path, value in values.items():
        environ[variable_of(path)] = ",".join(value) if isinstance(value, tuple) else str(value)
    return environ
