"""Whether an accepted view may be a copy of one that the packed values have forgotten.

A value knows a copy by its fingerprint for as long as it keeps the time of the first: until it is older than every
window, or beyond the newest `keep`. A copy that comes later looks like a new view and would close the cap until the
pipeline has refused it. So PostgreSQL is asked for the key of such a view before it moves a cap.

No question is needed under the token of a recent decision. The first of two copies came after the decision that both
name. Was its time dropped since, then at least `keep` newer views stand in the value, all of them younger than the
decision: every window is full with the copy and without it, and stays so for as long as the shortest of them, less the
age of the decision. Until then the pipeline has taken the copy's time back.
"""

from __future__ import annotations

from collections.abc import Iterable

from handbill.caps.book import Book, CapMove
from handbill.caps.window import needs_history

RECENT_MS = 600_000
"""A decision is recent for so long, and for at most half of the shortest window: the other half is the pipeline's."""


def may_be_forgotten_copy(
    book: Book, tenant_id: int, moves: Iterable[CapMove], decided_ms: int | None, now_ms: int
) -> bool:
    """Whether the key of this view must be looked up. `decided_ms`: of its token, if it has a good one.

    After a limit was raised a value may have dropped what the new limit needs: then a recent decision proves nothing.
    """
    recent_ms, is_limited = RECENT_MS, False
    for move in moves:
        for rule in book.rules(tenant_id, move.scope):
            is_limited = True
            if rule.limits.known_from_ms and needs_history(rule.limits, now_ms):
                return True
            for window in rule.limits.windows:
                recent_ms = min(recent_ms, window.y_ms // 2)
    return is_limited and (decided_ms is None or now_ms - decided_ms >= recent_ms)
