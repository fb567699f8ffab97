"""What travels through the pipeline: one lane's range of the journal, and what became of each event in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol
from uuid import UUID

import msgspec

from handbill.events.model import Row
from handbill.events.reasons import Reason
from handbill.infra.postgres import Tx


class Owned(msgspec.Struct, frozen=True):
    """A lane as its owner knows it. The epoch is the proof: whoever has an older one commits nothing."""

    lane: str
    number: int
    epoch: int


class Parked(msgspec.Struct, frozen=True):
    """One event that cannot be counted now, kept with its bytes and a way back."""

    tenant: int | None
    kind: str
    event_id: str | None
    reason: Reason
    detail: str
    body: bytes


DropKey = tuple[int, date, str, Reason]


@dataclass
class Batch:
    """State of one batch on its way. Each step takes rows out or adds to what is known about them."""

    owned: Owned
    start: str
    end: str
    bodies: Sequence[bytes]
    projected: str
    rows: list[Row] = field(default_factory=list)
    drops: Counter[DropKey] = field(default_factory=Counter)
    parked: list[Parked] = field(default_factory=list)
    survivors: list[Row] = field(default_factory=list)
    refused: list[Row] = field(default_factory=list)
    id: UUID | None = None
    """Known once the batch is committed."""


def bitmap(survivors: Sequence[Row], events: int) -> bytes:
    """One bit per event of the range, in order: did it survive?"""
    bits = bytearray((events + 7) // 8)
    for row in survivors:
        bits[row.place >> 3] |= 1 << (row.place & 7)
    return bytes(bits)


class Sink(Protocol):
    """A slice's place in the pipeline's transaction. The wiring hands them in; the pipeline knows none by name."""

    async def prepare(self, rows: Sequence[Row]) -> None:
        """Before the transaction: whatever must exist for these rows, such as the partition of their month."""

    async def write(self, tx: Tx, rows: Sequence[Row], lane: int, lowered: Sequence[Row] = ()) -> None:
        """Inside the transaction: the survivors' rows, counts and totals.

        `lowered` are copies of events that were counted before, each of which has a smaller sequence than its event had
        until now. Of a copy only the sequence counts.
        """

    async def project(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        """After the commit, at least once: confirm in Redis what was counted, take back what was not."""
