"""Patterns over addresses: glob, prefix or a small regular expression, none of which can run away.

A pattern is held against the whole address, cut at ADDRESS_MAX characters. Globs never go back once a part has matched.
Regular expressions are a subset: no repeat inside a repeat, few open repeats, nothing that looks back or ahead; so
the work is bounded by the square of the address, and an operator's typo cannot stop the server.
"""

from __future__ import annotations

import re
from re import _constants as codes  # type: ignore[attr-defined]  # the parser has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

ADDRESS_MAX = 1_000
PATTERN_MAX = 300
_OPEN_MAX = 2
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_PLAIN = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN, codes.AT)


def glob(pattern: str) -> re.Pattern[str]:
    """`*` stands for anything, `?` for one character. Each part is taken where it first fits, and that stands."""
    first, *rest = [re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern)]
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    inner = "".join(f"(?>.*?{part})" for part in middle if part)
    return re.compile(f"{first}{inner}.*{last}", re.DOTALL)


def prefix(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text) + ".*", re.DOTALL)


def regex(pattern: str) -> re.Pattern[str]:
    """Raises ValueError with what is wrong, in words."""
    try:
        tree = parser.parse(pattern)
        opened = _open_repeats(tree, inside=False)
        if opened > _OPEN_MAX:
            raise ValueError(f"may hold at most {_OPEN_MAX} open repeats such as .* and holds {opened}")
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from None


def _open_repeats(tree: Any, *, inside: bool) -> int:
    found = 0
    for code, argument in tree:
        if code in _PLAIN:
            continue
        if code in _REPEATS:
            _, most, body = argument
            if most <= 1:
                found += _open_repeats(body, inside=inside)
                continue
            if inside:
                raise ValueError("must not repeat what already repeats")
            found += 1 + _open_repeats(body, inside=True)
        elif code is codes.SUBPATTERN:
            found += _open_repeats(argument[3], inside=inside)
        elif code is codes.BRANCH:
            if inside:
                raise ValueError("must not repeat a choice between alternatives")
            found += sum(_open_repeats(branch, inside=inside) for branch in argument[1])
        else:
            raise ValueError("may use characters, classes, groups, alternatives and repeats only")
    return found
