"""Time zones by their names, which come from outside and are used as names of files."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

from handbill.kit.bounds import ZONE_NAME_MAX, ZONES
from handbill.kit.caches import Memo

_NAME = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}", re.ASCII)


def find_zone(name: str) -> ZoneInfo | None:
    """The zone, or None when there is none by this name. Only a plausible name is looked for among the files."""
    if len(name) > ZONE_NAME_MAX or _NAME.fullmatch(name) is None:
        return None
    return _load(name)


def _read(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no such file, a file that is no zone, a directory
        return None


_load = Memo(_read, ZONES)
