"""What trackers send, in the words of the wire, and every fault of it at once.

The fast way is one typed decode. Only when that fails is the body looked at field by field, to tell the sender all that
is wrong instead of the first thing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar, get_type_hints
from uuid import UUID

import msgspec
from msgspec import Meta

from handbill.kit.clock import to_ms
from handbill.kit.errors import Fault, Invalid

EventId = Annotated[str, Meta(min_length=1, max_length=200, description="Names the event: sent again, it counts once")]
Short = Annotated[str, Meta(max_length=200)]
Address = Annotated[str, Meta(max_length=2000)]
Country = Annotated[str, Meta(pattern="^[A-Za-z]{2}$", description="Two letters, ISO 3166")]
When = Annotated[datetime, Meta(tz=True, description="A time with its zone; missing or future: when received")]
BATCH_MAX = 500

T = TypeVar("T", bound=msgspec.Struct)


class ImpressionIn(msgspec.Struct, frozen=True):
    bannerPublicId: UUID
    placementPublicId: UUID
    correlationId: EventId
    campaignPublicId: UUID | None = None
    sessionId: Short | None = None
    userId: Short | None = None
    deviceType: Short | None = None
    countryCode: Country | None = None
    pageUrl: Address | None = None
    referrerUrl: Address | None = None
    occurredAt: When | None = None


class ClickIn(msgspec.Struct, frozen=True):
    bannerPublicId: UUID
    placementPublicId: UUID
    correlationId: EventId
    destinationUrl: Annotated[str, Meta(min_length=1, max_length=2000)]
    campaignPublicId: UUID | None = None
    sessionId: Short | None = None
    userId: Short | None = None
    deviceType: Short | None = None
    countryCode: Country | None = None
    pageUrl: Address | None = None
    occurredAt: When | None = None


class ViewIn(msgspec.Struct, frozen=True):
    banner_id: UUID
    user_id: Annotated[str, Meta(min_length=1, max_length=200)]
    event_id: EventId
    view_duration_ms: Annotated[int, Meta(ge=0, le=86_400_000)]
    dismissed: bool = False
    placement_id: UUID | None = None
    session_id: Short | None = None
    device_id: Short | None = None


class Accepted(msgspec.Struct, frozen=True):
    """It is durable. `data` is always null."""

    message: str
    data: None = None


class Rejected(msgspec.Struct, frozen=True):
    """One event of a batch that was not kept, and why."""

    index: int
    code: str
    detail: str
    faults: list[Fault]


class BatchData(msgspec.Struct, frozen=True):
    accepted: int
    rejected: list[Rejected]


class BatchAccepted(msgspec.Struct, frozen=True):
    """The good events are durable; the others are named."""

    message: str
    data: BatchData


class Shown(msgspec.Struct, frozen=True):
    """The banners to show now."""

    banners: list[UUID]
    user_id: str


def one(kind: type[T], body: bytes) -> T:
    """The body as one event, or Invalid with every fault in it."""
    _refuse_nul(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _refused(kind, _object(body), "") from None


def many(kind: type[T], body: bytes) -> list[tuple[int, T | Invalid]]:
    """A batch: each event by its place, or what is wrong with it. A fault in one is no fault of its neighbours."""
    try:
        batch = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        raws = msgspec.json.decode(batch["events"], type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        raise Invalid(
            'A batch is an object with a list: {"events": [...]}; nothing was kept.',
            faults=[Fault("events", "must be a list")],
        ) from None
    if not 1 <= len(raws) <= BATCH_MAX:
        raise Invalid(
            f"A batch holds 1 to {BATCH_MAX} events; nothing was kept.",
            code="BATCH_SIZE",
            faults=[Fault("events", f"holds {len(raws)}, must hold 1 to {BATCH_MAX}")],
        )
    found: list[tuple[int, T | Invalid]] = []
    for place, raw in enumerate(raws):
        try:
            _refuse_nul(bytes(raw))
            found.append((place, msgspec.json.decode(raw, type=kind)))
        except Invalid as error:
            found.append((place, error))
        except (msgspec.DecodeError, UnicodeDecodeError):
            found.append((place, _refused(kind, _object(bytes(raw)), f"events[{place}].")))
    return found


def occurred(when: datetime | None, received_ms: int) -> int:
    """When it happened: as told, unless that is missing or lies in the future."""
    if when is None:
        return received_ms
    return min(to_ms(when), received_ms)


def _refuse_nul(body: bytes) -> None:
    """A zero character fits no text column: better told here than parked later."""
    if b"\\u0000" in body:
        raise Invalid("The event has a zero character in a text; it was not kept.", code="BAD_TEXT")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The body is not JSON ({error}); nothing was kept.", code="BAD_JSON") from None
    if not isinstance(value, dict):
        raise Invalid("An event is a JSON object; nothing was kept.", code="BAD_JSON")
    return value


def _refused(kind: type[msgspec.Struct], value: dict[str, Any], at: str) -> Invalid:
    hints = get_type_hints(kind, include_extras=True)
    faults: list[Fault] = []
    for field in msgspec.structs.fields(kind):
        if field.name not in value:
            if field.required:
                faults.append(Fault(at + field.name, "is required"))
            continue
        try:
            msgspec.convert(value[field.name], hints[field.name], strict=True)
        except msgspec.ValidationError as error:
            faults.append(Fault(at + field.name, _plain(str(error))))
    return Invalid("The event is not valid; it was not kept.", faults=faults)


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]
