"""Texts that make a regular expression work: derived from the characters and words that the expression itself names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

_END = "\x01"
"""Ends a text in a way that hardly any expression accepts, so that it goes back as far as it can."""
_CLASSES = {r"\d": "1", r"\w": "a", r"\s": " ", ".": "x"}
_SILENT = frozenset({r"\b", r"\B", r"\A", r"\Z", r"\D", r"\W", r"\S", *"()[]{}|*+?^$"})
_TOKEN = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\.|.", re.DOTALL)
_LETTERS = 6
_WORDS = 6


class Family(NamedTuple):
    """`before`, then `unit` again and again, then `after`."""

    unit: str
    before: str = ""
    after: str = _END

    def text(self, size: int) -> str:
        return self.before + self.unit * (size // len(self.unit)) + self.after


def families(pattern: re.Pattern[Any]) -> Iterator[Family]:
    """Runs, alternating pairs, repeated words, and each of them behind an opening character or word."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    letters = _letters(source)
    words = list(dict.fromkeys(re.findall(r"(?<!\\)[A-Za-z]{2,}", source)))[:_WORDS]
    for letter in letters:
        yield Family(letter, after="")
    for before, letter in product(["", *letters, *words], letters):
        yield Family(letter, before)
    for one, two in product(letters, letters):
        if one != two:
            yield Family(one + two)
    for name, letter in product(words, ["", *letters]):
        yield Family(name + letter)


def _letters(source: str) -> list[str]:
    found = dict.fromkeys(_letter(token) for token in _TOKEN.findall(source) if token not in _SILENT)
    signs = [letter for letter in found if not letter.isalpha()]
    return [*signs, *(letter for letter in found if letter.isalpha())][:_LETTERS]  # signs separate, letters only fill


def _letter(token: str) -> str:
    if token in _CLASSES:
        return _CLASSES[token]
    if token[:2] in (r"\u", r"\x"):
        return chr(int(token[2:], 16))
    return {r"\n": "\n", r"\t": "\t", r"\r": "\r"}.get(token, token[-1])
