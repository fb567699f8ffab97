"""From the parts of a request to events: one at a time, so that what is wrong with one stays with that one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from handbill.events.dialects.canon import CapturedEvent, Dialect, Note, Parsed, Refused
from handbill.events.reasons import Reason
from handbill.kit.untrusted_json import UNREADABLE

S = TypeVar("S")
T = TypeVar("T")
Warned = list[Reason]
"""Where the making of one event writes down what it had to leave out."""


def each(make: Callable[[S], T], parts: Sequence[S]) -> list[T | Reason]:
    """Every part opened, or the reason why it could not be."""
    return [_or_reason(make, part) for part in parts]


def _or_reason(make: Callable[[S], T], part: S) -> T | Reason:
    try:
        return make(part)
    except Refused as refused:
        return refused.reason
    except UNREADABLE:
        return Reason.MALFORMED_EVENT


def collected(
    dialect: Dialect,
    key: str | None,
    items: Sequence[T | Reason | Refused],
    make: Callable[[T, int, Warned], CapturedEvent],
) -> Parsed:
    """Every event that can be made, where it stood, and what became of the others.

    `make` is given the part, its position in the request, and the list of what had to be left out.
    """
    events: list[CapturedEvent] = []
    places: list[int] = []
    dropped: list[Note] = []
    warned: list[Note] = []
    left_out: Warned = []
    for index, item in enumerate(items):
        if isinstance(item, Reason):
            dropped.append(Note(index, item))
            continue
        if isinstance(item, Refused):
            dropped.append(Note(index, item.reason, item.faults))
            continue
        try:
            events.append(make(item, index, left_out))
        except Refused as refused:
            dropped.append(Note(index, refused.reason))
        except UNREADABLE:  # nested so deeply that it could be read on one level of ours and not on the next
            dropped.append(Note(index, Reason.MALFORMED_EVENT))
        else:
            places.append(index)
            if left_out:
                warned += [Note(index, reason) for reason in left_out]
        if left_out:
            left_out.clear()
    return Parsed(dialect, key, events, places, dropped, warned)
