"""Whose it is: ids trimmed, and the words that look like ids but would make one person of a crowd."""

from __future__ import annotations

from hashlib import blake2b

from handbill.events.dialects.canon import Edge, EdgeKind, Refused
from handbill.events.reasons import Reason
from handbill.kit.distinct import illegal, illegal_side

ID_CHARACTERS = 200
EDGES = {"$identify": EdgeKind.IDENTIFY, "$create_alias": EdgeKind.ALIAS, "$merge_dangerously": EdgeKind.MERGE}
"""The events that say two ids are one person."""
_REPLACED = "\ufffd"


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
