"""What trackers send, in the words of the wire, and every fault of it at once.

The fast way is one typed decode. Only when that fails is the body looked at field by field, to tell the sender all that
is wrong instead of the first thing.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from handbill.banners.model import VariantKey
from handbill.kit.bounds import CUSTOM_VALUE_MAX
from handbill.kit.clock import to_us
from handbill.kit.errors import Fault, Invalid
from handbill.kit.faults import MOST, faults_in, unknown_names
from handbill.kit.report_ids import sequence_of_id
from handbill.kit.untrusted_json import UNREADABLE, check_depth, without_unstorable

EventId = Annotated[str, Meta(min_length=1, max_length=200, description="Names the event: sent again, it counts once")]
Short = Annotated[str, Meta(max_length=200)]
Address = Annotated[str, Meta(max_length=2000)]
Country = Annotated[str, Meta(pattern="^[A-Za-z]{2}$", description="Two letters, ISO 3166")]
When = Annotated[datetime, Meta(tz=True, description="A time with its zone; missing or future: when received")]
Zone = Annotated[str, Meta(max_length=100, description="A time zone by its name, e.g. Europe/Amsterdam")]
CustomKey = Annotated[str, Meta(min_length=1, max_length=100)]
DecisionToken = Annotated[str, Meta(max_length=3000, description="The decision's token, as decide gave it")]
CustomText = Annotated[str, Meta(max_length=CUSTOM_VALUE_MAX)]
BATCH_MAX = 500


class Why(StrEnum):
    """Why a banner was shown or not. One list; a word may be added, never changed."""

    SHOWN = "SHOWN"  # it was chosen
    SWITCHED_OFF = "SWITCHED_OFF"  # the operator's switch is off
    NOT_YET = "NOT_YET"  # its window has not begun
    OVER = "OVER"  # its window has ended
    CAMPAIGN_CLOSED = "CAMPAIGN_CLOSED"  # its campaign is off, not begun, ended or deleted
    PLACEMENT = "PLACEMENT"  # it is not for this placement
    TARGETING = "TARGETING"  # a rule does not hold; `rule` says which
    HOLDOUT = "HOLDOUT"  # the user is in the group that never sees it
    CAPPED = "CAPPED"  # a limit is reached; `rule` says which
    OUTRANKED = "OUTRANKED"  # it might be shown, but others came first
    ELSEWHERE = "ELSEWHERE"  # another placement of the same answer shows it
    RATE_LIMITED = "RATE_LIMITED"  # the user asks too often
    UNKNOWN = "UNKNOWN"  # the caps could not be read, so nothing was shown


T = TypeVar("T", bound=msgspec.Struct)


class ImpressionIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    """The address of the page that led to this one."""
    occurredAt: When | None = None
    variant: VariantKey | None = None
    token: DecisionToken | None = None


class ClickIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bannerPublicId: UUID
    placementPublicId: UUID
    correlationId: EventId
    destinationUrl: Annotated[str, Meta(min_length=1, max_length=2000)]
    """The address to which the click leads."""
    campaignPublicId: UUID | None = None
    sessionId: Short | None = None
    userId: Short | None = None
    deviceType: Short | None = None
    countryCode: Country | None = None
    pageUrl: Address | None = None
    occurredAt: When | None = None
    variant: VariantKey | None = None
    token: DecisionToken | None = None


class ViewIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    banner_id: UUID
    user_id: Annotated[str, Meta(min_length=1, max_length=200)]
    event_id: EventId
    view_duration_ms: Annotated[int, Meta(ge=0, le=86_400_000)]
    """How long it was visible, in milliseconds."""
    dismissed: bool = False
    """Whether the user closed it; then it counts however short it was."""
    placement_id: UUID | None = None
    session_id: Short | None = None
    device_id: Short | None = None
    token: DecisionToken | None = None
    viewable: Annotated[bool, Meta(description="Whether it was in sight for so long as the client measures")] | None = (
        None
    )


class ContextIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the caller knows of the moment; what it leaves out is read from the request where that is possible."""

    url: Address | None = None
    """The address of the page where it will be shown."""
    referrer: Address | None = None
    """The address of the page that led there."""
    country: Country | None = None
    region: Short | None = None
    """The region of the user, for targeting."""
    language: Short | None = None
    """The user's language, e.g. pt-BR."""
    time_zone: Zone | None = None
    user_agent: Annotated[str, Meta(max_length=1000)] | None = None
    """The browser's `User-Agent`; taken from the request if not given."""
    custom: Annotated[dict[CustomKey, CustomText | float | bool], Meta(max_length=50)] = {}
    """Further values by name, for targeting rules about them."""
    consent: Annotated[list[Short], Meta(max_length=50)] = []
    """The purposes that the user has agreed to."""


_NO_CONTEXT = ContextIn()


class DecideIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    session_id: Short | None = None
    device_id: Short | None = None
    placements: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100)]],
        Meta(max_length=10, description="Slugs or ids; none: anywhere"),
    ] = []
    limit: Annotated[int, Meta(ge=1, le=20, description="Banners per placement")] = 1
    context: ContextIn = _NO_CONTEXT
    """What is known of the moment, for targeting rules."""


class Decided(msgspec.Struct, frozen=True):
    """One banner to show. Send its token back with the view; follow click_url to count the click."""

    banner_id: UUID
    campaign_id: UUID | None
    variant: str | None
    """The key of the variant to show; null where the banner has none."""
    title: str | None
    description: str | None
    image_url: str | None
    asset_url: str | None
    click_url: str | None
    """Where a click should lead: it is counted and sent on to the banner's link; null without a link."""
    z_duration_sec: int
    token: str
    """Send it back with the view, impression or click of this showing."""
    expires_at: datetime
    """Until when the token can be sent back."""


class Decision(msgspec.Struct, frozen=True):
    """What to show in one placement, best first; null where none was named."""

    placement: str | None
    """The placement's slug; null where none was named."""
    placement_id: UUID | None
    """The placement's public id; null where none was named."""
    banners: list[Decided]
    """What to show there, best first; may be empty."""


class Names(msgspec.Struct, frozen=True):
    """What people call them; null where there is none, or it was deleted."""

    banner: str
    placement: str | None
    campaign: str | None


class Verdict(msgspec.Struct, frozen=True):
    """Why a banner was shown or passed over in one placement."""

    banner_id: UUID
    placement: str | None
    """The placement's slug; null where none was named."""
    verdict: Literal["shown", "passed"]
    """Whether it was shown there or passed over."""
    reason: Why
    """Why, as a constant; see the list of its values."""
    rule: str | None = None
    """The rule or limit that decided, in words; null where none did."""
    next_eligible_at: datetime | None = None
    """The first moment at which it may be shown, as far as that is known; null where there is none."""
    names: Names | None = None
    """What banner, placement and campaign are called."""


class Decisions(msgspec.Struct, frozen=True, omit_defaults=True):
    user_id: str
    decided_at: datetime
    """When it was decided."""
    decisions: list[Decision]
    """One for each placement, in the order they were named."""
    explain: list[Verdict] | None = None
    """Why each banner was shown or not; only with `?explain=1`."""


class PublicBanner(msgspec.Struct, frozen=True):
    """What a banner looks like: the same for everybody, so that a cache may keep it."""

    banner_id: UUID
    variant: str | None
    title: str | None
    description: str | None
    image_url: str | None
    asset_url: str | None
    cta_link: str | None
    z_duration_sec: int
    version: int


class Accepted(msgspec.Struct, frozen=True):
    """It is durable. `data` is always null."""

    message: str
    data: None = None
    """Always null; it is there for clients that expect it."""


class Rejected(msgspec.Struct, frozen=True):
    """One event of a batch that was not kept, and why."""

    index: int
    """The position of the event in the batch, from 0."""
    code: str
    detail: str
    """Why it was not accepted, for a person to read."""
    faults: list[Fault]


class BatchData(msgspec.Struct, frozen=True):
    accepted: int
    """How many events were accepted."""
    rejected: list[Rejected]
    """The events that were not accepted, each with its position."""


class BatchAccepted(msgspec.Struct, frozen=True):
    """The good events are durable; the others are named."""

    message: str
    data: BatchData
    """What was accepted and what was not."""


class Shown(msgspec.Struct, frozen=True):
    """The banners to show now."""

    banners: list[UUID]
    """Public ids of the banners to show, best first."""
    user_id: str


_DECIDE = msgspec.json.Decoder(DecideIn)


def decide_in(body: bytes) -> DecideIn:
    """What decide is asked, or Invalid with every fault in it. An empty body asks for the default."""
    if not body:
        return DecideIn()
    check_depth(body)
    try:
        return _DECIDE.decode(body)
    except UNREADABLE:
        raise _refused(DecideIn, _object(body), "", "The request is not valid; nothing was decided.") from None


def one(kind: type[T], body: bytes) -> T:
    """The body as one event, or Invalid with every fault in it."""
    check_depth(body)
    _refuse_unstorable(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE:
        raise _refused(kind, _object(body), "") from None


_ZERO = b"\\u0000"
"""Where half of a surrogate pair stands in a batch: with it the other events can be read, and this one is refused."""


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: list[msgspec.Raw]


def many(kind: type[T], body: bytes) -> list[tuple[int, T | Invalid]]:
    """A batch: each event by its place, or what is wrong with it. A fault in one is no fault of its neighbours."""
    check_depth(body)
    try:
        raws = msgspec.json.decode(without_unstorable(body, _ZERO), type=_Batch).events
    except UNREADABLE:
        _refuse_other_members(body)
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
    return [(place, _of_batch(kind, bytes(raw), f"events[{place}]")) for place, raw in enumerate(raws)]


def _of_batch(kind: type[T], raw: bytes, at: str) -> T | Invalid:
    """One event of a batch, or what is wrong with it."""
    try:
        _refuse_unstorable(raw)
        return msgspec.json.decode(raw, type=kind)
    except Invalid as error:
        return error
    except UNREADABLE:
        try:
            return _refused(kind, _object(raw), at)
        except Invalid as error:  # it is no object
            return error


class Timing(msgspec.Struct, frozen=True, gc=False):
    """When an event happened, to the microsecond, when it arrived, and what orders it among others of one time."""

    at: int
    micros: int
    received: int
    sequence: int


def timing(when: datetime | None, received_ms: int, index: int = 0, *, event_id: str = "") -> Timing:
    """An event's times from when it happened, as sent: unless that is missing or lies in the future.

    `index` is its position in the request; without a time of its own it happened so many microseconds after arrival.
    An `event_id` that is a UUIDv7 says when the event was made.
    """
    us = None if when is None else to_us(when)
    if us is None or us // 1000 > received_ms:
        us = received_ms * 1000 + index
    return Timing(us // 1000, us % 1000, received_ms, sequence_of_id(event_id, received_ms, index))


def _refuse_unstorable(body: bytes) -> None:
    """Some characters fit no text column: better told here than parked later."""
    if b"\\u" in body and without_unstorable(body) != body:
        raise Invalid(
            "The event has a character in a text that no database takes (U+0000, or half of a surrogate pair); it was"
            " not kept.",
            code="BAD_TEXT",
        )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise Invalid(f"The body is not JSON ({error}); nothing was kept.", code="BAD_JSON") from None
    if not isinstance(value, dict):
        raise Invalid("An event is a JSON object; nothing was kept.", code="BAD_JSON")
    return value


def _refuse_other_members(body: bytes) -> None:
    """Raises Invalid for a batch that has more than its events, naming what else it has."""
    try:
        names = list(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except UNREADABLE:
        return
    errors = unknown_names(names, ("events",))[:MOST]
    if errors:
        raise Invalid("A batch has a member that is not known; nothing was kept.", faults=errors)


def _refused(
    kind: type[msgspec.Struct], value: dict[str, Any], at: str, why: str = "The event is not valid; it was not kept."
) -> Invalid:
    """Every fault of one body, after its typed decode failed."""
    errors = [Fault(error.field, _plain(error.reason)) for error in faults_in(value, kind, at)[:MOST]]
    return Invalid(why, faults=errors)


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]
