"""What changes a packed value: move, confirm, take back, lease. Pure twins of the scripts that do the same in Redis.

The rules make the order of arrival meaningless:

- a move adds the time of an event not yet there; of two copies the earlier time stays;
- a confirm sets the committed time and is final: whatever was moved under the same fingerprint gives way to it;
- a take-back removes only an unconfirmed time, and only the very one it names: the copy of an event that was counted
  before takes nothing away from the first;
- committed times that are expired, or beyond the newest `keep`, go: PostgreSQL has them. Unconfirmed ones stay whatever
  their number and age (up to a bound): nobody else has them yet, and the limit may be raised before they are committed;
- a lease stands in a scope of its own beside the views (`LEASED`), dated by its end. It is granted only if every window
  has room for the views and the leases together. The view that was decided under it takes its place: a view new to its
  scope gives one lease back, its own where it can name it. An ended lease counts no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from handbill.caps.model import (
    ANY_LEASE,
    EPOCH_MS,
    FOREVER_MS,
    LEASED,
    MAX_TIMES,
    OPEN_MS,
    Change,
    Limits,
    Seen,
    State,
    Verb,
    Window,
)
from handbill.caps.packed import Kept, order, pack, unpack
from handbill.caps.window import has_room

LimitsOf = Callable[[int], Limits | None]


class Applied(msgspec.Struct, frozen=True):
    """The new value, and until when it must be kept: None for ever. An empty value is no value."""

    value: bytes
    keep_until_ms: int | None


def apply(
    value: bytes, changes: Sequence[Change], now_ms: int, sweep_ms: int, keep_until_ms: int | None = 0
) -> Applied:
    """Apply changes in order. `sweep_ms` is the tenant's longest window: scopes silent for longer are dropped whole."""
    scopes = unpack(value)
    for change in changes:
        if not EPOCH_MS <= change.at_ms <= EPOCH_MS + FOREVER_MS:
            continue  # no window reaches a time outside the packed range
        kept = scopes.get(change.scope, Kept(()))
        scopes[change.scope] = after = _changed(kept, change, now_ms)
        if change.lease and change.verb is Verb.MOVE:
            fresh = all(seen.fingerprint != change.fingerprint for seen in kept.times)
            _give_back(scopes, change.scope | LEASED, change.lease, fresh, now_ms)
        if change.horizon_ms == FOREVER_MS:
            keep_until_ms = None
        elif after.times and keep_until_ms is not None:
            keep_until_ms = max(keep_until_ms, after.times[0].at_ms + change.horizon_ms)
    left = {scope: kept for scope, kept in scopes.items() if kept.times and _alive(scope, kept, now_ms, sweep_ms)}
    return Applied(pack(left), keep_until_ms)


def lease(
    value: bytes, asked: Sequence[tuple[int, Sequence[Window]]], now_ms: int, until_ms: int, number: int
) -> tuple[bytes, int]:
    """Hold one more slot in each of these scopes until then, or none at all: the new value, and the number or 0."""
    scopes = unpack(value)
    for scope, windows in asked:
        held = _live(scopes.get(scope | LEASED, Kept(())), now_ms)
        if any(seen.fingerprint == number for seen in held):
            return value, 0
        times = [seen.at_ms for seen in scopes.get(scope, Kept(())).times]
        if not all(has_room(times, len(held), window, now_ms) for window in windows):
            return value, 0
    moves = [Change(Verb.MOVE, scope | LEASED, until_ms, number, 1, 0) for scope, _ in asked]
    return apply(value, moves, now_ms, FOREVER_MS).value, number


def _live(kept: Kept, now_ms: int) -> tuple[Seen, ...]:
    return tuple(seen for seen in kept.times if seen.at_ms > now_ms)


def _give_back(scopes: dict[int, Kept], leases: int, number: int, fresh: bool, now_ms: int) -> None:
    held = _live(scopes.get(leases, Kept(())), now_ms)
    if number != ANY_LEASE:
        held = tuple(seen for seen in held if seen.fingerprint != number)
    elif fresh:
        held = held[:-1]
    scopes[leases] = Kept(held)


def _alive(scope: int, kept: Kept, now_ms: int, sweep_ms: int) -> bool:
    newest = kept.times[0].at_ms
    return newest > now_ms if scope & LEASED else kept.endless or now_ms - newest < sweep_ms


def _changed(kept: Kept, change: Change, now_ms: int) -> Kept:
    known = _live(kept, now_ms) if change.scope & LEASED else kept.times
    times = {seen.fingerprint: seen for seen in known}
    there = times.get(change.fingerprint)
    if change.verb is Verb.TAKE_BACK:
        if there is not None and there.state is State.MOVED and there.at_ms == change.at_ms:
            del times[change.fingerprint]
    else:
        state = State.CONFIRMED if change.verb is Verb.CONFIRM else State.MOVED
        # Of two copies in the same state the earlier time stays; a confirmed one is later than any moved one.
        if there is None or (state, -change.at_ms) > (there.state, -there.at_ms):
            times[change.fingerprint] = Seen(change.at_ms, change.fingerprint, state)
    if change.scope & LEASED:
        return Kept(_live(Kept(order(times.values())), now_ms))
    young = (seen for seen in times.values() if _needed(seen, change.horizon_ms, now_ms))
    return Kept(_trimmed(order(young), change.keep), change.horizon_ms == FOREVER_MS)


def _needed(seen: Seen, horizon_ms: int, now_ms: int) -> bool:
    age = now_ms - seen.at_ms
    return horizon_ms == FOREVER_MS or age < horizon_ms or (seen.state is State.MOVED and age < OPEN_MS)


def _trimmed(newest_first: tuple[Seen, ...], keep: int) -> tuple[Seen, ...]:
    confirmed = 0
    left = []
    for seen in newest_first:
        if seen.state is State.CONFIRMED:
            confirmed += 1
            if confirmed > keep:
                continue
        left.append(seen)
    return tuple(left[:MAX_TIMES])


def changes_of(value: bytes, limits_of: LimitsOf) -> list[Change]:
    """The changes that would build this value, leases too; scopes nobody limits any more are left behind."""
    found: list[Change] = []
    for scope, kept in unpack(value).items():
        limits = limits_of(scope)
        if limits is not None:
            found.extend(_retold(scope, kept.times, limits))
    return found


def _retold(scope: int, times: Iterable[Seen], limits: Limits) -> Iterable[Change]:
    for seen in times:
        verb = Verb.CONFIRM if seen.state is State.CONFIRMED else Verb.MOVE
        horizon_ms = 0 if scope & LEASED else limits.horizon_ms
        yield Change(verb, scope, seen.at_ms, seen.fingerprint, limits.keep, horizon_ms)
