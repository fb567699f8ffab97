"""The steps that need no engine: bytes to rows, and the reasons of those that leave."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import msgspec

from handbill.events.batch import Batch, DropKey, Parked
from handbill.events.model import HORIZON_DAYS, CapturedEvent, Dropped, Row, decode, is_history, key
from handbill.events.reasons import Reason
from handbill.kit.clock import from_ms

_HORIZON_MS = HORIZON_DAYS * 86_400_000


def read(batch: Batch) -> Batch:
    """Bytes become events; what cannot be read is parked with its bytes."""
    for place, body in enumerate(batch.bodies):
        try:
            event = decode(body)
        except msgspec.DecodeError as error:
            batch.parked.append(Parked(None, "unknown", None, Reason.UNREADABLE, str(error)[:500], body))
            continue
        if type(event) is Dropped:
            batch.drops[(event.tenant, _day(event.at), event.of, Reason(event.reason))] += event.n
            continue
        batch.rows.append(Row(place, key(event.kind, event.id), event, body))
    return batch


def refuse_old(batch: Batch) -> Batch:
    """An event from before the horizon could be a copy of one whose key is forgotten: refused, with its reason.

    History passes: intake looked for its copies in ClickHouse, where those are whose keys are forgotten.
    """
    kept: list[Row] = []
    for row in batch.rows:
        if row.event.at < row.event.received - _HORIZON_MS and not is_history(row.event):
            batch.drops[drop_key(row, Reason.TOO_OLD)] += 1
            batch.refused.append(row)
        else:
            kept.append(row)
    batch.rows = kept
    return batch


def drop_copies(batch: Batch) -> Batch:
    """Of several copies in one batch the first in the journal stands, with the smallest sequence of all of them."""
    first: dict[tuple[int, bytes], Row] = {}
    smallest: dict[tuple[int, bytes], int] = {}
    for row in batch.rows:
        identity = (row.event.tenant, row.key)
        same = first.setdefault(identity, row)
        if same is not row:
            reason = Reason.DUPLICATE if _alike(same, row) else Reason.DUPLICATE_DIFFERENT
            batch.drops[drop_key(row, reason)] += 1
            batch.refused.append(row)
            smallest[identity] = min(row.event.sequence, smallest.get(identity, same.event.sequence))
    for identity, sequence in smallest.items():
        if sequence < first[identity].event.sequence:
            first[identity] = _lowered(first[identity], sequence)
    batch.rows = list(first.values())
    return batch


def _lowered(row: Row, sequence: int) -> Row:
    event = msgspec.structs.replace(row.event, sequence=sequence)
    return msgspec.structs.replace(row, event=event, lowered=True)


def order(batch: Batch) -> Batch:
    """By tenant and key: batches of two workers that overlap then wait for each other instead of deadlocking."""
    batch.rows.sort(key=lambda row: (row.event.tenant, row.key))
    return batch


Step = Callable[[Batch], Batch]

STEPS: tuple[Step, ...] = (read, refuse_old, drop_copies, order)


def drop_key(row: Row, reason: Reason) -> DropKey:
    return (row.event.tenant, _day(row.event.at), row.event.kind, reason)


def _day(ms: int) -> date:
    return from_ms(ms).date()


def _alike(one: Row, other: Row) -> bool:
    """The same event sent again: equal but for when we received it and where it stood in its request.

    A product event's time was corrected by its request's own error, which differs a little from try to try.
    """
    if one.body == other.body:
        return True
    if type(one.event) is CapturedEvent and type(other.event) is CapturedEvent:
        first = one.event
        moved = msgspec.structs.replace(
            other.event, at=first.at, micros=first.micros, sequence=first.sequence, received=first.received
        )
        return first == moved
    left, right = msgspec.structs.asdict(one.event), msgspec.structs.asdict(other.event)
    if left["at"] == left["received"] and right["at"] == right["received"]:  # neither said when: we did, for both
        del left["at"], right["at"], left["micros"], right["micros"]
    for name in ("received", "sequence"):
        del left[name], right[name]
    return bool(left == right)
