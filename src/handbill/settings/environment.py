"""The only place that reads the process's environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handbill.kit.errors import Fault, Invalid
from handbill.settings.fields import variable_of
from handbill.settings.model import Settings
from handbill.settings.reader import Loaded, read

ROOTS_HOME = "/var/lib/handbill"


def current(overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; `overrides` (path to text) are a command line's own options."""
    return current_with_sources(overrides).settings


def current_with_sources(overrides: Mapping[str, str] | None = None) -> Loaded:
    given = {variable_of(path): text for path, text in (overrides or {}).items()}
    found = read({**os.environ, **given}, home=default_home(os.geteuid(), Path.cwd()))
    if not Path(found.settings.home).is_absolute():
        where = Path.cwd() / found.settings.home
        fault = Fault("HANDBILL_HOME", f"is relative, so each directory would have its own; set it to {where}")
        raise Invalid(f"{fault.field} {fault.reason}. Nothing was started.", code="SETTINGS_INVALID", faults=[fault])
    return found


def default_home(uid: int, place: Path) -> str:
    """The `.handbill` of this user in `place` or the nearest directory above it, else a new one in `place`.

    For root in a private directory (its own home, say) it is elsewhere: PostgreSQL refuses to run as root, so root's
    runs as a plain user, who must be able to pass through to its files.
    """
    for directory in (place, *place.parents):
        home = directory / ".handbill"
        if _belongs_to(uid, home):
            return str(home)
    passable = uid != 0 or all(directory.stat().st_mode & 0o001 for directory in (place, *place.parents))
    return str(place / ".handbill") if passable else ROOTS_HOME


def _belongs_to(uid: int, home: Path) -> bool:
    """Whether it is a directory of this user: another user's, in a shared one, is not taken."""
    try:
        status = home.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def for_child(values: Mapping[str, Any]) -> dict[str, str]:
    """This process's environment with the settings at the given paths set, for a child process."""
    environ = dict(os.environ)
    for path, value in values.items():
        environ[variable_of(path)] = ",".join(value) if isinstance(value, tuple) else str(value)
    return environ


def ready_socket() -> str:
    """Where the ready signal of this process goes, as systemd and `handbill up` say it; empty if nobody waits."""
    return os.environ.get("NOTIFY_SOCKET", "")
