"""Values of the ways back of parked events: what is chosen, how it is replayed, and what became of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from handbill.kit.errors import Invalid
from handbill.tenants.model import RequestStatus

NIL = UUID(int=0)
"""Before the first row."""
_COUNTS = ("matched", "sent", "unreadable", "too_old", "failed", "unshipped", "shipped")


class OnFailure(StrEnum):
    """What a replay does about events that are still bad: `park` them again and go on, or `stop` behind them."""

    PARK = "park"
    STOP = "stop"


class ReplayOptions(msgspec.Struct, frozen=True):
    """How a replay goes: `dry_run` only counts, `force` takes also what was parked too long ago."""

    on_failure: OnFailure = OnFailure.PARK
    dry_run: bool = False
    force: bool = False

    @property
    def is_careful(self) -> bool:
        return self.on_failure is OnFailure.STOP


class Chosen(msgspec.Struct, frozen=True):
    """Which parked events: all of a tenant's (none: everybody's), of one reason, or those with these ids."""

    tenant: int | None
    reason: str | None = None
    ids: tuple[UUID, ...] = ()


class Replayed(msgspec.Struct, frozen=True):
    """`matched` parked events fit the filter; `sent` of them went back into the journal; a dry run sends none.

    `too_old` were parked so long ago that a copy of them may have been counted and forgotten: they need `force`.
    Of those that were counted before and that only ClickHouse lacks, `shipped` were taken there now and `unshipped`
    still wait: in the journal they would be copies.
    `failed` were parked again while we watched, and `stopped` says that the rest was left alone for that.
    """

    matched: int
    sent: int
    unreadable: int
    dry_run: bool
    too_old: int = 0
    failed: int = 0
    stopped: bool = False
    unshipped: int = 0
    shipped: int = 0


class Reshipped(msgspec.Struct, frozen=True):
    """`waits`: ClickHouse takes nothing now, whatever it is; the rest was left alone."""

    shipped: int
    refused: int
    waits: bool = False


class Portion(msgspec.Struct, frozen=True):
    """What became of one portion. `waits`: ClickHouse takes nothing now; what only it lacks was left alone."""

    counts: Replayed
    waits: bool = False


class DropReport(msgspec.Struct, frozen=True):
    """How many parked events were dropped for good. They stay in the drop counts, under the reason of their parking."""

    dropped: int


class ParkedAction(StrEnum):
    REPLAY = "replay"
    DROP = "drop"


class ParkedRequest(msgspec.Struct, frozen=True):
    """A replay or a drop of parked events, how far it is and its report.

    `total` events waited when the work began (none: it has not begun, or they were too many to count). Of a replay,
    `report` has: `matched`, those looked at so far; `sent`, those of them that went into the journal; `unreadable`;
    `too_old`, which need `force`; `shipped` and `unshipped`, of those that only ClickHouse lacks; `failed`, parked
    again while it watched; `stopped`, the rest was left alone for that. Of a drop, `report` has `dropped`.
    While it runs, `error` is the code of what it waits for; once it has failed, of why.
    """

    parked_request_id: UUID
    """The id of the replay or drop."""
    action: ParkedAction
    """Whether parked events are sent in again or dropped."""
    status: RequestStatus
    """Where the work stands: queued, running, done or failed."""
    report: dict[str, Any]
    """What became of the events so far, as numbers by name."""
    requested_by: str
    created_at: datetime
    reason: str | None = None
    """Only events that were parked for this reason; null: of any."""
    dry_run: bool = False
    total: int | None = None
    """How many events waited when the work began; null: not begun, or too many to count."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None


def report_of(done: Replayed) -> dict[str, Any]:
    """The counts of a replay as a request reports them."""
    return {name: getattr(done, name) for name in (*_COUNTS, "stopped")}


def check_drop(chosen: Chosen) -> None:
    """Raises Invalid unless a reason or ids say what to drop: nobody drops everything by leaving words out."""
    if chosen.reason is None and not chosen.ids:
        raise Invalid("Say which parked events: a reason or their ids. Nothing was dropped.", code="DROP_WHAT")


def added(done: Replayed, portion: Replayed) -> Replayed:
    """The counts of both; it is stopped when its last portion was."""
    counts = {name: getattr(done, name) + getattr(portion, name) for name in _COUNTS}
    return msgspec.structs.replace(done, **counts, stopped=portion.stopped)
