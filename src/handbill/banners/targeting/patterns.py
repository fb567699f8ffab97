"""Patterns over addresses: glob, prefix or regular expression. None of them takes more than linear time.

A pattern is compared with the whole address, cut at ADDRESS_CHARS characters. Prefixes and globs without `?` are plain
string operations, since a decision may compare hundreds of them; everything else is matched by RE2, which never goes
back in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import re2

from handbill.kit.bounds import PATTERN_MEMORY

_OPTIONS = re2.Options()
_OPTIONS.max_mem = PATTERN_MEMORY
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_REPEAT_AS_TEXT = re.compile(r"(?<!\\)\{(?:,[0-9]*|[0-9,]{9,})\}")
"""`a{,3}` and `a{1,9999999999}`: RE2 takes what looks like a repeat for plain text, which nobody means."""


class Pattern(msgspec.Struct, frozen=True):
    """`matches` takes a whole address. `steps` is the size of RE2's program, 0 where none is needed."""

    matches: Callable[[str], bool]
    steps: int = 0


def prefix(text: str) -> Pattern:
    """The address begins with `text`."""
    return Pattern(lambda address: address.startswith(text))


def glob(pattern: str) -> Pattern:
    """`*` stands for anything, `?` for one character. Raises ValueError if there are too many of both."""
    if "?" in pattern:
        parts = (re2.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
        return _compile("(?s)" + ".*".join(parts))
    first, *rest = pattern.split("*")
    return Pattern(_in_order(first, tuple(filter(None, rest[:-1])), rest[-1]) if rest else first.__eq__)


def regex(pattern: str) -> Pattern:
    """RE2's syntax. Raises ValueError with the rule that the pattern breaks."""
    if _REPEAT_AS_TEXT.search(pattern):
        raise ValueError("must write counted repeats as {n}, {n,} or {n,m}, with numbers up to 1000")
    return _compile(pattern)


def _in_order(first: str, middle: tuple[str, ...], last: str) -> Callable[[str], bool]:
    """Each part is taken where it first fits: if any other choice matches, this one does too."""
    shortest = len(first) + len(last)

    def matches(address: str) -> bool:
        if not address.startswith(first) or not address.endswith(last) or len(address) < shortest:
            return False
        start, end = len(first), len(address) - len(last)
        for part in middle:
            start = address.find(part, start, end)
            if start < 0:
                return False
            start += len(part)
        return True

    return matches


def _compile(expression: str) -> Pattern:
    try:
        compiled = re2.compile(expression.encode("utf-8", "surrogatepass"), _OPTIONS)
    except re2.error as error:
        detail = error.args[0].decode("utf-8", "replace")
        if "too large" in detail:
            raise ValueError("is too large: use fewer or smaller counted repeats such as {100}") from None
        raise ValueError(
            f"must be a regular expression in RE2's syntax, without look-around and back references: {detail}"
        ) from None
    fullmatch = compiled.fullmatch
    return Pattern(lambda address: fullmatch(address.encode("utf-8", "replace")) is not None, compiled.programsize)
