"""Words that look like ids and name nobody: taken as one, they would make a single person of a crowd."""

from __future__ import annotations

MAX_MERGE_ID = 400
_QUOTES = "\"'`"
ILLEGAL_IDS = frozenset(
    ("anonymous", "null", "undefined", "none", "nil", "[object object]", "nan", "true", "false", "0", "guest")
)
ILLEGAL_SIDES = ILLEGAL_IDS | frozenset(("distinct_id", "distinctid", "id", "not_authenticated", "email", "blank", ""))
_LONGEST_ILLEGAL = max(map(len, ILLEGAL_IDS))


def illegal(distinct_id: str) -> bool:
    """An id that stands for nobody; the event that carries it is dropped."""
    found = distinct_id.strip()
    return len(found) <= _LONGEST_ILLEGAL and found.lower() in ILLEGAL_IDS


def illegal_side(distinct_id: str) -> bool:
    """An id that must not take part in a merge: nobody's, a field's name, quoted by mistake, too long, or with NUL."""
    if len(distinct_id) > MAX_MERGE_ID or "\0" in distinct_id:
        return True
    bare = distinct_id.strip()
    while len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in _QUOTES:
        bare = bare[1:-1].strip()
    return bare.lower() in ILLEGAL_SIDES
