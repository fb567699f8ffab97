"""What other programs write into jobs: read where it can be read, and kept byte by byte where it cannot.

A job whose data or options are not UTF-8, or nested without an end, is never given to a handler: it fails at once and
becomes a dead letter. Its bytes are kept in base64, since no JSON column holds them, and are put back as they were when
the dead letter is redriven.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from handbill.kit.bounds import JSON_DEPTH, SHOWN_BYTES
from handbill.kit.untrusted_json import UNREADABLE, is_deep

KEPT_BYTES = "$unreadable_base64"
"""The only member of an object that stands for bytes which could not be read."""


def fault_of(raw: bytes | None) -> str | None:
    """Why these bytes cannot be read, None if they can. A text that is not JSON can be read: as that text."""
    if raw is None:
        return None
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            return f"not UTF-8, from byte {error.start} on"
    return f"nested deeper than {JSON_DEPTH} levels" if is_deep(raw) else None


def fault_of_id(wire_id: bytes) -> str | None:
    """Why this id cannot be told to anybody, None if it can: no log, table or JSON takes it."""
    if b"\x00" in wire_id:
        return "it has a NUL byte"
    fault = fault_of(wire_id) if not wire_id.isascii() else None
    return fault and f"it is {fault}"


def fault_of_parent(fields: dict[bytes, bytes]) -> str | None:
    """Why the job cannot report to its parent, None if it can or has none. BullMQ's scripts stop half way at such a
    link."""
    raw, key = fields.get(b"parent"), fields.get(b"parentKey", b"")
    if raw is None:
        return None
    if (fault := fault_of(raw)) is not None:
        return fault
    try:
        parent = msgspec.json.decode(raw, type=_Parent)
    except UNREADABLE:
        return "not an object with the strings id and queueKey"
    if key and key != f"{parent.queue_key}:{parent.id}".encode():
        return "not the same as parentKey"
    return None


class _Parent(msgspec.Struct, rename={"queue_key": "queueKey"}):
    id: str
    queue_key: str


def loose_json(raw: bytes | None, default: Any = None) -> Any:
    """JSON if it is JSON that can be read, else the text itself: other programs' values need not be ours."""
    if raw is None:
        return default
    try:
        if not is_deep(raw):
            return msgspec.json.decode(raw)
    except UNREADABLE:
        pass
    return raw.decode(errors="replace")


def keep_bytes(raw: bytes) -> dict[str, str]:
    """Bytes that cannot be read, in a form that every JSON store takes."""
    return {KEPT_BYTES: base64.b64encode(raw).decode()}


def restore_bytes(value: Any) -> Any:
    """The value as it goes into a queue: kept bytes as they were, anything else as it is."""
    raw = _kept(value)
    return value if raw is None else msgspec.Raw(raw)


def show_value(value: Any) -> Any:
    """The value for a person: of kept bytes the beginning, with everything that is no text escaped."""
    raw = _kept(value)
    if raw is None:
        return value
    text = show_bytes(raw)
    return {"$unreadable": text if len(raw) <= SHOWN_BYTES else f"{text}... ({len(raw)} bytes)"}


def show_bytes(raw: bytes) -> str:
    """The beginning of these bytes as text."""
    return raw[:SHOWN_BYTES].decode("utf-8", "backslashreplace").replace("\x00", "\\x00")


def _kept(value: Any) -> bytes | None:
    if not isinstance(value, dict) or value.keys() != {KEPT_BYTES}:
        return None
    try:
        return base64.b64decode(value[KEPT_BYTES], validate=True)
    except (binascii.Error, TypeError, ValueError):
        return None
