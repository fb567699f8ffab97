"""The only place that reads the process's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handbill.settings.fields import variable_of
from handbill.settings.model import Settings
from handbill.settings.reader import Loaded, read

ROOTS_HOME = "/var/lib/handbill"


def current(overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; `overrides` (path to text) are a command line's own options."""
    return current_with_sources(overrides).settings


def current_with_sources(overrides: Mapping[str, str] | None = None) -> Loaded:
    given = {variable_of(path): text for path, text in (overrides or {}).items()}
    return read({**os.environ, **given}, home=default_home(os.geteuid(), Path.cwd()))


def default_home(uid: int, place: Path) -> str:
    """`.handbill` where we stand. For root in a private place (its own home, say) it is elsewhere.

    PostgreSQL refuses to run as root, so root's runs as a plain user, who must be able to pass through to its files;
    and nobody's private directory is ours to open.
    """
    if uid != 0:
        return ".handbill"
    passable = all(folder.stat().st_mode & 0o001 for folder in (place, *place.parents))
    return ".handbill" if passable else ROOTS_HOME


def for_child(values: Mapping[str, Any]) -> dict[str, str]:
    """This process's environment with the settings at the given paths set, for a child process."""
    environ = dict(os.environ)
    for path, value in values.items():
        environ[variable_of(path)] = ",".join(value) if isinstance(value, tuple) else str(value)
    return environ


def ready_socket() -> str:
    """Where the ready signal of this process goes, as systemd and `handbill up` say it; empty if nobody waits."""
    return os.environ.get("NOTIFY_SOCKET", "")
