"""The rolling window itself, as functions of times, limits and now."""

from __future__ import annotations

from collections.abc import Sequence

from handbill.caps.model import FOREVER_MS, Limits, Verdict


def verdict(newest_first: Sequence[int], limits: Limits, now_ms: int) -> Verdict:
    """Decide from the view times of one scope, newest first.

    A window is full when its x-th newest view is younger than y: then at least x views count. It opens again at that
    view's time plus y, and not earlier, so the latest such moment over all full windows is the next chance.
    """
    free_at = now_ms
    blocked = False
    for window in limits.windows:
        if len(newest_first) < window.x:
            continue
        opens = newest_first[window.x - 1] + window.y_ms
        if opens > now_ms:
            blocked = True
            if window.y_ms == FOREVER_MS:
                return Verdict(eligible=False, next_eligible_at=None)
            free_at = max(free_at, opens)
    if blocked:
        return Verdict(eligible=False, next_eligible_at=free_at)
    return Verdict(eligible=True, next_eligible_at=now_ms, unsure=needs_history(limits, now_ms))


def needs_history(limits: Limits, now_ms: int) -> bool:
    """After a limit was raised, the store knows only views since `known_from_ms`; the window may reach further back."""
    return limits.known_from_ms > now_ms - limits.horizon_ms
