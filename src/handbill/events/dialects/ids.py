"""Whose it is: ids trimmed and cut, and the words that look like ids but would make one person of a crowd."""

from __future__ import annotations

from hashlib import blake2b

from handbill.events.dialects.canon import Edge, EdgeKind, Refused
from handbill.events.dialects.reasons import CaptureReason

ID_CHARACTERS = 200
MERGE_CHARACTERS = 400
ILLEGAL = frozenset(
    {"anonymous", "null", "undefined", "none", "nil", "[object object]", "nan", "true", "false", "0", "guest"}
)
ILLEGAL_IN_MERGE = ILLEGAL | {"distinct_id", "distinctid", "id", "not_authenticated", "email", "blank", ""}
_LONGEST_ILLEGAL = max(map(len, ILLEGAL))
EDGES = {"$identify": EdgeKind.IDENTIFY, "$create_alias": EdgeKind.ALIAS, "$merge_dangerously": EdgeKind.MERGE}
"""The events that say two ids are one person."""
_QUOTES = "\"'`"
_REPLACED = "\ufffd"


def distinct(text: str, *, cut: bool = True) -> str:
    """The id as it is kept. Raises Refused for one that cannot name anybody."""
    found = text.strip()
    if not found:
        raise Refused(CaptureReason.MISSING_DISTINCT_ID)
    if len(found) <= _LONGEST_ILLEGAL:
        if found.lower() in ILLEGAL:
            raise Refused(CaptureReason.ILLEGAL_DISTINCT_ID)
    elif len(found) > ID_CHARACTERS:
        if not cut:
            raise Refused(CaptureReason.DISTINCT_ID_TOO_LARGE)
        found = found[:ID_CHARACTERS].rstrip()
    if _REPLACED in found or "\0" in found:
        raise Refused(CaptureReason.MALFORMED_DISTINCT_ID)
    return found


def edge(kind: EdgeKind, other: str, distinct_id: str) -> Edge | None:
    """The edge between two ids, or none when they are the same one. Raises Refused when one side names nobody."""
    if not (_may_merge(other) and _may_merge(distinct_id)):
        raise Refused(CaptureReason.ILLEGAL_MERGE)
    found = other.strip()[:ID_CHARACTERS].rstrip()
    return None if found == distinct_id else Edge(kind, found)


def _may_merge(text: str) -> bool:
    if len(text) > MERGE_CHARACTERS or "\0" in text or _REPLACED in text:
        return False
    return text.strip().strip(_QUOTES).strip().lower() not in ILLEGAL_IN_MERGE


def event_id(text: str) -> str:
    """The event's own id. One that is too long is replaced by its digest, so that its copies still are copies."""
    found = text.strip()
    if len(found) <= ID_CHARACTERS:
        return found
    return f"blake2b:{blake2b(found.encode(), digest_size=16).hexdigest()}"
