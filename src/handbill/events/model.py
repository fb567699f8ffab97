"""The events of the journal, as they were fixed at the edge: whose, what, when. Nothing later changes them.

On the wire each is a msgpack array with its kind first. Fields may be added at the end with a default; none is ever
removed or reordered, since entries of an older release may still wait in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, ClassVar, final

import msgspec
from msgspec import Meta

from handbill.events.reasons import Reason

__all__ = [
    "EVENT_PROPERTIES", "HISTORICAL", "HISTORY_SEQUENCE", "HORIZON_DAYS", "IMPORTED", "KINDS", "NO_PROPERTIES", "PAST",
    "PERSONLESS", "PERSON_PROPERTIES", "PERSON_VALUE_BYTES", "PROPERTY_DEPTH", "PROPERTY_NAME_CHARACTERS",
    "BannerEvent", "CapturedEvent", "Click", "Counted", "Dropped", "Edge", "EdgeKind", "Event", "Impression", "Reason",
    "Row", "View", "at_us", "decode", "encode", "is_history", "key", "sender", "tenant_of",
]  # fmt: skip

HORIZON_DAYS = 35
PROPERTY_NAME_CHARACTERS = 200
"""A property with a longer name stays with its event; it is not listed and does not become a person's."""
PROPERTY_DEPTH = 64
EVENT_PROPERTIES = 10_000
PERSON_PROPERTIES = 2_000
PERSON_VALUE_BYTES = 8_192
"""Of JSON. A longer value stays with its event and does not become a part of a person."""
KINDS = ("impression", "click", "view", "capture")

# What no table could hold is refused with the bytes: further on it would fail where nobody expects it.
Tenant = Annotated[int, Meta(ge=1, lt=2**31)]
Number = Annotated[int, Meta(ge=1, lt=2**30)]
Count = Annotated[int, Meta(ge=1, lt=2**31)]
Moment = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
"""Milliseconds from 1970 until the end of the year 9999."""
Micros = Annotated[int, Meta(ge=0, lt=1_000)]
"""Microseconds beyond the millisecond."""
SequenceNumber = Annotated[int, Meta(ge=0, lt=2**62)]
"""Orders events of one microsecond: when their request was sent, then the position in it."""
IMPORTED = "imported"
"""The mark of events that came by a file of history, not as they happened."""
HISTORICAL = "historical"
"""The mark of events whose sender called the request a migration of history."""
PERSONLESS = "personless"
"""The mark of events whose sender wants no person for them: they are stored, and say nothing about anybody."""
PAST = frozenset({IMPORTED, HISTORICAL})
"""What is said to be history may be as old as it is: intake looks for older copies of it in ClickHouse."""
HISTORY_SEQUENCE = 2**61
"""Sequences of history begin here, above all of live events: of copies the live one orders the event."""


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What every banner event has. `at` and `received` are milliseconds by the shared clock."""

    tenant: Tenant
    id: str
    at: Moment
    received: Moment
    banner: Number
    placement: Number | None = None
    campaign: Number | None = None
    user: str | None = None
    session: str | None = None
    device: str | None = None
    country: str | None = None
    page: str | None = None
    marks: tuple[str, ...] = ()


@final
class Impression(_Head, frozen=True, array_like=True, tag="i"):
    kind: ClassVar[str] = "impression"
    referrer: str | None = None
    variant: str | None = None
    micros: Micros = 0
    sequence: SequenceNumber = 0


@final
class Click(_Head, frozen=True, array_like=True, tag="c"):
    kind: ClassVar[str] = "click"
    destination: str = ""
    variant: str | None = None
    micros: Micros = 0
    sequence: SequenceNumber = 0


@final
class View(_Head, frozen=True, array_like=True, tag="v"):
    """A view moves the caps only when it counts: long enough, or dismissed on purpose."""

    kind: ClassVar[str] = "view"
    device_id: str | None = None
    duration_ms: int = 0
    dismissed: bool = False
    counted: bool = True
    variant: str | None = None
    viewable: bool | None = None  # as the client measured it; None: it did not say
    required_ms: int | None = None  # how long it had to be visible, at its time
    micros: Micros = 0
    sequence: SequenceNumber = 0


@final
class Dropped(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Something the edge refused for a reason the tenant should see in its drop counts; it is counted, never stored."""

    kind: ClassVar[str] = "drop"
    tenant: Tenant
    id: str
    at: Moment
    received: Moment
    of: str
    reason: str
    n: Count = 1  # as many of one request, for one reason


NO_PROPERTIES = b"{}"


class EdgeKind(StrEnum):
    """How strongly the sender says that two ids are one person: an identified source is guarded, save for `merge`."""

    IDENTIFY = "identify"
    ALIAS = "alias"
    MERGE = "merge"


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`other` is the same person as the event's distinct id, and yields to it."""

    kind: EdgeKind
    other: str


@final
class CapturedEvent(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """A product event of any client. `at` is fixed at the edge, never corrected again; JSON stays the sender's own."""

    kind: ClassVar[str] = "capture"
    tenant: Tenant
    id: str
    at: Moment
    received: Moment
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
    micros: Micros = 0
    sequence: SequenceNumber = 0


BannerEvent = Impression | Click | View
Counted = Impression | Click | View | CapturedEvent
Event = Impression | Click | View | CapturedEvent | Dropped


class Row(msgspec.Struct, frozen=True, gc=False):
    """One readable event in the pipeline: its place in the range, its key, and the bytes it came as.

    `lowered`: the event has the smaller sequence of a copy, not the one in the bytes.
    """

    place: int
    key: bytes
    event: Counted
    body: bytes
    lowered: bool = False


def is_history(event: Event) -> bool:
    """Whether its sender says that it is history, and not that it happens now."""
    return type(event) is not Dropped and not PAST.isdisjoint(event.marks)


def at_us(event: Counted) -> int:
    """When it happened, in microseconds."""
    return event.at * 1000 + event.micros


encode: Callable[[Event], bytes] = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Event)
_LONG_ARRAY = b"\xdc"
_INTEGER_BYTES = {b"\xcc": 1, b"\xcd": 2, b"\xce": 4}


def decode(body: bytes) -> Event:
    """Raises msgspec.DecodeError for bytes that are no event."""
    try:
        event: Event = _decoder.decode(body)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("a text in it is not UTF-8") from None
    if type(event) is Dropped and (event.of not in KINDS or event.reason not in Reason.__members__):
        raise msgspec.DecodeError("a drop of no known kind or reason")
    return event


def tenant_of(body: bytes) -> int | None:
    """Whose event it is, read from its first bytes without decoding it. None: these bytes are no event."""
    start = 5 if body[:1] == _LONG_ARRAY else 3  # behind the array's length and the kind, a text of one letter
    first = body[start : start + 1]
    if first < b"\x80":
        return first[0] if first else None
    size = _INTEGER_BYTES.get(first, 0)
    return int.from_bytes(body[start + 1 : start + 1 + size], "big") or None


def key(kind: str, event_id: str) -> bytes:
    """What makes an event itself: its kind and its id, in 16 bytes. The tenant stands beside it."""
    return blake2b(f"{kind}\0{event_id}".encode(), digest_size=16).digest()


def sender(event: Event) -> str:
    """The id whose events keep their order: the user or session as sent, else the event's own id."""
    if type(event) is Dropped:
        return event.id
    if type(event) is CapturedEvent:
        return event.distinct_id
    return event.user or event.session or event.id
