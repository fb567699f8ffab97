"""JSON as other people's programs send it, taken apart one level deep and made fit for a database.

What is said about a person must be the same on every machine and in every order, so each rule looks at the bytes
alone: no recursion limit, no memory of what came before.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from handbill.events.model import PROPERTY_DEPTH
from handbill.kit.untrusted_json import has_huge_number, is_deep

MAX_DEPTH = PROPERTY_DEPTH

# A pair of halves is one character and one match; a half alone is none that a database takes.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|.)", re.DOTALL)
_HALVES = frozenset((b"d8", b"d9", b"da", b"db", b"dc", b"dd", b"de", b"df"))

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_values = msgspec.json.Decoder(dict[str, Any])
_names = msgspec.json.Decoder(list[str])


def members(raw: bytes | None) -> dict[str, bytes]:
    """The members of an object, each value in compact JSON. Anything else than a readable object has none."""
    sound = _sound(raw)
    if not sound:
        return {}
    try:
        found = _objects.decode(msgspec.json.format(sound, indent=-1))
    except msgspec.DecodeError:
        return {}
    if not has_huge_number(sound):
        return {name: bytes(value) for name, value in found.items()}
    return {name: value for name, each in found.items() if not has_huge_number(value := bytes(each))}


def values(raw: bytes | None) -> dict[str, Any]:
    """The same as Python values, to look at and not to keep."""
    sound = _sound(raw)
    if not sound:
        return {}
    try:
        return _values.decode(sound)
    except msgspec.DecodeError:
        return {}


def names(raw: bytes | None) -> list[str]:
    """A list of texts, or the names of an object's members."""
    sound = _sound(raw)
    if not sound:
        return []
    try:
        return _names.decode(sound)
    except msgspec.DecodeError:
        return list(members(sound))


def _sound(raw: bytes | None) -> bytes:
    """The same without NUL and half characters; nothing, if it is not UTF-8 or nested without an end."""
    if not raw or is_deep(raw, MAX_DEPTH):
        return b""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return b""
    return _ESCAPE.sub(_legal, raw) if b"\\u" in raw else raw


def _legal(escape: re.Match[bytes]) -> bytes:
    """NUL and half a character become the sign for "unreadable"; everything else stays as it was written."""
    found = escape[0]
    if found == b"\\u0000" or (len(found) == 6 and found[2:4].lower() in _HALVES):
        return b"\\ufffd"
    return found
