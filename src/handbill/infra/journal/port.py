"""What the rest of the house asks of a journal. Small on purpose: the cursor lives with the reader, not in here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec

START = "0-0"
"""The cursor before the first entry of a lane."""


class Entry(msgspec.Struct, frozen=True):
    """Events that were appended together. `id` is the cursor that stands right behind them."""

    id: str
    bodies: list[bytes]


class Lag(msgspec.Struct, frozen=True):
    """How far a cursor is behind. `gap`: the store lost entries behind this cursor (wiped, or an older copy restored).

    A gap is reported once to the process that found it; what was lost cannot be known here.
    """

    events: int
    seconds: float
    gap: bool = False


class Journal(Protocol):
    async def append(
        self,
        lane: str,
        bodies: Sequence[bytes],
        extra: Sequence[Sequence[Any]] = (),
        *,
        tenant_ids: Collection[int] = (),
    ) -> str:
        """Keep these events, and return only when they are durable. Their order is kept, also against later appends.

        `extra` are commands for the store behind the journal that travel in the same round trip, after the append.
        `tenant_ids` are all tenants that the events belong to: who reads for one tenant passes over other entries
        without reading them. With none, the entry may be anybody's.
        After an error the events may or may not be there: the caller repeats them with the same ids.
        """

    async def read(self, lane: str, after: str, *, events: int) -> list[Entry]:
        """Whole entries behind the cursor until there are `events` events, or no more. Never waits."""

    async def wait(self, lane: str, after: str, timeout_s: float) -> None:
        """Return when something is behind the cursor, or the time is over. One waiter per lane and process."""

    async def end(self, lane: str) -> str:
        """The cursor behind all that was ever appended to the lane."""

    async def lag(self, lane: str, after: str) -> Lag: ...

    async def trim(self, lane: str, before: str, *, older_s: float = 600.0) -> int:
        """Forget entries before the cursor, except younger ones than `older_s`. Returns how many entries went."""
