"""Whose it is: ids trimmed, and the words that look like ids but would make one person of a crowd."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from handbill.events.dialects.canon import Edge, EdgeKind, Refused
from handbill.events.reasons import Reason
from handbill.kit.distinct import illegal, illegal_side
from handbill.kit.untrusted_json import UNREADABLE

ID_CHARACTERS = 200
EDGES = {"$identify": EdgeKind.IDENTIFY, "$create_alias": EdgeKind.ALIAS, "$merge_dangerously": EdgeKind.MERGE}
"""The events that say two ids are one person."""
_REPLACED = "\ufffd"
_DIGEST = "record:"


def _number(digits: str) -> int | float:
    """`1.0` and `1` are one number, whichever way a program wrote it."""
    number = float(digits)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)
_sorted = msgspec.json.Encoder(order="sorted")


def distinct(text: str) -> str:
    """The id as it is kept. Raises Refused for one that cannot name anybody.

    One that is too long is refused: cut, it might be another person's.
    """
    found = text.strip()
    if not found:
        raise Refused(Reason.MISSING_DISTINCT_ID)
    if illegal(found):
        raise Refused(Reason.ILLEGAL_DISTINCT_ID)
    if len(found) > ID_CHARACTERS:
        raise Refused(Reason.DISTINCT_ID_TOO_LARGE)
    if _REPLACED in found or "\0" in found:
        raise Refused(Reason.MALFORMED_DISTINCT_ID)
    return found


def edge(kind: EdgeKind, other: str, distinct_id: str) -> Edge | None:
    """The edge between two ids, or none when they are the same one. Raises Refused when one side names nobody."""
    if not (_may_merge(other) and _may_merge(distinct_id)):
        raise Refused(Reason.ILLEGAL_MERGE)
    found = other.strip()
    return None if found == distinct_id else Edge(kind, found)


def _may_merge(text: str) -> bool:
    return len(text.strip()) <= ID_CHARACTERS and _REPLACED not in text and not illegal_side(text)


def event_id(text: str) -> str:
    """The event's own id. One that is too long is replaced by its digest, so that its copies still are copies."""
    found = text.strip()
    if len(found) <= ID_CHARACTERS:
        return found
    return f"blake2b:{blake2b(found.encode(), digest_size=16).hexdigest()}"


def record_id(tenant: int, at: int, *parts: Raw | bytes | Iterable[Raw | bytes | None] | None) -> str:
    """The id of a record of history that has none: a digest of whose and when it is and of its JSON, in one form.

    The same record has the same id whenever and in whatever pieces it is sent. Two that differ in anything have two.
    """
    flat: list[bytes] = []
    for part in parts:
        some = [part] if part is None or isinstance(part, Raw | bytes) else part
        flat += [canonical(bytes(each)) if each else b"" for each in some]
    digest = blake2b(_sorted.encode([tenant, at, [each.decode() for each in flat]]), digest_size=16)
    return f"{_DIGEST}{digest.hexdigest()}"


def canonical(json: bytes) -> bytes:
    """The same JSON in one form: members sorted, no spaces, numbers and escapes written in one way."""
    try:
        return _sorted.encode(_json.decode(json))
    except (*UNREADABLE, OverflowError):  # an integer of more than 64 bits
        return json
