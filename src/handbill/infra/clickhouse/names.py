"""Names of a client's inside the text of a statement: a mutation is kept as text there, and takes no parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST = 40_000
"""Letters of one list: a statement may have 256 KB, and names its list a few times."""


def name_lists(names: Sequence[str], most: int = _MOST) -> Iterator[str]:
    """For the brackets of an `in ()`: as hexadecimal digits, in as many lists as it takes."""
    some: list[str] = []
    size = 0
    for name in names:
        told = f"unhex('{name.encode().hex()}')"
        if some and size + len(told) > most:
            yield ", ".join(some)
            some, size = [], 0
        some.append(told)
        size += len(told) + 2
    if some:
        yield ", ".join(some)
