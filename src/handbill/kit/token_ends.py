"""When tokens of providers end: how an answer tells it, and what is measured of all tokens of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

SOON = timedelta(days=7)
LISTED = 100
"""Tokens that are named at most."""
_LAST_S = 32_503_680_000  # the year 3000; what is later does not end


class EndingToken(msgspec.Struct, frozen=True):
    """A token that ends soon, or has ended, and whose it is."""

    tenant_id: int
    connection_id: str
    ends_at: datetime


class TokenSummary(msgspec.Struct, frozen=True):
    """All tokens of one kind. `seconds_left` is of the token that ends first, negative after its end."""

    seconds_left: float | None = None
    ending: int = 0
    dead: int = 0
    first: Sequence[EndingToken] = ()


def end_of(*told: Any) -> datetime | None:
    """The earliest of some times in Unix seconds. 0, and whatever is no such time, means that there is no end."""
    ends = [each for each in told if isinstance(each, int) and not isinstance(each, bool) and 0 < each < _LAST_S]
    return datetime.fromtimestamp(min(ends), UTC) if ends else None
