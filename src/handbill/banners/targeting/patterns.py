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


# Measured for the worst patterns and addresses of ADDRESS_CHARS: a step of RE2's program 3.3 us where it cannot
# remember its states (0.05 us in ordinary expressions), a part of a glob 0.2 us a character at most, a prefix 0.5 us.
_STEP_US = 3.5
_CHARACTER_US = 0.2
_LEAST_US = 0.5


class Pattern(msgspec.Struct, frozen=True):
    """`matches` takes a whole address. `steps` is the size of RE2's program, 0 where none is needed; `cost_us` is what
    the worst address of ADDRESS_CHARS takes at most."""

    matches: Callable[[str], bool]
    steps: int = 0
    cost_us: float = _LEAST_US


def prefix(text: str) -> Pattern:
    """The address begins with `text`."""
    return Pattern(lambda address: address.startswith(text))


def glob(pattern: str) -> Pattern:
    """`*` stands for anything, `?` for one character. Raises ValueError if there are too many of both."""
    if "?" in pattern:
        parts = (re2.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
        return _compile("(?s)" + ".*".join(parts))
    first, *rest = pattern.split("*")
    if not rest:
        return Pattern(first.__eq__)
    middle = tuple(filter(None, rest[:-1]))
    cost_us = _LEAST_US + _CHARACTER_US * sum(map(len, middle))
    return Pattern(_in_order(first, middle, rest[-1]), cost_us=cost_us)


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
    steps = compiled.programsize
    return Pattern(
        lambda address: fullmatch(address.encode("utf-8", "replace")) is not None, steps, _LEAST_US + _STEP_US * steps
    )
