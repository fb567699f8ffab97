"""JSON from outside: what reading it may raise, and how deep it may be.

msgspec reads as many levels as the stack has left, so that a document which can be read in one place cannot be written
in another. A limit far below that is checked on the bytes, before they are decoded.
"""

from __future__ import annotations

import itertools
import re

import msgspec

from handbill.kit.bounds import JSON_DEPTH
from handbill.kit.errors import Invalid

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""All that msgspec raises for bytes or texts that are not the JSON they should be."""

# No text column holds U+0000, and half of a surrogate pair is no character.
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2}|u0000)|.)",
    re.DOTALL,
)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""A level down is 1, a level up is -1 as a signed byte."""
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))

# A text that is never closed matches to the end: otherwise each of its quotes would start another scan to the end.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_HUGE = re.compile(rb"[eE][+-]?0*[1-9]\d{3}")


def has_huge_number(json: bytes) -> bool:
    """Whether a number has an exponent of four digits: PostgreSQL and ClickHouse know no such number."""
    return _HUGE.search(json) is not None and _HUGE.search(_TEXT.sub(b'""', json)) is not None


def is_deep(body: bytes, max_depth: int = JSON_DEPTH) -> bool:
    """Whether a JSON document has more than so many levels. Linear; of malformed bytes it may say either."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    # Without escapes every quote opens or closes a text, and without the rest two that touch hold nothing between them.
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS).replace(b'""', b"")
    steps = b"".join(marks.split(b'"')[::2]).translate(_STEPS)
    return max(itertools.accumulate(memoryview(steps).cast("b")), default=0) > max_depth


def check_json(body: bytes) -> None:
    """Raises Invalid for bytes that are not UTF-8 (BAD_JSON) or too deep (JSON_TOO_DEEP). It does not parse them."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"The body is not UTF-8 ({error}); nothing was changed.", code="BAD_JSON") from None
    check_depth(body)


def check_depth(body: bytes) -> None:
    """Raises Invalid (JSON_TOO_DEEP) for a document with more than JSON_DEPTH levels."""
    if is_deep(body):
        raise Invalid(
            f"The JSON is nested deeper than {JSON_DEPTH} levels; nothing was changed. Send flatter values.",
            code="JSON_TOO_DEEP",
        )


def without_unstorable(body: bytes, instead: bytes = b"\\ufffd") -> bytes:
    """The same JSON, with another escape for each character that no text column takes: U+0000 and halves of pairs."""
    if b"\\u" not in body or _SUSPECT.search(body) is None:
        return body
    written, copied = bytearray(), 0
    for found in _ESCAPE.finditer(body):
        if found[1]:
            written += body[copied : found.start()]
            written += instead
            copied = found.end()
    written += body[copied:]
    return bytes(written)
