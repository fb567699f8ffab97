"""The rolling window itself, as functions of times, limits and now."""

from __future__ import annotations

from collections.abc import Sequence

from handbill.caps.model import FOREVER_MS, Limits, Verdict, Window


def has_room(newest_first: Sequence[int], leases: int, window: Window, now_ms: int) -> bool:
    """Whether one more fits: views younger than y, and slots that others hold, are fewer than x."""
    place = window.x - leases
    return place > 0 and (len(newest_first) < place or now_ms - newest_first[place - 1] >= window.y_ms)


def verdict(newest_first: Sequence[int], limits: Limits, now_ms: int, leases: Sequence[int] = ()) -> Verdict:
    """Decide from the view times of one scope, newest first, and the ends of its live leases where they count.

    A window is full when its x-th newest view is younger than y: then at least x views count. It opens again at that
    view's time plus y, and not earlier, so the latest such moment over all full windows is the next chance.
    """
    if leases:
        return _with_leases(newest_first, limits, now_ms, leases)
    free_at = now_ms
    blocked = False
    for window in limits.windows:
        if has_room(newest_first, 0, window, now_ms):
            continue
        if window.y_ms == FOREVER_MS:
            return Verdict(eligible=False, next_eligible_at=None)
        blocked = True
        free_at = max(free_at, newest_first[window.x - 1] + window.y_ms)
    if blocked:
        return Verdict(eligible=False, next_eligible_at=free_at)
    return Verdict(eligible=True, next_eligible_at=now_ms, unsure=needs_history(limits, now_ms))


def _with_leases(newest_first: Sequence[int], limits: Limits, now_ms: int, leases: Sequence[int]) -> Verdict:
    """Room can appear only when a lease ends or a view leaves a window: the first such moment that has it."""
    leaves = {time + window.y_ms for window in limits.windows for time in newest_first if window.y_ms < FOREVER_MS}
    for moment in (now_ms, *sorted(at for at in leaves.union(leases) if at > now_ms)):
        held = sum(end > moment for end in leases)
        if all(has_room(newest_first, held, window, moment) for window in limits.windows):
            now = moment == now_ms
            return Verdict(eligible=now, next_eligible_at=moment, unsure=now and needs_history(limits, now_ms))
    return Verdict(eligible=False, next_eligible_at=None)


def needs_history(limits: Limits, now_ms: int) -> bool:
    """After a limit was raised, the store knows only views since `known_from_ms`; the window may reach further back."""
    return limits.known_from_ms > now_ms - limits.horizon_ms
