"""Cursor pages: a list is read forward in small pieces, and a cursor says where the last piece ended.

A cursor is opaque to the caller and holds nothing but the last row's position. It is no secret and needs no signature:
the tenant's wall stands behind every query, so a forged cursor reads only what its sender may read anyway.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from handbill.kit.errors import Fault, Invalid
from handbill.kit.untrusted_json import UNREADABLE

LIMIT_MAX = 200
LIMIT_DEFAULT = 50

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One piece of a list. `next` is the cursor of the following piece, or null at the end."""

    items: list[T]
    next: str | None = None


def encode(*position: str | int) -> str:
    """The cursor for a row's position, e.g. its sort keys."""
    packed = msgspec.json.encode(position)
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def decode(cursor: str, kinds: Sequence[type]) -> list[str | int]:
    """The position inside a cursor; anything we did not write ourselves is refused, never guessed at."""
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(packed, type=list[str | int])
    except (binascii.Error, ValueError, *UNREADABLE):
        raise _refused() from None
    if [type(part) for part in position] != list(kinds):
        raise _refused()
    return position


def limited(limit: int | None) -> int:
    """The page size asked for, between 1 and 200."""
    if limit is None:
        return LIMIT_DEFAULT
    if not 1 <= limit <= LIMIT_MAX:
        raise Invalid(
            f"A page holds 1 to {LIMIT_MAX} rows.",
            faults=[Fault("limit", f"must be between 1 and {LIMIT_MAX}")],
        )
    return limit


def page(rows: Sequence[T], limit: int, position: Callable[[T], tuple[str | int, ...]]) -> Page[T]:
    """A page from `limit + 1` rows: the extra row only tells that there is more."""
    kept = list(rows[:limit])
    more = encode(*position(kept[-1])) if len(rows) > limit and kept else None
    return Page(items=kept, next=more)


def _refused() -> Invalid:
    return Invalid(
        "The cursor is not one of ours; start again without it.",
        code="BAD_CURSOR",
        faults=[Fault("cursor", "not a cursor of this list")],
    )
