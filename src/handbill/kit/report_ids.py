"""The order that an event's own id tells: UUIDv7 begin with the millisecond in which they were made.

Our own clients name their reports `imp_`, `clk_`, `view_` or `evt_` and a UUIDv7 whose 12 bits behind the version count
up within a millisecond. Such an id orders an event wherever it stands in a request, and however often it is sent.
"""

from __future__ import annotations

import re

SEQUENCE_STEP = 16_384
"""The sequences of one millisecond."""
FUTURE_MS = 23 * 3_600_000
"""An id from further in the future tells nothing."""

_ID = re.compile(
    r"(imp_|clk_|view_|evt_)?([0-9a-f]{8})-([0-9a-f]{4})-7([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.I | re.A
)
_LENGTHS = range(36, 42)


def sequence_of_report(event_id: str, received: int) -> int | None:
    """The sequence of a report of our own clients; None for any other id. `received` is in milliseconds."""
    result = _read(event_id, received)
    return result[0] if result is not None and result[1] else None


def sequence_of_id(event_id: str, received: int, index: int) -> int:
    """The sequence of an event whose request does not say when it was sent; `index` is its position there."""
    result = _read(event_id, received)
    if result is None:
        return index
    sequence, is_ours = result
    return sequence if is_ours else sequence // SEQUENCE_STEP * SEQUENCE_STEP + min(index, SEQUENCE_STEP - 1)


def _read(event_id: str, received: int) -> tuple[int, bool] | None:
    """The sequence, and whether the id is one of our own clients'."""
    if len(event_id) not in _LENGTHS or (match := _ID.fullmatch(event_id)) is None:
        return None
    prefix, high, low, counter = match.groups()
    ms = int(high + low, 16)
    return (ms * SEQUENCE_STEP + int(counter, 16), prefix is not None) if ms <= received + FUTURE_MS else None
