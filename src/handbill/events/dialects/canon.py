"""The one event that comes out of every dialect, and what a parser hands back with it.

Reading happens in two steps, since the key that names the tenant may stand inside the body: `Opened` knows the key and
how many events there are; `capture` makes them, once somebody has said whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import ClassVar

import msgspec

from handbill.events.dialects.reasons import CaptureReason

NO_PROPERTIES = b"{}"
HISTORICAL = "historical"
"""The mark of events whose sender called the request a migration of history."""


class Dialect(StrEnum):
    OWN = "own"
    POSTHOG = "posthog"
    POSTHOG_V1 = "posthog-v1"
    SEGMENT = "segment"


class EdgeKind(StrEnum):
    """How strongly the sender says that two ids are one person: an identified source is guarded, save for `merge`."""

    IDENTIFY = "identify"
    ALIAS = "alias"
    MERGE = "merge"


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`other` is the same person as the event's distinct id, and yields to it."""

    kind: EdgeKind
    other: str


class CapturedEvent(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """Times are milliseconds; `at` is fixed here and never corrected again. Raw JSON stays the sender's own bytes."""

    kind: ClassVar[str] = "capture"
    tenant: int
    id: str
    at: int
    received: int
    name: str
    distinct_id: str
    dialect: str
    properties: bytes = NO_PROPERTIES  # a JSON object
    set: bytes | None = None  # a JSON object
    set_once: bytes | None = None  # a JSON object
    unset: bytes | None = None  # a JSON array of names
    edge: Edge | None = None
    session: str | None = None
    ip: str | None = None
    user_agent: str | None = None
    url: str | None = None
    referrer: str | None = None
    browser: str | None = None
    browser_version: str | None = None
    os: str | None = None
    os_version: str | None = None
    device_type: str | None = None
    screen_width: int | None = None
    screen_height: int | None = None
    language: str | None = None
    timezone: str | None = None
    lib: str | None = None
    marks: tuple[str, ...] = ()


class Note(msgspec.Struct, frozen=True, gc=False):
    """What became of the event at this place of the request."""

    index: int
    reason: CaptureReason


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

    def __init__(self, reason: CaptureReason) -> None:
        super().__init__(reason.value)
        self.reason = reason
