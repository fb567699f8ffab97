"""The one event that comes out of every dialect, and what a parser hands back with it.

Reading happens in three steps, since the key that names the tenant may be inside the body: the body is unpacked, then
opened (`Opened` has the key and how many events there are), and `capture` makes the events once the tenant is clear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from handbill.events.model import HISTORICAL, NO_PROPERTIES, PERSONLESS, CapturedEvent, Edge, EdgeKind
from handbill.events.reasons import Reason
from handbill.kit.errors import Fault

__all__ = [
    "HISTORICAL", "NO_PROPERTIES", "PERSONLESS", "CapturedEvent", "Dialect", "Edge", "EdgeKind", "Moment", "Note",
    "Opened", "Parsed", "Refused", "Terms",
]  # fmt: skip


class Dialect(StrEnum):
    OWN = "own"
    POSTHOG = "posthog"
    POSTHOG_V1 = "posthog-v1"
    SEGMENT = "segment"


class Note(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What became of the event at this place of the request; `faults` name the fields that are wrong in it."""

    index: int
    reason: Reason
    faults: Sequence[Fault] = ()


class Parsed(msgspec.Struct, frozen=True):
    """`places[i]` is where `events[i]` stood in the request; `ids` has every event's id there, as far as it had one."""

    dialect: Dialect
    api_key: str | None
    events: Sequence[CapturedEvent]
    places: Sequence[int]
    dropped: Sequence[Note] = ()
    warned: Sequence[Note] = ()
    ids: Sequence[str | None] = ()
    beacon: bool = False

    @property
    def total(self) -> int:
        return len(self.events) + len(self.dropped)


class Terms(msgspec.Struct, frozen=True):
    """Whose events they are, and what this tenant wants done with addresses."""

    tenant: int
    truncate_ip: bool = False


class Opened(msgspec.Struct, frozen=True):
    """A request that could be read: the key it carries, the number of its events, and the way to have them."""

    dialect: Dialect
    api_key: str | None
    count: int
    capture: Callable[[Terms], Parsed]


class Moment(msgspec.Struct, frozen=True):
    """When the request came, and where ids come from for events that have none."""

    received: int
    new_id: Callable[[], str]


class Refused(Exception):
    """One event cannot be taken; its neighbours can."""

    def __init__(self, reason: Reason, faults: Sequence[Fault] = ()) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.faults = faults
