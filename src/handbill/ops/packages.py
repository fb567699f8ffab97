"""Installed packages that nothing here uses: chdb-core names them for results that we never ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

_NAMED_BY = frozenset({"chdb-core"})
_UNUSED = ("pandas", "pyarrow")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.A)


def unused(installed: Iterable[Distribution]) -> list[Distribution]:
    """Those of them that are here for chdb-core alone; empty when any other package asks for one."""
    result: list[Distribution] = []
    for each in installed:
        name = _plain(each.metadata["Name"] or "")
        if name in _UNUSED:
            result.append(each)
        elif name not in _NAMED_BY and any(_plain(needed) in _UNUSED for needed in each.requires or ()):
            return []
    return result


def size(distribution: Distribution) -> int:
    """Bytes of its files."""
    paths = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def _plain(requirement: str) -> str:
    """The name that a requirement begins with, as package indexes compare names. One behind an extra does not count."""
    match = _NAME.match(requirement)
    if match is None or "extra ==" in requirement.replace("extra==", "extra =="):
        return ""
    return re.sub(r"[-_.]+", "-", match.group()).lower()
